"""A classification run as `inspect` and `explore` open it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from nearsight.analysis.pictures import in_turn
from nearsight.classification.data import open_splits
from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.datasets.labelled import LabelledImages
from nearsight.images.transforms import IMAGENET_MEAN, IMAGENET_STD
from nearsight.runs.folder import RunFolder, class_names
from nearsight.runs.layout import CLASSES

_SHOWN = 5


class ClassificationRun:
    """Its network with fresh weights, its validation images, and what its outputs say."""

    in_turn = staticmethod(in_turn)

    def __init__(self, run: RunFolder) -> None:
        self.recipe = run.recipe(ClassificationRecipe).with_changes(init_from="", download=False)
        self.classes: Sequence[str] = class_names(run.path)
        if not self.classes:
            raise ValueError(
                f"{run.path} has no {CLASSES}: it is not a run of `nearsight train`, or it has not started"
            )
        self.picture_size = (self.recipe.image_size, self.recipe.image_size)

    def fresh_model(self) -> nn.Module:
        model = build_classifier(self.recipe, len(self.classes))
        if self.recipe.model.startswith("timm:"):  # trained here, hence on pictures normalised as all are here
            model.pretrained_cfg = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}  # type: ignore[assignment]
        return model

    def validation_images(self) -> LabelledImages:
        return open_splits(self.recipe).val

    def predictions(self, outputs: Tensor, size: tuple[int, int]) -> list[dict[str, Any]]:
        return top_classes(outputs, self.classes)


def top_classes(logits: Tensor, classes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The likeliest classes of the first image of a batch of logits [B, classes]."""
    shares = logits[0].float().softmax(dim=-1)
    best, labels = shares.topk(min(_SHOWN, len(shares)))
    return [
        {"label": classes[label] if label < len(classes) else f"class {label}", "probability": share}
        for share, label in zip(best.tolist(), labels.tolist(), strict=True)
    ]
