"""The page, its figures and README's summary agree with claims and results; the verb from end to end."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from verbs import nearsight

from nearsight.reproduce import page
from nearsight.reproduce.evidence import read_results, result_path
from nearsight.reproduce.experiment import load_experiment
from nearsight.reproduce.page import MARKS, Report, page_text, stale, with_summary, words, write_page

ROOT = Path(__file__).parents[2]


def test_page_and_readme_are_those_of_the_results():
    assert stale(ROOT) == [], "run nearsight reproduce --write"


def test_every_scale_of_the_machinery_runs_and_its_page_can_be_written(tmp_path, monkeypatch, capfd):
    """`smoke`: tiny models on the bundled pictures, as a user would run them."""
    results = tmp_path / "results" / "reproduction"
    words = ["reproduce", "all", "--scale", "smoke", "--jobs", "2"]
    assert nearsight(*words, "--runs", tmp_path / "runs", "--results", results) == 0
    told = capfd.readouterr().out
    experiments = [load_experiment(name) for name in ("sample_efficiency", "sample_efficiency_rates", "sasa_layers")]
    found = [one for experiment in experiments for one in read_results(results, experiment, "smoke")]
    assert len(found) == 6
    for one in found:
        assert f"{one.run.name}: {'test' if one.record['test'] else 'val'} {one.accuracy:.2f} %" in told
    # A page of these results, as if they were evidence, in a copy of what the page needs.
    monkeypatch.setattr(page, "_MEASURED", ("smoke",))
    for folder in ("docs/figures", "tests"):
        (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copytree(
        ROOT / "results", tmp_path / "results", dirs_exist_ok=True, ignore=shutil.ignore_patterns("reproduction")
    )
    (tmp_path / "README.md").write_text(f"# title\n{MARKS[0]}\nold\n{MARKS[1]}\nrest\n")
    assert set(stale(tmp_path)) >= {"docs/reproduction.md", "README.md"}
    written = write_page(tmp_path)
    assert stale(tmp_path) == []
    assert [path.name for path in written[2:]] == [f"reproduction_{one.name}_smoke.svg" for one in experiments]
    text = (tmp_path / "docs" / "reproduction.md").read_text()
    assert "**smoke**: clothing, 320 samples a run. 4 of 4 runs have a result" in text
    assert "n = 1" in text
    # What is stale is found: a result that changed, and a page that somebody edited.
    path = result_path(results, found[0].run)
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))
    assert stale(tmp_path) == ["docs/figures/reproduction_sample_efficiency_smoke.svg"]
    (tmp_path / "docs" / "reproduction.md").write_text(text.replace("n = 1", "n = 9", 1))
    assert "docs/reproduction.md" in stale(tmp_path)


def test_the_summary_needs_its_place():
    assert with_summary(f"a{MARKS[0]}old{MARKS[1]}b", "new\n") == f"a{MARKS[0]}\nnew\n{MARKS[1]}b"
    with pytest.raises(ValueError, match="no place for the summary"):
        with_summary("nothing", "new")


def test_every_claim_is_on_the_page():
    report = Report.gather(ROOT)
    text = page_text(report)
    for claim in report.claims:
        assert f"`{claim.id}`" in text
    first = report.claims[0]
    changed = [dataclasses.replace(first, statement="Another statement."), *report.claims[1:]]
    assert page_text(dataclasses.replace(report, claims=changed)) != text


def test_writing_needs_a_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is no checkout of nearsight"):
        nearsight("reproduce", "--write")


def test_claims_and_experiments_are_listed(tmp_path, capsys):
    nearsight("reproduce")
    assert "sasa_stages (cpu): " in capsys.readouterr().out
    nearsight("reproduce", "--show", "convit-table2", "--results", tmp_path)
    told = capsys.readouterr().out
    assert "convit-table2-top1 (Table 2, Figure 2a): not run" in told
    assert "sasa" not in told


def test_a_claim_names_its_experiments(tmp_path, capsys):
    nearsight("reproduce", "convit-table3", "--plan", "--jobs", "2", "--results", tmp_path)
    assert "gate_ablations at scale cpu" in capsys.readouterr().out
    nearsight("reproduce", "sample_efficiency", "--plan", "--rows", "deit", "--results", tmp_path)
    told = capsys.readouterr().out
    assert "0 of 12 runs have a result" in told
    assert "convit:" not in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convit-table9"], "there is no claim and no experiment 'convit-table9'"),
        (["sasa-equation3"], "nothing to run at scale cpu; no experiment tests it"),
        (["gate_ablations", "--scale", "smoke"], "nothing to run at scale smoke; add --scale cpu or full"),
        (["gate_ablations", "--rows", "vit", "--plan"], "gate_ablations has no row 'vit'"),
        (["gate_ablations", "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        nearsight("reproduce", *words)


def test_values_are_told_with_their_interval():
    from nearsight.intervals import Estimate

    assert words(Estimate(12.345, 10.0, 15.0, 3)) == "12.3 [10.0, 15.0]"
    assert words(Estimate(0.1234, -0.1, 0.3, 3)) == "0.12 [-0.10, 0.30]"
    assert words(Estimate(0.5, float("nan"), float("nan"), 1)) == "0.50"
