"""Our COCO evaluation against the two libraries that people use, on random and on nasty results."""

import contextlib
import io

import numpy as np
import pytest
from faster_coco_eval import COCO as FasterCoco
from faster_coco_eval import COCOeval_faster
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from nearsight.detection.coco_metrics import CocoEvaluator, Found, Truth, to_corner_and_size

NAMES = ("mAP", "mAP50", "mAP75", "mAP_small", "mAP_medium", "mAP_large")
NAMES += ("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large")


def ours(images, num_classes):
    evaluator = CocoEvaluator(num_classes)
    for image_id, (found, truth) in images.items():
        evaluator.add(image_id, found, truth)
    return evaluator.summary()


def as_coco(images, num_classes):
    """The same content as COCO's two structures; ids from 1, since the libraries take a match with id 0 for none."""
    annotations, results = [], []
    for image_id, (found, truth) in images.items():
        for box, label, crowd, area in zip(*truth, strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": int(label),
                    "bbox": list(map(float, box)),
                    "iscrowd": int(crowd),
                    "area": float(area),
                }
            )
        for box, score, label in zip(*found, strict=True):
            results.append(
                {"image_id": image_id, "category_id": int(label), "bbox": list(map(float, box)), "score": float(score)}
            )
    content = {
        "info": {},
        "images": [{"id": image_id, "width": 640, "height": 480} for image_id in images],
        "annotations": annotations,
        "categories": [{"id": label, "name": str(label)} for label in range(num_classes)],
    }
    return content, results


def pycocotools(images, num_classes):
    content, results = as_coco(images, num_classes)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = content
        truth.createIndex()
        # loadRes refuses an empty list; a set without annotations is what it would have made.
        found = truth.loadRes(results) if results else _without_annotations(content)
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return dict(zip(NAMES, evaluation.stats, strict=True))


def _without_annotations(content):
    empty = COCO()
    empty.dataset = {**content, "annotations": []}
    empty.createIndex()
    return empty


def faster(images, num_classes):
    content, results = as_coco(images, num_classes)
    truth = FasterCoco(content)
    evaluation = COCOeval_faster(truth, truth.loadRes(results), "bbox", print_function=lambda *_: None)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return dict(zip(NAMES, evaluation.stats, strict=False))


def assert_equal(one, other):
    for name in NAMES:
        # The libraries say −1 where there is nothing to average; we say NaN.
        expected = float("nan") if other[name] == -1 else other[name]
        assert one[name] == pytest.approx(expected, abs=1e-6, nan_ok=True), name


def boxes_near(rng, count, extent=400.0):
    corner = rng.uniform(0, extent, (count, 2))
    size = np.exp(rng.uniform(np.log(4), np.log(220), (count, 2)))
    return np.concatenate((corner, size), axis=1)


def random_images(seed, num_images=7, num_classes=3, crowd_share=0.0, grid=None):
    """True boxes, and detections near some of them; `grid` rounds all numbers so that overlaps and scores tie."""
    rng = np.random.default_rng(seed)
    images = {}
    for image_id in rng.permutation(np.arange(1, 3 * num_images))[:num_images]:
        count = int(rng.integers(0, 9))
        true_boxes = boxes_near(rng, count)
        near = np.repeat(true_boxes, 2, axis=0)
        near[:, :2] += rng.normal(0, 0.08, (2 * count, 2)) * near[:, 2:]
        near[:, 2:] *= rng.uniform(0.85, 1.15, (2 * count, 2))
        found_boxes = np.concatenate((near, boxes_near(rng, int(rng.integers(0, 6)))))
        scores = rng.uniform(0, 1, len(found_boxes))
        true_labels = rng.integers(0, num_classes, count)
        found_labels = np.concatenate(
            (np.repeat(true_labels, 2), rng.integers(0, num_classes, len(found_boxes) - 2 * count))
        )
        if grid:
            true_boxes, found_boxes = np.ceil(true_boxes / grid) * grid, np.ceil(found_boxes / grid) * grid
            scores = np.ceil(scores * 4) / 4
        crowd = rng.uniform(size=count) < crowd_share
        areas = true_boxes[:, 2] * true_boxes[:, 3] * rng.choice([1.0, 0.6], count)
        images[int(image_id)] = (Found(found_boxes, scores, found_labels), Truth(true_boxes, true_labels, crowd, areas))
    return images


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("crowd_share", "grid"), [(0.0, None), (0.3, None), (0.3, 16.0), (0.0, 32.0)])
def test_random_results_equal_both_libraries(seed, crowd_share, grid):
    images = random_images(seed, crowd_share=crowd_share, grid=grid)
    summary = ours(images, 3)
    assert summary["mAP50"] > 0.05
    assert_equal(summary, pycocotools(images, 3))
    assert_equal(summary, faster(images, 3))


NOTHING_FOUND = Found(np.zeros((0, 4)), np.zeros(0), np.zeros(0))
NOTHING_TRUE = Truth(np.zeros((0, 4)), np.zeros(0), np.zeros(0), np.zeros(0))


def true_boxes(boxes, labels=None, crowd=None, areas=None):
    boxes = np.array(boxes, dtype=np.float64)
    return Truth(
        boxes,
        np.zeros(len(boxes)) if labels is None else np.array(labels),
        np.zeros(len(boxes)) if crowd is None else np.array(crowd),
        boxes[:, 2] * boxes[:, 3] if areas is None else np.array(areas),
    )


def found_boxes(boxes, scores, labels=None):
    return Found(
        np.array(boxes, dtype=np.float64),
        np.array(scores),
        np.zeros(len(boxes)) if labels is None else np.array(labels),
    )


ONE = [[10.0, 20.0, 30.0, 40.0]]
NASTY = {
    "nothing found": {1: (NOTHING_FOUND, true_boxes(ONE)), 2: (NOTHING_FOUND, NOTHING_TRUE)},
    "nothing there": {1: (found_boxes(ONE, [0.9]), NOTHING_TRUE), 2: (NOTHING_FOUND, true_boxes(ONE, [1]))},
    "one right": {1: (found_boxes(ONE, [0.3]), true_boxes(ONE))},
    "found twice, equal scores": {1: (found_boxes(ONE * 2, [0.5, 0.5]), true_boxes(ONE))},
    "two equal true boxes": {1: (found_boxes(ONE * 3, [0.5, 0.9, 0.5]), true_boxes(ONE * 2))},
    "equal scores over images": {
        1: (found_boxes(ONE, [0.5]), NOTHING_TRUE),
        2: (found_boxes(ONE, [0.5]), true_boxes(ONE)),
        3: (found_boxes([[0.0, 0.0, 5.0, 5.0]], [0.5]), true_boxes(ONE)),
    },
    "overlap exactly a half": {1: (found_boxes([[0.0, 0.0, 10.0, 10.0]], [0.9]), true_boxes([[0.0, 0.0, 10.0, 5.0]]))},
    "overlap exactly 0.75": {1: (found_boxes([[0.0, 0.0, 10.0, 10.0]], [0.9]), true_boxes([[0.0, 0.0, 10.0, 7.5]]))},
    "areas on the borders": {
        1: (
            found_boxes([[0, 0, 32, 32], [100, 0, 96, 96], [300, 0, 32, 31.9], [0, 200, 97, 96]], [0.9, 0.8, 0.7, 0.6]),
            true_boxes([[0, 0, 32, 32], [100, 0, 96, 96], [300, 0, 31.9, 32], [0, 200, 96.1, 96]]),
        )
    },
    "a crowd swallows detections": {
        1: (
            found_boxes([[5, 5, 10, 10], [40, 5, 10, 10], [60, 60, 20, 20], [300, 300, 9, 9]], [0.9, 0.8, 0.7, 0.6]),
            true_boxes([[0, 0, 200, 200], [60, 60, 20, 20]], crowd=[1, 0]),
        )
    },
    "crowds only": {1: (found_boxes(ONE, [0.9]), true_boxes(ONE, crowd=[1]))},
    "area of the object": {1: (found_boxes([[0, 0, 40, 40]], [0.9]), true_boxes([[0, 0, 40, 40]], areas=[900.0]))},
    "empty boxes found": {1: (found_boxes([[5, 5, 0, 0], [10, 20, 30, 40]], [0.9, 0.8]), true_boxes(ONE))},
}  # fmt: skip


@pytest.mark.parametrize("case", NASTY)
def test_nasty_results_equal_pycocotools(case):
    assert_equal(ours(NASTY[case], 2), pycocotools(NASTY[case], 2))


def test_more_than_a_hundred_detections():
    rng = np.random.default_rng(0)
    truth = boxes_near(rng, 60)
    found = np.repeat(truth, 4, axis=0) * rng.uniform(0.9, 1.1, (240, 4))
    images = {1: (Found(found, rng.uniform(size=240), np.zeros(240)), true_boxes(truth))}
    assert_equal(ours(images, 1), pycocotools(images, 1))
    assert_equal(ours(images, 1), faster(images, 1))


def test_the_order_of_images_does_not_matter():
    images = random_images(5, grid=16.0)
    assert ours(images, 3) == pytest.approx(ours(dict(reversed(images.items())), 3), abs=0, nan_ok=True)


def test_each_class_has_its_own_average():
    evaluator = CocoEvaluator(3)
    evaluator.add(1, found_boxes(ONE, [0.9]), true_boxes([*ONE, [100.0, 100.0, 9.0, 9.0]], [0, 1]))
    values = evaluator.per_class()
    assert values[0].tolist() == pytest.approx([1.0, 1.0])
    assert values[1].tolist() == [0.0, 0.0]
    assert np.isnan(values[2]).all()


def test_bad_results_are_refused():
    evaluator = CocoEvaluator(2)
    with pytest.raises(ValueError, match="image 4: detections have scores or boxes that are not finite"):
        evaluator.add(4, found_boxes(ONE, [float("nan")]), true_boxes(ONE))
    with pytest.raises(ValueError, match=r"image 4: labels must be in 0\.\.1"):
        evaluator.add(4, found_boxes(ONE, [0.5], [2]), true_boxes(ONE))
    evaluator.add(4, NOTHING_FOUND, NOTHING_TRUE)
    with pytest.raises(ValueError, match="image 4 was added before"):
        evaluator.add(4, NOTHING_FOUND, NOTHING_TRUE)


def test_corners_become_sizes():
    assert to_corner_and_size(np.array([[1.0, 2.0, 5.0, 9.0]])).tolist() == [[1.0, 2.0, 4.0, 7.0]]
