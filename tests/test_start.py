"""What a fresh process loads: nothing slow for importing the package, building a model, or asking for help.

Modules are counted and not seconds, which depend on the machine.
"""

import subprocess
import sys

import pytest

SLOW = (
    "timm", "torchvision", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "numba", "triton",
    "matplotlib", "huggingface_hub",
)  # fmt: skip
VERBS = ("--help", "train --help", "resume --help", "eval --help", "predict --help", "models", "recipes")


def loaded(script: str, *names: str, arguments: tuple[str, ...] = ()) -> list[str]:
    """Which of these modules a fresh process has loaded when the script is done."""
    tail = f"\nimport sys\nprint('\\n' + ' '.join(name for name in {names} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script + tail, *arguments], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1].split() if not done.stdout.endswith("\n\n") else []


def test_a_slow_module_would_be_seen():
    assert loaded("import torchvision", "torchvision", "torch._dynamo", "timm") == ["torchvision", "torch._dynamo"]


@pytest.mark.parametrize("name", ["convit_tiny", "deit_tiny", "sasa_resnet26", "resnet26", "retinanet_resnet50"])
def test_building_a_model_loads_nothing_slow(name):
    assert not loaded(f"import nearsight\nnearsight.accelerate(nearsight.create_model({name!r}))", *SLOW)


def test_numba_is_loaded_with_the_first_local_attention_on_a_cpu():
    pytest.importorskip("numba")
    script = "import torch, nearsight\nmodel = nearsight.create_model('{}').eval()\nmodel(torch.zeros(1, 3, 64, 64))"
    assert not loaded(script.format("resnet26"), *SLOW)
    assert "numba" in loaded(script.format("sasa_resnet26"), *SLOW)


@pytest.mark.parametrize("words", VERBS)
def test_a_verb_that_trains_nothing_loads_nothing_slow(words):
    script = "import sys\nfrom nearsight.cli.verbs import app\napp(sys.argv[1:])"
    fast = words.endswith("--help")
    assert not loaded(script, *SLOW, *(["torch", "numpy"] if fast else []), arguments=tuple(words.split()))


def test_what_prediction_is_made_of_loads_nothing_slow():
    assert not loaded("import nearsight.classification.use", *SLOW)
