"""Anchors, matching and the loss, against torchvision's pieces one by one."""

import pytest
import torch
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import box_iou

from nearsight.detection.anchors import AnchorGrid, DetectorOutputs, anchor_sizes
from nearsight.detection.outputs import (
    BACKGROUND,
    NO_BOX,
    BoxTargets,
    detection_loss,
    match_anchors,
    pad_targets,
    postprocess,
)


def random_boxes(count, generator, extent=200.0):
    corner = torch.rand(count, 2, generator=generator) * extent
    size = torch.rand(count, 2, generator=generator) * extent / 2 + 1
    return torch.cat((corner, corner + size), dim=1)


def test_anchor_sizes_are_retinanets():
    assert anchor_sizes(3)[0] == (32, 40, 50)
    assert anchor_sizes(3)[4] == (512, 645, 812)
    assert anchor_sizes(2, smallest=16, num_levels=2) == ((16, 22), (32, 45))


def test_anchors_equal_torchvisions_where_strides_divide():
    sizes = anchor_sizes(3)
    grids = [(16, 32), (8, 16), (4, 8), (2, 4), (1, 2)]
    strides = [[torch.tensor(8 * 2**level)] * 2 for level in range(5)]
    expected = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5).grid_anchors(grids, strides)
    for one, other in zip(AnchorGrid(sizes)(grids), expected, strict=True):
        assert torch.equal(one, other)


def test_anchors_survive_half_precision():
    grid = [(40, 60)] * 5
    assert all(torch.equal(a, b) for a, b in zip(AnchorGrid()(grid), AnchorGrid().half()(grid), strict=True))


@pytest.mark.parametrize("count", [1, 3, 17])
def test_matches_equal_torchvisions(count):
    generator = torch.Generator().manual_seed(count)
    anchors = torch.cat(AnchorGrid()([(20, 26), (10, 13), (5, 7), (3, 4), (2, 2)]))
    images = [random_boxes(count, generator), random_boxes(count + 2, generator)]
    targets = pad_targets(images, [torch.zeros(len(own), dtype=torch.int64) for own in images], count + 5)
    matcher = Matcher(0.5, 0.4, allow_low_quality_matches=True)
    for found, own in zip(match_anchors(anchors, targets), images, strict=True):
        assert torch.equal(found, matcher(box_iou(own, anchors)))


def test_a_box_that_no_anchor_touches_is_nobodys():
    anchors = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    far = BoxTargets(torch.tensor([[[90.0, 90.0, 99.0, 99.0]]]), torch.tensor([[0]]))
    assert match_anchors(anchors, far).tolist() == [[BACKGROUND]]


def test_images_without_boxes_are_background():
    anchors = torch.cat(AnchorGrid()([(4, 5)] * 5))
    for places in (0, 3):
        empty = BoxTargets(torch.zeros(2, places, 4), torch.full((2, places), NO_BOX))
        assert (match_anchors(anchors, empty) == BACKGROUND).all()


def outputs_for(anchors, batch, classes, generator):
    logits = torch.randn(batch, len(anchors), classes, generator=generator, requires_grad=True)
    regression = torch.randn(batch, len(anchors), 4, generator=generator, requires_grad=True)
    return DetectorOutputs((logits,), (regression,), (anchors,))


@pytest.mark.parametrize("places", [2, 9])
def test_loss_and_gradients_ignore_empty_places(places):
    generator = torch.Generator().manual_seed(3)
    anchors = torch.cat(AnchorGrid()([(8, 9), (4, 5), (2, 3), (1, 2), (1, 1)]))
    boxes, labels = random_boxes(2, generator, 60.0), torch.tensor([1, 0])
    outputs = outputs_for(anchors, 1, 3, generator)
    expected = detection_loss(outputs, pad_targets([boxes], [labels])).total
    padded = detection_loss(outputs, pad_targets([boxes], [labels], places)).total
    torch.testing.assert_close(padded, expected)
    padded.backward()
    assert torch.isfinite(outputs.class_logits[0].grad).all()
    assert torch.isfinite(outputs.box_regression[0].grad).all()


def test_loss_of_images_without_boxes_teaches_background_only():
    generator = torch.Generator().manual_seed(3)
    anchors = torch.cat(AnchorGrid()([(2, 3)] * 5))
    outputs = outputs_for(anchors, 2, 3, generator)
    empty = pad_targets([torch.zeros(0, 4)] * 2, [torch.zeros(0, dtype=torch.int64)] * 2)
    loss = detection_loss(outputs, empty)
    assert loss.boxes == 0
    loss.total.backward()
    assert (outputs.class_logits[0].grad > 0).all()


def test_more_boxes_than_places_are_refused():
    with pytest.raises(ValueError, match="an image has 3 boxes, but there are places for 2"):
        pad_targets([torch.zeros(3, 4)], [torch.zeros(3, dtype=torch.int64)], 2)


def test_detections_are_clipped_sorted_and_bounded():
    generator = torch.Generator().manual_seed(5)
    anchors = torch.cat(AnchorGrid()([(8, 9), (4, 5), (2, 3), (1, 2), (1, 1)]))
    outputs = outputs_for(anchors, 2, 3, generator)
    sizes = [(64, 72), (50, 30)]
    for found, (height, width) in zip(postprocess(outputs, sizes, max_detections=20), sizes, strict=True):
        assert len(found.scores) == 20
        assert (found.scores.diff() <= 0).all()
        assert (found.boxes >= 0).all()
        assert (found.boxes[:, 0::2] <= width).all()
        assert (found.boxes[:, 1::2] <= height).all()


def test_nothing_above_the_threshold_gives_no_boxes():
    anchors = torch.cat(AnchorGrid()([(2, 3)] * 5))
    outputs = DetectorOutputs((torch.full((1, len(anchors), 2), -9.0),), (torch.zeros(1, len(anchors), 4),), (anchors,))
    (found,) = postprocess(outputs, [(64, 64)])
    assert found.boxes.shape == (0, 4)
    with pytest.raises(ValueError, match="2 sizes for a batch of 1"):
        postprocess(outputs, [(64, 64)] * 2)
