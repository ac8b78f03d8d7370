"""The report's sections on a classifier: where it errs, how its attention developed, what it looks at."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.analysis import attention_maps, mean_attention_maps
from nearsight.train import plots
from nearsight.train.image_data import ImageData
from nearsight.train.task import Page, Place

_WORST, _SHOWN = 18, 3


def classification_pages(model: nn.Module, data: ImageData, records: list[dict[str, Any]], place: Place) -> list[Page]:
    """Confusion, worst mistakes, gates and nonlocality over time, attention maps."""
    alone = Place(place.device, precision=place.precision)
    split = "test" if data.splits.test is not None else "val"
    probabilities, labels, indices = predict_split(model, data, split, alone)
    pages = [
        _confusion_page(probabilities, labels, data, split),
        _mistakes_page(probabilities, labels, indices, data, split),
        development_page(records),
        attention_page(model, data, alone),
    ]
    return [page for page in pages if page is not None]


@torch.no_grad()
def predict_split(model: nn.Module, data: ImageData, split: str, place: Place) -> tuple[Tensor, Tensor, Tensor]:
    """(probabilities [N, classes], labels [N], places in the set [N]) on the CPU."""
    model.eval()
    rows = []
    for batch in data.eval_batches(split, place):
        with torch.autocast(place.device.type, place.precision, enabled=place.precision != torch.float32):
            logits = model(batch.images)
        rows.append((logits.float().softmax(dim=1).cpu(), batch.labels.cpu(), batch.indices.cpu()))
    probabilities, labels, indices = (torch.cat(column) for column in zip(*rows, strict=True))
    return probabilities, labels, indices


def _confusion_page(probabilities: Tensor, labels: Tensor, data: ImageData, split: str) -> Page:
    count = len(data.classes)
    counts = torch.zeros(count, count, dtype=torch.int64)
    counts.index_put_((labels, probabilities.argmax(dim=1)), torch.ones_like(labels), accumulate=True)
    right, total = counts.diag(), counts.sum(dim=1)
    rows = [("class", "images", "right")]
    for name, hits, of in zip(data.classes, right.tolist(), total.tolist(), strict=True):
        rows.append((name, str(of), f"{100 * hits / of:.1f} %" if of else "–"))
    picture = plots.confusion_matrix(counts.numpy(), data.classes)
    return Page(f"By class ({split})", table=tuple(rows), pictures=(("Confusion matrix", picture),))


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
        titles.append(f"{_one_line(truth)}, taken for\n{_one_line(data.classes[guess])} ({share:.0f} %)")
    return Page(f"Worst mistakes ({split})", pictures=(("Worst mistakes", plots.picture_grid(pictures, titles)),))


def development_page(records: list[dict[str, Any]]) -> Page | None:
    """How gates and nonlocality changed during training."""
    drawn = (("Gates", plots.gates(records)), ("Nonlocality", plots.nonlocality(records)))
    pictures = tuple((caption, picture) for caption, picture in drawn if picture is not None)
    text = "σ(λ) is the share of attention a head pays to position; nonlocality is how far a layer looks, in patches."
    return Page("How attention developed", text=text, pictures=pictures) if pictures else None


def attention_page(model: nn.Module, data: ImageData, place: Place) -> Page | None:
    """For a few validation pictures, where each layer looks from the centre, averaged over heads."""
    batch = next(iter(data.eval_batches("val", place)))
    spread = torch.linspace(0, len(batch.labels) - 1, _SHOWN).long()  # sets are often sorted by class
    images, places = batch.images[spread.to(place.device)], batch.indices.cpu()[spread].tolist()
    try:
        mean_attention_maps(model, images[:1], [0])
    except ValueError:  # a model without attention, or of an unknown kind
        return None
    source = data.split("val")
    pictures: list[np.ndarray] = []
    titles: list[str] = []
    depth = 0
    for number in range(len(images)):
        maps = attention_maps(model, images[number : number + 1])
        if any(weights.ndim != 4 for weights in maps.values()):  # windows of local attention have their own figures
            return None
        pictures.append(source.read(places[number]))
        titles.append(data.classes[int(source.labels[places[number]])])
        depth = len(maps)
        for layer, weights in maps.items():
            pictures.append(_from_the_centre(weights[0].mean(dim=0)))
            titles.append(f"layer {layer + 1}")
    text = "Each map shows how much the patch in the middle attends to every other, averaged over the layer's heads."
    drawn = plots.picture_grid(pictures, titles, columns=depth + 1)
    return Page("Where it looks", text=text, pictures=(("Attention maps", drawn),))


def _one_line(name: str) -> str:
    return name.replace("\n", " ")


def _from_the_centre(weights: Tensor) -> np.ndarray:
    """[N, N] over a square grid → the middle query's map [side, side]."""
    side = round(weights.shape[0] ** 0.5)
    query = (side // 2) * side + side // 2
    return weights[query].reshape(side, side).float().cpu().numpy()
