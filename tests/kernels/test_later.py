"""What waits until torch's compiler or FLOP counter is imported: there in time, whoever imports them and when."""

import subprocess
import sys

import pytest
import torch

from nearsight.kernels import later


def in_fresh_process(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_an_action_runs_once_when_the_module_has_been_imported(tmp_path, monkeypatch):
    (tmp_path / "waited_for.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    later.when_imported("waited_for", lambda: seen.append(sys.modules["waited_for"].value))
    later.when_imported("waited_for", lambda: seen.append("second"))
    assert not seen
    import waited_for  # type: ignore[import-not-found]

    assert seen == [3, "second"]
    assert waited_for.__loader__.get_source("waited_for") == "value = 3\n"
    later.when_imported("waited_for", lambda: seen.append("at once"))
    assert seen[2:] == ["at once"]
    del sys.modules["waited_for"]
    import waited_for

    assert len(seen) == 3


def test_a_module_that_fails_to_load_runs_nothing(tmp_path, monkeypatch):
    (tmp_path / "broken_on_import.py").write_text("raise ImportError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    later.when_imported("broken_on_import", lambda: seen.append(1))
    with pytest.raises(ImportError, match="broken"):
        import broken_on_import  # type: ignore[import-not-found]  # noqa: F401
    assert not seen


@pytest.mark.parametrize("first", ["", "import torch._dynamo"])
def test_constants_are_marked_whenever_the_compiler_is_loaded(first):
    script = f"""
import torch
{first}
from nearsight.kernels.compat import _transforming as constant
def plain(): ...
before = dict(vars(constant))
torch.compiler.assume_constant_result(plain)
print(vars(constant) == vars(plain) != {{}}, bool(before))
"""
    assert in_fresh_process(script) == f"True {bool(first)}"


def test_formulas_are_registered_before_a_counter_can_be_made():
    """A counter copies what is registered when it is made, so that a first call is too late."""
    script = """
import nearsight.kernels, torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from nearsight.kernels.dispatch import HAS_TRITON
names = ["linear", "local_attention_cpu", "local_attention_numba"]
names += ["local_attention", "attend_gated", "mix_positions"] if HAS_TRITON else []
print([name for name in names if getattr(torch.ops.nearsight, name) not in flop_registry])
"""
    assert in_fresh_process(script) == "[]"


def test_operators_of_triton_are_there_before_anything_is_compiled():
    pytest.importorskip("triton")
    script = """
import sys, nearsight.kernels
assert "triton" not in sys.modules
import torch._dynamo
print("nearsight.kernels.gpsa.joint" in sys.modules, "nearsight.kernels.local.triton" in sys.modules)
"""
    assert in_fresh_process(script) == "True True"


def test_the_decorators_return_what_they_are_given():
    def formula(*arguments, **named):
        return 7

    assert later.constant_when_compiled(formula) is formula
    assert later.register_flop_formula(torch.ops.aten.is_complex)(formula) is formula
