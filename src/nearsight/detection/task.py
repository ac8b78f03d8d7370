"""Object detection as a task for the engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearsight.detection.anchors import DetectorOutputs
from nearsight.detection.coco_metrics import CocoEvaluator, Found, Truth, to_corner_and_size
from nearsight.detection.data import DetectionData, open_splits
from nearsight.detection.dataset import DetectionSet, DetectionSplits
from nearsight.detection.model import build_detector
from nearsight.detection.outputs import BoxTargets, detection_loss, postprocess
from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.views import View, boxes_in_image
from nearsight.engine.data import DataTask, check_batch
from nearsight.engine.distributed import World
from nearsight.engine.task import Batch, Inputs, ProcessContext
from nearsight.reports.page import Page
from nearsight.runs.layout import CATEGORIES


class DetectionTask(DataTask):
    """COCO's mAP on images with boxes, by a RetinaNet."""

    recipe: DetectionRecipe
    data: DetectionData

    def __init__(
        self, recipe: DetectionRecipe, splits: DetectionSplits | None = None, *, fit_batch: bool = False
    ) -> None:
        if splits is None:
            splits = open_splits(recipe)
            recipe = check_batch(recipe, splits, fit=fit_batch)
        self.recipe = recipe
        self.data = DetectionData(recipe, splits)
        self.num_classes = len(self.data.splits.train.classes)
        self._started: list[str] = []
        """What became of the weights that it starts from."""

    def files(self) -> dict[str, str]:
        train = self.data.splits.train
        listed = [{"id": number, "name": name} for number, name in zip(train.category_ids, train.classes, strict=True)]
        return {CATEGORIES: json.dumps(listed, indent=1) + "\n"}

    def build_model(self) -> nn.Module:
        model = build_detector(self.recipe, self.num_classes)
        self._started = model.weights_report.lines() if self.recipe.weights else []  # type: ignore[operator, union-attr]
        return model

    def describe(self) -> list[str]:
        return [*super().describe(), *self._started]

    def feed(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        self.data.load(context.device)
        return super().feed(start_step, context)

    def prepare(self, inputs: Inputs, step: Tensor, first: int) -> Batch:
        return self.data.prepare(inputs)

    def loss(self, outputs: DetectorOutputs, batch: Batch) -> Tensor:
        return detection_loss(outputs, BoxTargets(*batch.targets)).total

    def evaluate(self, model: nn.Module, split: str, context: ProcessContext) -> Iterable[tuple[str, float]]:
        return self.evaluator(model, split, context).summary().items()

    def evaluator(self, model: nn.Module, split: str, context: ProcessContext) -> CocoEvaluator:
        """COCO's evaluation of the model's detections on a split; every process gets those of all."""
        images = self.data.split(split)
        shares = World(context.rank, context.world_size).gather(dict(self.detections(model, split, context)))
        return compared({index: one for share in shares for index, one in share.items()}, images)

    @torch.no_grad()
    def detections(self, model: nn.Module, split: str, context: ProcessContext) -> Iterator[tuple[int, Found]]:
        """This process's share of a split: an image's index in the set, and its detections, in its own pixels."""
        model.eval()
        images = self.data.split(split)
        for batch in self.data.eval_batches(split, context):
            with context.autocast():
                outputs = model(batch.images)
            indices = batch.indices.tolist()
            views = [self.data.eval_view(split, index) for index in indices]
            sizes = [(int(images.sizes[index, 0]), int(images.sizes[index, 1])) for index in indices]
            yield from zip(indices, found_in(outputs, views, sizes), strict=True)

    def observe(self, model: nn.Module, context: ProcessContext) -> Iterable[tuple[str, Any]]:
        """Nothing: in batches of padded images, attention to the padding would be measured as well."""
        return ()

    def report_pages(self, model: nn.Module, records: list[dict[str, Any]], context: ProcessContext) -> list[Page]:
        from nearsight.detection.report import detection_pages

        return detection_pages(model, self, context)


def found_in(
    outputs: DetectorOutputs, views: Sequence[View], sizes: Sequence[tuple[int, int]], **options: Any
) -> list[Found]:
    """Detections from outputs on images of (height, width) `sizes`, seen in plain `views`, in the images' pixels."""
    found = []
    detections = postprocess(outputs, [(view.height, view.width) for view in views], **options)
    for one, view, size in zip(detections, views, sizes, strict=True):
        boxes = boxes_in_image(one.boxes.double().cpu().numpy(), size, view)
        found.append(Found(to_corner_and_size(boxes), one.scores.double().cpu().numpy(), one.labels.cpu().numpy()))
    return found


def compared(found: dict[int, Found], images: DetectionSet) -> CocoEvaluator:
    """COCO's evaluation of detections, by index of the image in a set, against the boxes of the set."""
    if not found:
        raise ValueError(f"none of the {len(images)} images to measure on could be read, such as {images.names[0]}")
    evaluator = CocoEvaluator(len(images.classes))
    for index in sorted(found):
        evaluator.add(int(images.image_ids[index]), found[index], truth_of(images, index))
    return evaluator


def truth_of(images: DetectionSet, index: int) -> Truth:
    annotations = images.annotations(index)
    return Truth(to_corner_and_size(annotations.boxes), annotations.labels, annotations.crowd, annotations.areas)


def coco_results(found: Iterable[tuple[int, Found]], category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Detections by image id in COCO's results format."""
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[int(label)],
            "bbox": [round(float(value), 3) for value in box],
            "score": round(float(score), 6),
        }
        for image_id, one in found
        for box, score, label in zip(*one, strict=True)
    ]
