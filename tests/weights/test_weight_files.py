"""Weights from strangers: nothing of them runs, every misfit is named."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import nearsight
from nearsight.weights import fit, load_weights, read_weights

PACKAGE = Path(nearsight.__file__).parent


class _Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: {"model": p}, lambda p: {"state_dict": {"w": p}}])
def test_a_pickled_payload_does_not_run(tmp_path, wrap):
    target = tmp_path / "owned"
    torch.save(wrap(_Payload(target)), tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"refused: it holds more than tensors \((posix|nt)\.system\)"):
        read_weights(tmp_path / "weights.pth")
    assert not target.exists()


def test_plain_tensors_in_a_pth_are_read(tmp_path):
    torch.save({"model": {"weight": torch.arange(3.0)}}, tmp_path / "weights.pth")
    assert read_weights(tmp_path / "weights.pth")["weight"].tolist() == [0, 1, 2]


def test_the_package_has_no_way_to_run_data():
    words = re.compile(
        r"weights_only\s*=\s*False|pickle\.loads?\(|allow_pickle\s*=\s*True|torch\.hub\.load|yaml\.(unsafe_)?load\(|"
        r"(?<![\w.])eval\(|(?<![\w.])exec\(|shell\s*=\s*True|os\.system"
    )
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def _header(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


_TENSOR = b'{"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        _header(b"{", 2**60),
        _header(_TENSOR) + b"\0" * 23,
        _header(_TENSOR) + b"\0" * 25,
        _header(_TENSOR.replace(b"[0,24]", b"[0,9223372036854775807]")) + b"\0" * 24,
        _header(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'
        )
        + b"\0" * 12,
        _header(b'{"weight":{"dtype":"F99","shape":[2,3],"data_offsets":[0,24]}}') + b"\0" * 24,
        _header(b"not json at all"),
    ],
)
def test_damaged_safetensors_are_refused(tmp_path, content):
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"w\.safetensors is not a readable safetensors file"):
        read_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"weight": torch.zeros(2, 3)}, "missing: bias"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "extra": torch.zeros(1)}, "unknown: extra"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, r"weight \(3, 2\) instead of \(2, 3\)"),
        ({"weight": torch.full((2, 3), float("nan")), "bias": torch.zeros(2)}, "not finite.*weight"),
        ({"weight": torch.zeros(2, 3, dtype=torch.int32), "bias": torch.zeros(2)}, "not numbers of this kind: weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path, weights, words):
    save_file(weights, tmp_path / "w.safetensors")
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(ValueError, match=words):
        load_weights(model, read_weights(tmp_path / "w.safetensors"), "w.safetensors")
    assert torch.equal(model.weight, before)


def test_a_new_head_is_kept_only_when_asked(tmp_path):
    class Net(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, classes)

    weights = dict(Net(7).state_dict())
    with pytest.raises(ValueError, match=r"head\.weight"):
        load_weights(Net(5), weights, "w")
    model = Net(5)
    fresh = {name: value.clone() for name, value in model.head.state_dict().items()}
    report = fit(model, weights, "w")
    assert report.new == ["head.weight", "head.bias"]
    assert all(torch.equal(model.head.state_dict()[name], value) for name, value in fresh.items())
    assert torch.equal(model.body.weight, weights["body.weight"])
