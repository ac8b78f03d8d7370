"""A detector as it is taken elsewhere: boxes of a batch of any size in one list, by operators that exporters know."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torchvision.ops import nms

from nearsight.detection.anchors import DetectorOutputs
from nearsight.detection.outputs import best_of_level
from nearsight.detection.retinanet import RetinaNet

OUTPUTS = ("boxes", "scores", "labels", "image")


class BoxesOf(nn.Module):
    """Normalised images [B, 3, H, W] → boxes [n, 4], scores [n], labels [n] and which image [n] each is in.

    What `outputs.postprocess` finds, but for the lower bound of scores, which is the caller's: up to `max_detections`
    of each image, best first. Boxes of different images and classes never suppress each other: for that they are moved
    apart, each pair of image and class to a place of its own.
    """

    def __init__(
        self,
        model: RetinaNet,
        *,
        nms_threshold: float = 0.5,
        candidates_per_level: int = 1000,
        max_detections: int = 100,
    ) -> None:
        super().__init__()
        self.model, self.nms_threshold = model, nms_threshold
        self.candidates_per_level, self.max_detections = candidates_per_level, max_detections

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch, _, height, width = images.shape
        raw: DetectorOutputs = self.model(images)
        levels = [best_of_level(*level, self.candidates_per_level) for level in zip(*raw, strict=True)]
        boxes, scores, labels = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
        image = torch.arange(batch, device=scores.device)[:, None].expand_as(labels).flatten()
        scores, labels = scores.flatten(), labels.flatten()
        cols, rows = boxes.flatten(0, 1).unflatten(1, (2, 2)).unbind(2)  # left and right, top and bottom
        boxes = torch.stack((cols.clamp(0, width), rows.clamp(0, height)), dim=2).flatten(1)
        in_a_row = math.ceil(math.sqrt(self.model.num_classes))
        in_a_col = math.ceil(self.model.num_classes / in_a_row)
        right = (labels % in_a_row) * (width + 1)
        down = (image * in_a_col + labels // in_a_row) * (height + 1)
        kept = nms(boxes + torch.stack((right, down, right, down), dim=1), scores, self.nms_threshold)
        # The place of each among those of its image, which are in the order of their scores.
        is_in = image[kept][:, None] == torch.arange(batch, device=kept.device)
        place = (is_in.long().cumsum(dim=0) * is_in).sum(dim=1)
        kept = kept[place <= self.max_detections]
        return boxes[kept], scores[kept], labels[kept], image[kept]
