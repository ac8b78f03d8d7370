"""From a detector's raw outputs to a loss, and to boxes. Both are functions: the model's forward does neither."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder, encode_boxes
from torchvision.ops import batched_nms, clip_boxes_to_image, sigmoid_focal_loss

from nearsight.detection.anchors import UNDECIDED, BoxTargets, match_anchors


class DetectorOutputs(NamedTuple):
    """Raw outputs, one tensor for each level, finest first. A level has N = rows·cols·A anchors."""

    class_logits: tuple[Tensor, ...]
    """[B, N, classes]."""
    box_regression: tuple[Tensor, ...]
    """[B, N, 4]: shift of the centre and logarithm of the size, relative to the anchor."""
    anchors: tuple[Tensor, ...]
    """[N, 4]: not learned, but what the regression is relative to."""


class DetectorLoss(NamedTuple):
    classes: Tensor
    boxes: Tensor

    @property
    def total(self) -> Tensor:
        return self.classes + self.boxes


class Detections(NamedTuple):
    """The boxes found in one image, best first."""

    boxes: Tensor
    """float [n, 4]: (left, top, right, bottom) in pixels."""
    scores: Tensor
    """float [n]."""
    labels: Tensor
    """int64 [n]."""


def detection_loss(outputs: DetectorOutputs, targets: BoxTargets) -> DetectorLoss:
    """Focal loss of the classes and L1 loss of the boxes, as RetinaNet has them.

    Each image's sum over its anchors is divided by the number of anchors that answer for a box; images are averaged.
    """
    logits = torch.cat(outputs.class_logits, dim=1).float()
    regression = torch.cat(outputs.box_regression, dim=1).float()
    anchors = torch.cat(outputs.anchors)
    match = match_anchors(anchors, targets)
    found = match >= 0
    matched_labels = _gather(targets.labels, match) if targets.labels.shape[1] else torch.zeros_like(match)
    wanted = torch.zeros_like(logits).scatter_(2, matched_labels.clamp(min=0)[..., None], 1.0) * found[..., None]
    focal = sigmoid_focal_loss(logits, wanted) * (match != UNDECIDED)[..., None]
    per_image = found.sum(dim=1).clamp(min=1)
    box_loss = (regression - _regression_targets(anchors, targets, match)).abs() * found[..., None]
    return DetectorLoss((focal.sum(dim=(1, 2)) / per_image).mean(), (box_loss.sum(dim=(1, 2)) / per_image).mean())


@torch.no_grad()
def _regression_targets(anchors: Tensor, targets: BoxTargets, match: Tensor) -> Tensor:
    """[B, N, 4]; where an anchor answers for nothing the values are finite and mean nothing."""
    itself = anchors.expand(*match.shape, 4)
    boxes = itself
    if targets.boxes.shape[1]:
        boxes = torch.where((match >= 0)[..., None], _gather(targets.boxes.float(), match), itself)
    return encode_boxes(boxes.flatten(0, 1), itself.flatten(0, 1), anchors.new_ones(4)).unflatten(0, match.shape)


def _gather(values: Tensor, match: Tensor) -> Tensor:
    """[B, M, …] by matches [B, N] → [B, N, …]; what stands for no box takes the first."""
    index = match.clamp(min=0)
    return values.gather(1, index if values.ndim == 2 else index[..., None].expand(-1, -1, values.shape[2]))


@torch.no_grad()
def postprocess(
    outputs: DetectorOutputs,
    sizes: Sequence[tuple[int, int]],
    *,
    score_threshold: float = 0.05,
    nms_threshold: float = 0.5,
    candidates_per_level: int = 1000,
    max_detections: int = 100,
) -> list[Detections]:
    """The boxes of each image: candidates above a score, clipped to the image's (height, width), less near-duplicates.

    `sizes` are the images' own, before padding. COCO's evaluation looks at 100 detections of an image.
    """
    if len(sizes) != len(outputs.class_logits[0]):
        raise ValueError(f"{len(sizes)} sizes for a batch of {len(outputs.class_logits[0])} images")
    levels = [_best_of_level(*level, candidates_per_level) for level in zip(*outputs, strict=True)]
    boxes, scores, labels = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    found = []
    for index, size in enumerate(sizes):
        likely = scores[index] > score_threshold  # the one place where shapes depend on what was found
        own_boxes, own_scores, own_labels = (values[index][likely] for values in (boxes, scores, labels))
        own_boxes = clip_boxes_to_image(own_boxes, size)
        keep = batched_nms(own_boxes, own_scores, own_labels, nms_threshold)[:max_detections]
        found.append(Detections(own_boxes[keep], own_scores[keep], own_labels[keep]))
    return found


def _best_of_level(
    logits: Tensor, regression: Tensor, anchors: Tensor, candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes [B, K, 4], scores [B, K] and labels [B, K] of the K likeliest of a level, for all images at once."""
    num_classes = logits.shape[-1]
    flat = logits.flatten(1)
    best, chosen = flat.topk(min(candidates, flat.shape[1]), dim=1)  # the sigmoid keeps the order
    anchor = chosen // num_classes
    shifts = regression.gather(1, anchor[..., None].expand(-1, -1, 4)).float()
    coder = BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
    boxes = coder.decode_single(shifts.flatten(0, 1), anchors[anchor].flatten(0, 1)).unflatten(0, chosen.shape)
    return boxes, best.float().sigmoid(), chosen % num_classes
