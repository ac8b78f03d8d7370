"""The report's sections on a classifier: where it errs, how its attention developed, what it looks at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.analysis import inspectable, looking, walk
from nearsight.analysis.figures.training import curves_of, draw_gates, draw_nonlocality
from nearsight.analysis.views import GlobalView
from nearsight.classification.data import ImageData, eval_transform
from nearsight.classification.measures import ClassCounts
from nearsight.datasets.labelled import LabelledImages
from nearsight.engine.task import ProcessContext
from nearsight.images.imageset import BadImage
from nearsight.images.transforms import EvalTransform, normalise
from nearsight.reports import plots
from nearsight.reports.page import Page, Picture
from nearsight.text import one_line

if TYPE_CHECKING:
    from nearsight.classification.task import ClassificationTask

_WORST, _SHOWN = 18, 3
CAPTIONS = {
    "Confusion matrix": (
        "Rows are true classes, columns predicted ones. Colour is the share of the row, numbers count images; "
        "everything off the diagonal is wrong."
    ),
    "Worst mistakes": (
        "The images whose true class was given the smallest probability: true class, predicted class, and the "
        "probability of the latter."
    ),
    "Gates": (
        "One line for each head of a gated layer, black is their mean. σ(λ) is the share of its attention that a head "
        "gives to position, the convolution it started as; the rest goes by content, and at 0 the head is plain "
        "attention. Gates move slowly: after a few epochs flat lines are expected, and do not mean that nothing was "
        "learned."
    ),
    "Nonlocality": (
        "How far each layer looks: the distance between a patch and what it attends to, in patches, averaged over "
        "heads, patches and validation images. A layer whose line rises sees more of the picture than it began with."
    ),
    "Attention maps": (
        "Validation pictures as the model sees them, and for each layer how much the patch in the red square attends "
        "to every patch, averaged over heads. Brighter is more; each map has its own scale."
    ),
}


def classification_pages(
    model: nn.Module, task: ClassificationTask, records: list[dict[str, Any]], context: ProcessContext
) -> list[Page]:
    """Confusion, worst mistakes, gates and nonlocality over time, attention maps."""
    data = task.data
    split = "test" if task.has_split("test") else "val"
    rows = ((logits.softmax(dim=1).cpu(), places.cpu()) for logits, places in task.logits(model, split, context))
    probabilities, indices = (torch.cat(column) for column in zip(*rows, strict=True))
    labels = torch.from_numpy(data.split(split).labels)[indices]
    pages = [
        _confusion_page(probabilities, labels, data, split),
        _mistakes_page(probabilities, labels, indices, data, split),
        development_page(records),
        attention_page(model, data, context),
    ]
    return [page for page in pages if page is not None]


def _confusion_page(probabilities: Tensor, labels: Tensor, data: ImageData, split: str) -> Page:
    count = len(data.classes)
    counts = torch.zeros(count, count, dtype=torch.int64)
    counts.index_put_((labels, probabilities.argmax(dim=1)), torch.ones_like(labels), accumulate=True)
    by_class = ClassCounts(counts.sum(dim=1).numpy(), counts.diag().numpy(), counts.sum(dim=0).numpy())
    figures = by_class.per_class(data.classes)
    rows = [("class", "images", "recall: how many are found", "precision: how many so called are right")]
    for name in sorted(figures, key=lambda name: figures[name].get("recall", math.inf)):
        own = figures[name]
        rows.append((name, str(own["n"]), _with_interval(own, "recall"), _with_interval(own, "precision")))
    drawn = _picture("Confusion matrix", plots.confusion_matrix(counts.numpy(), data.classes))
    text = f"The worst first, with 95 % intervals. Of all: {by_class.words(data.classes)}."
    return Page(f"By class ({split})", text, table=tuple(rows), pictures=(drawn,))


def _with_interval(values: dict[str, float], name: str) -> str:
    return (
        f"{values[name]:.1f} % [{values[f'{name}_low']:.1f}, {values[f'{name}_high']:.1f}]" if name in values else "–"
    )


def _mistakes_page(probabilities: Tensor, labels: Tensor, indices: Tensor, data: ImageData, split: str) -> Page | None:
    """The images whose true class was given the smallest probability."""
    given = probabilities.gather(1, labels[:, None])[:, 0]
    wrong = torch.nonzero(probabilities.argmax(dim=1) != labels)[:, 0]
    if not len(wrong):
        return None
    worst = wrong[given[wrong].argsort()[:_WORST]]
    images, pictures, titles = data.split(split), [], []
    for row in worst.tolist():
        guess = int(probabilities[row].argmax())
        pictures.append(images.read(int(indices[row])))
        share = 100 * float(probabilities[row, guess])
        truth = data.classes[int(labels[row])]
        titles.append(f"{one_line(truth)}, taken for\n{one_line(data.classes[guess])} ({share:.0f} %)")
    drawn = _picture("Worst mistakes", plots.picture_grid(pictures, titles))
    return Page(f"Worst mistakes ({split})", pictures=(drawn,))


def development_page(records: list[dict[str, Any]]) -> Page | None:
    """How gates and nonlocality changed during training."""
    curves = curves_of(records)
    if curves is None:
        return None
    drawn = {} if curves.gates is None else {"Gates": draw_gates([curves], panel=(2.2, 2.0))}
    drawn["Nonlocality"] = draw_nonlocality([curves], panel=(5.6, 3.4))
    return Page(
        "How attention developed",
        pictures=tuple(_picture(name, plots.png(figure)) for name, figure in drawn.items()),
    )


def attention_page(model: nn.Module, data: ImageData, context: ProcessContext) -> Page | None:
    """For a few validation pictures, where each layer looks from the centre, averaged over heads."""
    size = data.recipe.image_size
    pictures: list[np.ndarray] = []
    titles: list[str] = []
    marks: list[plots.Mark] = []
    columns = 1
    for label, seen in _one_of_each(data.split("val"), eval_transform(data.recipe)):
        maps = _maps_from_the_centre(
            model, normalise(seen[None].to(context.device), *data.recipe.preprocessing.normalisation)
        )
        if not maps:
            return None
        side = len(maps[0])
        pictures += [seen.permute(1, 2, 0).numpy(), *maps]
        titles += [data.classes[label], *(f"layer {layer}" for layer in range(1, len(maps) + 1))]
        marks.append(plots.Mark(side // 2 * size / side, side // 2 * size / side, size / side))
        marks += [plots.Mark(side // 2, side // 2, 1)] * len(maps)
        columns = len(maps) + 1
    if not pictures:
        return None
    drawn_maps = plots.picture_grid(pictures, titles, columns=columns, marks=marks)
    return Page("Where it looks", pictures=(_picture("Attention maps", drawn_maps),))


def _maps_from_the_centre(model: nn.Module, image: Tensor) -> list[np.ndarray]:
    """How much the middle patch attends to each [rows, cols], layer by layer. None for local attention, which has
    figures of its own, and for models that analysis does not know."""
    try:
        model = inspectable(model)
    except ValueError:
        return []
    maps = []
    with looking(model):
        for view in walk(model, image):
            if not isinstance(view, GlobalView):
                return []
            rows, cols = view.grid_size
            weights = view.patch_weights()[0, :, rows // 2 * cols + cols // 2].mean(dim=0)
            maps.append(weights.reshape(rows, cols).cpu().numpy())
    return maps


def _one_of_each(images: LabelledImages, fit: EvalTransform) -> Iterator[tuple[int, Tensor]]:
    """(label, uint8 [3, size, size]) of the first readable image of a few classes, spread over all of them."""
    classes = np.unique(images.labels)
    chosen = classes[np.linspace(0, len(classes) - 1, min(_SHOWN, len(classes))).round().astype(int)]
    for label in chosen.tolist():
        for index in np.flatnonzero(images.labels == label).tolist():
            try:
                yield label, fit(images.read(index))
            except BadImage:
                continue
            break


def _picture(name: str, content: bytes) -> Picture:
    return Picture(name, content, CAPTIONS[name])
