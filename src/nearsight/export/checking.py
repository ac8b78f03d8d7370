"""What is exported, and whether what was written computes the same when it is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nearsight.tasks import Portable

TOLERANCE = 1e-4
_SIDES_MORE = (2, 1)  # strides by which the checked size is larger, in height and width


class Source(NamedTuple):
    """A model to be exported, and where it is from: a run or a saved folder."""

    path: Path
    task: str
    model: Portable


def described(source: Source) -> dict[str, str]:
    """What a file says of its model, as words and JSON."""
    model = source.model
    return {
        "library": f"nearsight {version('nearsight')}",
        "task": source.task,
        "classes": json.dumps(list(model.classes), ensure_ascii=False),
        "preprocessing": json.dumps(model.preprocessing, ensure_ascii=False),
        "stride": str(model.stride),
        "outputs": json.dumps(model.outputs),
    }


def example(model: Portable, batch: int = 2) -> Tensor:
    """Images of the size of training, or the least, rounded to what the stride divides; not square."""
    sides = (max(side, model.least) for side in model.image_size)
    height, width = (-(-side // model.stride) * model.stride for side in sides)
    return _images(batch, height, width + model.stride * (model.stride > 1))


def other_examples(model: Portable, *, any_size: bool) -> list[Tensor]:
    """Images in other numbers and, where any size is taken, of other sizes."""
    shape = example(model).shape[2:]
    sizes = [tuple(shape)]
    if any_size:
        more = tuple(side + extra * model.stride for side, extra in zip(shape, _SIDES_MORE, strict=True))
        sizes.append(more)
    return [_images(batch, *size) for batch, size in zip((3, 2), sizes, strict=False)]


def _images(batch: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height * 10_000 + width)
    return torch.randn(batch, 3, height, width, generator=generator)


@torch.no_grad()
def compare(source: Source, run: Callable[[Tensor], Sequence[Tensor]], images: Sequence[Tensor]) -> str:
    """How far what was written is from the model on these images; a ValueError where that is too far."""
    model, worst = source.model, 0.0
    for batch in images:
        own = model.forward(batch)
        wanted = (own,) if isinstance(own, Tensor) else tuple(own)
        try:
            got = tuple(run(batch))
        except Exception as error:  # whatever it is that runs it raises
            why = " ".join(str(error).split())[:300]
            raise ValueError(f"what was written cannot be run on images {list(batch.shape)}: {why}") from error
        shapes = " and ".join("×".join(map(str, one.shape)) for one in wanted)
        if not model.per_image:
            wanted, got = _aligned(wanted, got)
        for name, right, other in zip(model.outputs, wanted, got, strict=True):
            if right.shape != other.shape or not other.isfinite().all():
                raise ValueError(f"what was written gives {name} of shape {list(other.shape)}, the model {shapes}")
            if right.numel():
                scale = max(float(right.double().abs().max()), 1.0)
                worst = max(worst, float((right.double() - other.double()).abs().max()) / scale)
    if worst > TOLERANCE:
        raise ValueError(f"what was written differs from the model by {worst:.1e} (allowed: {TOLERANCE:g})")
    sizes = ", ".join("×".join(map(str, batch.shape)) for batch in images)
    return f"run on images {sizes}: differs from the model by {worst:.1e} at most (allowed: {TOLERANCE:g})"


def _aligned(wanted: Sequence[Tensor], got: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Boxes of the one with the nearest of the same class and image of the other.

    Where two overlap by just the threshold, a last bit decides which stays: two in a hundred may have no partner.
    """
    boxes, _, labels, image = wanted
    other_boxes, _, other_labels, other_image = got
    apart = torch.cdist(boxes.double(), other_boxes.double(), p=float("inf"))
    apart = apart + 1e9 * ((labels[:, None] != other_labels) | (image[:, None] != other_image))
    if not apart.numel():
        return tuple(wanted), tuple(got)
    nearest, partner = apart.min(dim=1)
    found = nearest < 0.1
    if abs(len(boxes) - len(other_boxes)) > 0.02 * len(boxes) or found.double().mean() < 0.98:
        missing = int((~found).sum())
        raise ValueError(
            f"what was written finds {len(other_boxes)} boxes, without {missing} of the model's {len(boxes)}"
        )
    return tuple(one[found] for one in wanted), tuple(one[partner[found]] for one in got)
