"""Figures of README, changelog and pages stand in results/: the check, and that it finds what it should."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from check_figures import evaluate, faults, same  # noqa: E402


def test_every_figure_of_the_pages_has_its_file():
    assert faults() == []


def project(root: Path, text: str) -> Path:
    (root / "docs").mkdir()
    (root / "results").mkdir()
    (root / "results/speed.json").write_text(json.dumps({"rows": {"ours": [52.649, 3], "theirs": [26.1, 2]}, "n": 760}))
    (root / "README.md").write_text("# title\n")
    (root / "CHANGELOG.md").write_text("# changes\n")
    (root / "docs/page.md").write_text(text)
    return root


@pytest.mark.parametrize(
    "text",
    [
        "It has 52.6 % (`results/speed.json`).\n",
        "It has 52.6 % <!-- results/speed.json: rows['ours'][0] -->.\n",
        "52.6 to 26.1 <!-- results/speed.json: rows['ours'][0]; rows['theirs'][0] -->\n",
        "With 760 <!-- results/speed.json: n --> pictures\n",
        "Twice: 2.02× <!-- results/speed.json: rows['ours'][0] / rows['theirs'][0] -->\n",
        "Measured in `results/speed.json`:\n\n| model | accuracy |\n|---|---|\n| ours | 52.6 % |\n",
        "The table has 12 %, counted.\n",
        "```\nno figure: 12 %\n```\n",
    ],
)
def test_what_holds(tmp_path, text):
    assert faults(project(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It has 52.6 %.\n", "no file of results/ is named"),
        ("| model | speed |\n|---|---|\n| ours | 1.9× |\n", "no file of results/ is named"),
        ("Two: `results/speed.json`.\n\nIt takes 3.6 ms.\n", "page.md:3: no file"),
        (
            "It has 52.7 % <!-- results/speed.json: rows['ours'][0] -->.\n",
            "52.7 is printed, results/speed.json has 52.6",
        ),
        ("It has 52.6 % <!-- results/gone.json: rows -->.\n", "results/gone.json is not there"),
        ("It has 52.6 % <!-- results/speed.json: rows['his'][0] -->.\n", "KeyError"),
        ("It has 52.6 % <!-- results/speed.json: __import__('os').getcwd() -->.\n", "cannot be read"),
        ("It has 52.6 % <!-- results/speed.json: rows['ours'][0]; n -->.\n", "2 expressions for 1 figures"),
    ],
)
def test_what_does_not_hold(tmp_path, text, said):
    found = faults(project(tmp_path, text))
    assert len(found) == 1
    assert said in found[0]


def test_figures_are_compared_as_far_as_they_are_printed():
    assert same("52.6", 52.649)
    assert not same("52.65", 52.644)
    assert same("−0.5", -0.52)
    assert same("11 680 000", 11_680_000)
    assert same("0.5", 0.45)  # a value half-way rounds either way


def test_expressions_read_paths_and_count():
    content = {"a": [1, 2, 4], "b": {"c d": 0.5}}
    assert evaluate("max(a[0], a[2]) / b['c d'] - len(a)", content) == 5
    with pytest.raises(ValueError, match="neither a path nor arithmetic"):
        evaluate("[x for x in a]", content)
