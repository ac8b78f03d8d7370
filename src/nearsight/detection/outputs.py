"""Which box each anchor is matched to, and from a detector's raw outputs to a loss and to boxes.

Loss and boxes are functions: the model's forward does neither. A box is (left, top, right, bottom) in pixels of the
padded image, as in torchvision. Shapes: B images, M boxes of the fullest image, N anchors over all levels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder, encode_boxes
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, sigmoid_focal_loss

from nearsight.detection.anchors import DetectorOutputs

NO_BOX = -1  # label of the places that fill up an image with fewer boxes than M
BACKGROUND, UNDECIDED = -1, -2  # of anchors that are matched to no box; as in torchvision's Matcher


class BoxTargets(NamedTuple):
    """What detectors learn from, in tensors of fixed shape."""

    boxes: Tensor
    """float [B, M, 4]."""
    labels: Tensor
    """int64 [B, M]: the class, or NO_BOX."""


def pad_targets(boxes: Sequence[Tensor], labels: Sequence[Tensor], num_places: int | None = None) -> BoxTargets:
    """Boxes [m, 4] and labels [m] of each image as one batch with `num_places` for each (by default the largest m)."""
    most = max((len(own) for own in boxes), default=0)
    places = most if num_places is None else num_places
    if most > places:
        raise ValueError(f"an image has {most} boxes, but there are places for {places}")
    device = boxes[0].device if boxes else None
    padded = torch.zeros(len(boxes), places, 4, device=device)
    marks = torch.full((len(boxes), places), NO_BOX, dtype=torch.int64, device=device)
    for index, (own, own_labels) in enumerate(zip(boxes, labels, strict=True)):
        padded[index, : len(own)] = own
        marks[index, : len(own)] = own_labels
    return BoxTargets(padded, marks)


@torch.no_grad()
def match_anchors(anchors: Tensor, targets: BoxTargets, foreground: float = 0.5, background: float = 0.4) -> Tensor:
    """int64 [B, N]: for each anchor the box it is matched to, BACKGROUND, or UNDECIDED.

    An anchor is matched to the box it overlaps most if that overlap (IoU) is at least `foreground`, and to none below
    `background`. The anchors that overlap a box more than all others are matched however small the overlap is.
    torchvision's Matcher, without shapes that depend on values, so that a training step can be captured whole. One
    departure: where no anchor touches a box, its Matcher gives the box to every anchor.
    """
    real = targets.labels >= 0
    if targets.boxes.shape[1] == 0:
        return torch.full((len(real), len(anchors)), BACKGROUND, dtype=torch.int64, device=anchors.device)
    overlap = box_iou(targets.boxes.float().flatten(0, 1), anchors).unflatten(0, real.shape)  # [B, M, N]
    overlap = overlap.masked_fill(~real[..., None], -1.0)
    best_overlap, best_box = overlap.max(dim=1)
    match = best_box.masked_fill(best_overlap < foreground, UNDECIDED)
    match = match.masked_fill(best_overlap < background, BACKGROUND)
    most = overlap.amax(dim=2, keepdim=True)
    closest = ((overlap == most) & (most > 0)).any(dim=1)
    return torch.where(closest, best_box, match)


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

    Each image's sum over its anchors is divided by the number of anchors matched to a box; images are averaged.
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
    """[B, N, 4]; where an anchor has no box the values are finite and not used."""
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
    levels = [best_of_level(*level, candidates_per_level) for level in zip(*outputs, strict=True)]
    boxes, scores, labels = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    found = []
    for index, size in enumerate(sizes):
        likely = scores[index] > score_threshold  # the one place where shapes depend on what was found
        own_boxes, own_scores, own_labels = (values[index][likely] for values in (boxes, scores, labels))
        own_boxes = clip_boxes_to_image(own_boxes, size)
        keep = batched_nms(own_boxes, own_scores, own_labels, nms_threshold)[:max_detections]
        found.append(Detections(own_boxes[keep], own_scores[keep], own_labels[keep]))
    return found


def best_of_level(
    logits: Tensor, regression: Tensor, anchors: Tensor, candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes [B, K, 4], scores [B, K] and labels [B, K] of the K likeliest of a level, for all images at once."""
    num_classes = logits.shape[-1]
    flat = logits.flatten(1)
    best, chosen = flat.topk(torch.sym_min(candidates, flat.shape[1]), dim=1)  # the sigmoid keeps the order
    anchor = chosen // num_classes
    shifts = regression.gather(1, anchor[..., None].expand(-1, -1, 4)).float()
    coder = BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
    boxes = coder.decode_single(shifts.flatten(0, 1), anchors[anchor].flatten(0, 1)).unflatten(0, chosen.shape)
    return boxes, best.float().sigmoid(), chosen % num_classes
