"""COCO's evaluation of boxes: average precision and recall over overlaps, areas and classes.

Ours rather than a library: the standard one must be compiled, and its matching marks a match by the box's id, so that a
box with id 0 counts as missed. Equal to pycocotools and faster-coco-eval to 1e-6, which the tests hold it to.

Boxes here are (left, top, width, height), float64, as in COCO's files: overlaps that meet a threshold exactly must come
out the same. For one class in one image: D detections, G true boxes, T overlap thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

OVERLAPS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
MAX_DETECTIONS = 100
_RECALL_LIMITS = (1, 10, MAX_DETECTIONS)


class Found(NamedTuple):
    """The detections in one image."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray


class Truth(NamedTuple):
    """The true boxes of one image."""

    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray


class _Matches(NamedTuple):
    """Of one class, one image and one range of areas, detections by falling score."""

    scores: np.ndarray
    """[D]."""
    matched: np.ndarray
    """bool [T, D]: found a true box (or an ignored one)."""
    ignored: np.ndarray
    """bool [T, D]: neither right nor wrong."""
    num_true: int


@dataclass
class CocoEvaluator:
    """Add images in any order; `summary` gives COCO's numbers, NaN where there is nothing to average."""

    num_classes: int
    _images: dict[int, tuple[Found, Truth]] = field(default_factory=dict)

    def add(self, image_id: int, found: Found, truth: Truth) -> None:
        found = Found(*(np.asarray(values, dtype=np.float64) for values in found))
        truth = Truth(*(np.asarray(values, dtype=np.float64) for values in truth))
        if image_id in self._images:
            raise ValueError(f"image {image_id} was added before")
        if not (np.isfinite(found.scores).all() and np.isfinite(found.boxes).all()):
            raise ValueError(f"image {image_id}: detections have scores or boxes that are not finite")
        labels = np.concatenate((found.labels, truth.labels))
        if labels.size and not (labels.min() >= 0 and labels.max() < self.num_classes):
            raise ValueError(f"image {image_id}: labels must be in 0..{self.num_classes - 1}")
        self._images[image_id] = (found, truth)

    def images(self) -> dict[int, tuple[Found, Truth]]:
        return dict(self._images)

    def summary(self) -> dict[str, float]:
        """mAP, mAP50, mAP75, by area, and the average recalls."""
        precision, recall = self._accumulate()
        values = {
            "mAP": _mean(precision["all"]),
            "mAP50": _mean(precision["all"][0]),
            "mAP75": _mean(precision["all"][5]),
        }
        values |= {f"mAP_{area}": _mean(precision[area]) for area in ("small", "medium", "large")}
        values |= {f"AR{limit}": _mean(recall["all", limit]) for limit in _RECALL_LIMITS}
        values |= {f"AR_{area}": _mean(recall[area, MAX_DETECTIONS]) for area in ("small", "medium", "large")}
        return values

    def per_class(self) -> np.ndarray:
        """float [classes, 2]: mAP and mAP50 of each; NaN where a class does not occur."""
        precision = self._accumulate(areas=("all",))[0]["all"]
        return np.array([(_mean(precision[:, :, c]), _mean(precision[0, :, c])) for c in range(self.num_classes)])

    def _accumulate(self, areas: tuple[str, ...] = tuple(AREAS)) -> tuple[dict, dict]:
        """Precision by area [T, recalls, classes], recall by (area, most detections) [T, classes]; −1: no true box."""
        num_overlaps = len(OVERLAPS)
        precision = {area: np.full((num_overlaps, len(RECALLS), self.num_classes), -1.0) for area in areas}
        recall = {
            (area, limit): np.full((num_overlaps, self.num_classes), -1.0) for area in areas for limit in _RECALL_LIMITS
        }
        for label in range(self.num_classes):
            by_area: dict[str, list[_Matches]] = {area: [] for area in areas}
            for image_id in sorted(self._images):
                for area, one in _match_image(*self._images[image_id], label, areas).items():
                    by_area[area].append(one)
            for area, matches in by_area.items():
                num_true = sum(one.num_true for one in matches)
                if num_true == 0:
                    continue
                for limit in _RECALL_LIMITS:
                    curves, reached = _curve(matches, limit, num_true)
                    recall[area, limit][:, label] = reached
                    if limit == MAX_DETECTIONS:
                        precision[area][:, :, label] = curves
        return precision, recall


def to_corner_and_size(boxes: np.ndarray) -> np.ndarray:
    """(left, top, right, bottom) → (left, top, width, height), float64."""
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    return np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1)


def overlaps(found: np.ndarray, truth: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """Intersection over union [D, G]; with a crowd, over the detection's own area: it may cover any part of a crowd."""
    extent = np.minimum(found[:, None, :2] + found[:, None, 2:], truth[None, :, :2] + truth[None, :, 2:])
    extent = extent - np.maximum(found[:, None, :2], truth[None, :, :2])
    intersection = np.where((extent > 0).all(axis=2), extent[..., 0] * extent[..., 1], 0.0)
    own = (found[:, 2] * found[:, 3])[:, None]
    union = np.where(crowd[None, :], own, own + (truth[:, 2] * truth[:, 3])[None, :] - intersection)
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=intersection > 0)


def _match_image(found: Found, truth: Truth, label: int, areas: tuple[str, ...]) -> dict[str, _Matches]:
    mine, theirs = found.labels == label, truth.labels == label
    if not mine.any() and not theirs.any():
        return {}
    order = np.argsort(-found.scores[mine], kind="stable")[:MAX_DETECTIONS]
    boxes, scores = found.boxes[mine][order], found.scores[mine][order]
    crowd = truth.crowd[theirs].astype(bool)
    overlap = overlaps(boxes, truth.boxes[theirs], crowd)
    found_areas, true_areas = boxes[:, 2] * boxes[:, 3], truth.areas[theirs]
    result = {}
    for area in areas:
        low, high = AREAS[area]
        ignored_truth = crowd | (true_areas < low) | (true_areas > high)
        matched, ignored = _match(overlap, ignored_truth, crowd)
        ignored |= ~matched & ((found_areas < low) | (found_areas > high))[None, :]
        result[area] = _Matches(scores, matched, ignored, int((~ignored_truth).sum()))
    return result


def _match(overlap: np.ndarray, ignored_truth: np.ndarray, crowd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Greedy by score: each detection takes the free true box it overlaps most, ignored ones only if no other is left.

    A crowd is never used up. Equal overlaps go to the later box, ignored ones counting as last, as in the original.
    """
    num_found, num_true = overlap.shape
    matched = np.zeros((len(OVERLAPS), num_found), dtype=bool)
    ignored = np.zeros_like(matched)
    if num_true == 0:
        return matched, ignored
    thresholds = np.minimum(OVERLAPS, 1 - 1e-10)[:, None]
    free = np.ones((len(OVERLAPS), num_true), dtype=bool)
    rows = np.arange(len(OVERLAPS))
    for detection in range(num_found):
        candidates = (overlap[detection][None] >= thresholds) & (free | crowd[None])
        if not candidates.any():
            continue
        proper = candidates & ~ignored_truth[None]
        candidates = np.where(proper.any(axis=1, keepdims=True), proper, candidates)
        score = np.where(candidates, overlap[detection][None], -1.0)
        chosen = num_true - 1 - score[:, ::-1].argmax(axis=1)
        hit = candidates[rows, chosen]
        matched[:, detection] = hit
        ignored[:, detection] = hit & ignored_truth[chosen]
        free[rows[hit], chosen[hit]] = False
    return matched, ignored


def _curve(matches: list[_Matches], limit: int, num_true: int) -> tuple[np.ndarray, np.ndarray]:
    """Precision at each recall [T, recalls] and the recall reached [T], over images, by falling score."""
    scores = np.concatenate([one.scores[:limit] for one in matches])
    order = np.argsort(-scores, kind="stable")
    matched = np.concatenate([one.matched[:, :limit] for one in matches], axis=1)[:, order]
    ignored = np.concatenate([one.ignored[:, :limit] for one in matches], axis=1)[:, order]
    right = np.cumsum(matched & ~ignored, axis=1, dtype=np.float64)
    wrong = np.cumsum(~matched & ~ignored, axis=1, dtype=np.float64)
    recall = right / num_true
    precision = right / (right + wrong + np.spacing(1))
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    curves = np.zeros((len(OVERLAPS), len(RECALLS)))
    for row in range(len(OVERLAPS)):
        place = np.searchsorted(recall[row], RECALLS, side="left")
        reached = place < recall.shape[1]
        curves[row, reached] = envelope[row, place[reached]]
    return curves, recall[:, -1] if recall.shape[1] else np.zeros(len(OVERLAPS))


def _mean(values: np.ndarray) -> float:
    present = values[values > -1]
    return float(present.mean()) if present.size else float("nan")
