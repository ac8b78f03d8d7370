"""The `models` verb in a real process, and the Python of pages."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nearsight import create_model, list_models
from nearsight.cli.listing import CHOICES, models
from nearsight.cost import count_cost, model_cost, module_multiply_adds
from nearsight.recipes.files import resolve_recipe

ROOT = Path(__file__).parents[2]


def nearsight(*arguments, **options):
    command = [sys.executable, "-c", "from nearsight.cli.app import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_lists_models_beside_their_papers(tmp_path):
    result = nearsight("models", "sasa_resnet26*", "--json", str(tmp_path / "models.json"))
    assert result.returncode == 0, result.stderr
    assert re.search(r"sasa_resnet26_convstem .*10\.33M .*4\.48B .*10\.3M / 4\.5B / 75\.8", result.stdout)
    rows = json.loads((tmp_path / "models.json").read_text())
    assert [row["name"] for row in rows] == ["sasa_resnet26", "sasa_resnet26_convstem"]
    assert rows[1]["reported"]["source"] == "SASA, Table 1"


def test_lists_detectors_with_what_they_cost(tmp_path, capsys):
    assert models("retinanet_resnet5*", json=tmp_path / "models.json") == 0
    assert re.search(r"retinanet_resnet50 +640 +33\.40M +182\.33B", capsys.readouterr().out)
    (row,) = json.loads((tmp_path / "models.json").read_text())
    assert row == {"name": "retinanet_resnet50", **model_cost("retinanet_resnet50")}


def test_a_choice_is_guided_by_models_that_exist(monkeypatch, capsys):
    assert {name for _, name, _ in CHOICES} <= set(list_models())
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("nearsight.list_models", lambda pattern: ["convit_nano_32"])
    assert models() == 0
    printed = capsys.readouterr().out
    assert all(name in printed for _, name, _ in CHOICES)
    assert models("convit_nano_*") == 0
    assert "Which to take" not in capsys.readouterr().out  # who asks for names has chosen


def test_what_is_said_of_the_choices_is_so():
    def operations(name, side):
        with torch.device("meta"):
            return module_multiply_adds(create_model(name), (side, side))

    assert resolve_recipe().model == "convit_micro_64"
    assert resolve_recipe("retinanet_small").model == "retinanet_sasa_resnet26_convstem_attention"
    assert 0.3 < operations("convit_nano_64", 64) / operations("convit_micro_64", 64) < 0.4
    assert round(operations("convit_small", 224) / operations("convit_tiny", 224)) == 5
    assert round(operations("convit_base", 224) / operations("convit_tiny", 224)) == 16
    costs = {}
    for name in list_models("sasa_resnet*"):
        with torch.device("meta"):
            costs[name] = count_cost(create_model(name), (224, 224)).flops
    assert min(costs, key=costs.get) == "sasa_resnet26_convstem"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "nothing*"], "no model matches 'nothing*'"),
        (["models", "resnet26", "--img-size", "-16"], "an image size is one side"),
        (["models", "resnet26", "--json", "/no/such/folder/a.json"], "No such file or directory"),
        (["modles"], 'Did you mean "models"'),
        (["evaluate", "runs/x"], 'Did you mean "eval"'),
        (["train", "clothing", "--epoks", "3"], "Did you mean --epochs"),
        (["inspect", "convit_tiny", "--figure", "99"], 'Invalid value "99" for --figure'),
        (["predict", "--top", "3"], "RUN requires an argument"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments, message):
    result = nearsight(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.lstrip("\n").startswith("nearsight: ")
    assert result.stderr.strip().count("\n") == 0


@pytest.mark.parametrize("page", ["README.md", "docs/kernels.md"])
def test_the_python_of_pages_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
