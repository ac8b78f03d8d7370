"""The benchmarks' plumbing: what they print, write and refuse. Timings themselves are not tested."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from nearsight.bench.layers import measure_stage
from nearsight.bench.measure import as_table, environment, median_ms, peak_memory, write_results
from nearsight.bench.models import Entry, measure, ratios
from nearsight.cli import bench


def test_a_stage_has_a_row_for_each_peer_with_ratios_to_the_convolution():
    peers = ("conv", "attention", "layer", "unfold", "flex")
    rows = list(measure_stage(16, 5, 1, torch.device("cpu"), peers, 1))
    assert [row["what"] for row in rows] == ["conv", "attention", "layer", "unfold"]  # FlexAttention needs a GPU here
    assert rows[0]["× conv"] == 1.0
    assert all(row["forward ms"] > 0 and row["forward+backward ms"] > 0 for row in rows)


def test_explain_names_the_backend_of_every_stage(capsys):
    bench.layers(explain=True, device="cpu", batch=1)
    said = capsys.readouterr().out
    assert said.count("numba: runs" if find_spec("numba") else "cpu: runs") == 4
    assert said.count("separable: runs") == 4
    assert "triton: cannot run" in said


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bench.layers(only="conv,lightning"), "lightning is unknown; choose from conv"),
        (lambda: bench.models(only="convit_tiny,alexnet"), "alexnet: no group is called so; there are convit_tiny, "),
        (lambda: bench.models(out=Path(__file__)), "test_bench.py is a file; name a folder"),
        (lambda: bench.layers(out=Path(__file__) / "results"), "test_bench.py is a file; name a folder"),
        (lambda: bench.models(modes="eager,fast"), "fast is unknown"),
        (lambda: bench.models(modes=","), "--modes ',' names nothing"),
        (lambda: bench.models(modes=""), "--modes is empty"),
        (lambda: bench.models(only=","), "--only ',' names nothing; there are convit_tiny, "),
        (lambda: bench.layers(only="a,b"), "a, b are unknown"),
        (lambda: bench.layers(out=Path("/proc/results")), "/proc/results: cannot be made"),
        (lambda: bench.layers(explain=True, out=Path("results")), "nothing to write"),
        (lambda: bench.layers(batch=10**12, only="conv", device="cpu"), "does not fit into memory; use a smaller one"),
        (lambda: bench.models(repeats=0), "--repeats must be at least 1, not 0"),
        (lambda: bench.layers(only="conv, attention", batch=0), "--batch must be at least 1, not 0"),
        (lambda: bench.layers(only="flex", device="cpu"), "on a GPU only"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_memory_is_what_tensors_need_at_once_whatever_was_freed_before():
    one = torch.zeros(1000, 1000)
    for _ in range(2):
        assert peak_memory(lambda x: (x + 1) * 2 + 3, one, torch.device("cpu")) == pytest.approx(8e6, rel=1e-4)


def test_a_model_is_timed_in_both_ways():
    def tiny():
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    entry = Entry("group", "tiny", lambda: torch.nn.Sequential(tiny(), torch.nn.Linear(4, 1000)), img_size=8)
    (row,) = measure(entry, False, 2, torch.device("cpu"), train=True, repeats=1)
    assert row["mode"] == "eager"
    assert row["inference images/s"] > 0
    assert row["training images/s"] > 0


def test_ratios_compare_the_first_of_a_group_with_the_others():
    rows = [
        {"group": "convit_tiny", "model": "nearsight", "mode": "eager", "inference images/s": 30.0},
        {"group": "convit_tiny", "model": "timm", "mode": "eager", "inference images/s": 10.0},
        {"group": "resnet50", "model": "attention", "mode": "eager", "inference images/s": 7.0},
        {"group": "resnet50", "model": "convolution", "mode": "eager", "inference images/s": 10.0},
    ]
    assert ratios(rows) == [
        "convit_tiny, eager: nearsight over timm: inference 3.00× images/s",
        "resnet50, eager: attention over convolution: inference 0.70× images/s",
    ]


def test_results_carry_where_they_come_from(tmp_path):
    rows = [{"shape": "8 × 3²", "forward ms": 0.12345, "memory MiB": None}]
    where = environment(torch.device("cpu"))
    path = write_results(tmp_path, "layers", rows, ("shape", "forward ms", "memory MiB"), where)
    assert "| 8 × 3² | 0.123 |  |" in path.read_text()
    assert where["torch"] in path.read_text()
    assert json.loads(path.with_suffix(".json").read_text())["rows"] == rows
    assert as_table([{"n": 12345.6}], ("n",)).endswith("| 12,346 |")


def test_every_input_set_is_used():
    seen = []
    median_ms(seen.append, ["a", "b"], torch.device("cpu"), repeats=2)
    assert seen == ["a", "b"] * 3
