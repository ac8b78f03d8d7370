"""Graphs: torch.export's, and ONNX made of it. Batch, height and width stay free."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearsight.export.card import accuracy_words
from nearsight.export.checking import Source, compare, described, example, other_examples

_LARGEST_BATCH, _LARGEST_SIDE = 4096, 8192
_MEASURED_AT_ONCE = 64
DESCRIPTION = "nearsight.json"
"""The name under which a .pt2 file keeps `described`."""


def captured(source: Source) -> tuple[Any, bool]:
    """The model as an exported program, and whether it takes any height and width that its stride divides."""
    model, images = source.model, example(source.model)
    batch = torch.export.Dim("batch", min=1, max=_LARGEST_BATCH)
    least, most = -(-model.least // model.stride), _LARGEST_SIDE // model.stride
    rows, cols = (torch.export.Dim(axis, min=least, max=most) for axis in ("rows", "cols"))
    of_any_size = {0: batch, 2: model.stride * rows, 3: model.stride * cols}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations inside the exporter
        try:
            return torch.export.export(model.forward, (images,), dynamic_shapes=(of_any_size,)), True
        except Exception as error:  # the exporter raises nearly every type
            if source.task != "classification" or hasattr(model.network, "set_input_size"):
                raise ValueError(f"torch.export cannot capture the model: {_first_line(error)}") from error
        # A transformer of timm is built for one size.
        side = model.image_size[0]
        return torch.export.export(model.forward, (images[:, :, :side, :side],), dynamic_shapes=({0: batch},)), False


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def write_program(source: Source, path: Path) -> Sequence[str]:
    program, any_size = captured(source)
    extra = {DESCRIPTION: json.dumps(described(source), ensure_ascii=False)}
    torch.export.save(program, path, extra_files=extra)
    graph = torch.export.load(path).module()

    def run(images: Tensor) -> Sequence[Tensor]:
        out = graph(images)
        return (out,) if isinstance(out, Tensor) else out

    return (compare(source, run, _examples(source, any_size)), *_about(source, any_size))


def write_onnx(source: Source, path: Path) -> Sequence[str]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - the exporter says less clearly that it lacks it
    except ImportError as error:
        raise ValueError(f"--to onnx needs {error.name}: pip install 'nearsight[export]'") from error
    program, any_size = captured(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations inside the exporter
        made = torch.onnx.export(
            program, (), input_names=["images"], output_names=list(source.model.outputs), dynamo=True, verbose=False
        )
    assert made is not None
    made.model.metadata_props.update(described(source))
    made.save(str(path), external_data=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Sequence[Tensor]:
        return [torch.from_numpy(one) for one in session.run(None, {"images": images.numpy()})]

    one = _examples(source, any_size)
    return (compare(source, run, [*one, one[0][:1]]), *_about(source, any_size))


def _examples(source: Source, any_size: bool) -> list[Tensor]:
    images = other_examples(source.model, any_size=any_size)
    side = source.model.image_size[0]
    return images if any_size else [batch[:, :, :side, :side] for batch in images]


def _about(source: Source, any_size: bool) -> list[str]:
    model = source.model
    size = (
        f"any height and width from {model.least} that {model.stride} divides"
        if any_size
        else f"{model.image_size[0]}×{model.image_size[1]} pixels, which this network of timm is built for"
    )
    notes = [f"input: images [batch, 3, height, width], normalised; any batch, {size}"]
    if not model.per_image:
        notes.append("outputs: boxes, scores, labels and image, a row for each box; image says which of the batch")
    return notes


def write_int8(source: Source, path: Path) -> Sequence[str]:
    """ONNX with linear layers of 8-bit weights, and its accuracy beside that of 32 bits on the validation images."""
    if not source.model.per_image:
        raise ValueError("--to onnx-int8 is for classifiers; take --to onnx for a detector")
    exact = path.with_name("float32.onnx")
    notes = write_onnx(source, exact)
    import logging

    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(exact)
    del graph.graph.value_info[:]  # shapes in the exporter's words, which the quantiser does not follow
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)  # it warns that the graph was not optimised before
    try:
        quantize_dynamic(
            graph, path, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul", "Gemm"]
        )
    finally:
        root.setLevel(before)
    both = [onnxruntime.InferenceSession(str(one), providers=["CPUExecutionProvider"]) for one in (exact, path)]
    size = f"{path.stat().st_size / 1e6:.1f} MB instead of {exact.stat().st_size / 1e6:.1f} MB"
    exact.unlink()
    return (*notes[1:], size, _accuracies(source, both))


def _accuracies(source: Source, sessions: Sequence[Any]) -> str:
    """Top-1 of both on the validation images of the run."""
    from nearsight.runs.folder import RunFolder
    from nearsight.tasks import task_kind

    kind = task_kind(source.task)
    try:
        assert kind.inspect is not None
        images = kind.inspect(RunFolder(source.path)).validation_images()
    except (ValueError, OSError) as error:
        return f"its accuracy was not measured: {error}"
    right, count = [0, 0], 0
    for first in range(0, len(images), _MEASURED_AT_ONCE):
        indices = range(first, min(first + _MEASURED_AT_ONCE, len(images)))
        shown = source.model.prepare([images.read(index) for index in indices]).numpy()
        labels = [int(images.labels[index]) for index in indices]
        count += len(labels)
        for place, session in enumerate(sessions):
            best = session.run(None, {"images": shown})[0].argmax(axis=1)
            right[place] += sum(int(one) == label for one, label in zip(best, labels, strict=True))
    exact, small = (accuracy_words(hits, count) for hits in right)
    return f"top-1 on the {count} validation images: float32 {exact}, int8 {small}"
