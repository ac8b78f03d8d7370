"""Training pictures: boxes follow pixels, everything follows from the key, workers and device agree."""

import numpy as np
import pytest
import torch

from nearsight.detection.data import PictureBatches, ResidentPictures, pad_images
from nearsight.detection.dataset import Annotations
from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.sources import open_detection
from nearsight.detection.views import (
    View,
    ViewSettings,
    annotations_in_view,
    boxes_in_image,
    boxes_in_view,
    draw_view,
    plain_view,
    render,
)
from nearsight.images.epochs import BatchStream, epoch_order
from nearsight.images.imageset import BadImage, BadImageLog, TooManyBadImages
from nearsight.images.preprocessing import Preprocessing
from nearsight.images.transforms import normalise

FILL = Preprocessing().fill
PICTURE = (96, 112)
SETTINGS = ViewSettings(size=PICTURE, smallest_scale=0.6, largest_scale=1.6, upside_down=0.5)


def marked_image(size, box):
    """White inside the box (left, top, right, bottom), black outside."""
    image = np.zeros((*size, 3), np.uint8)
    image[box[1] : box[3], box[0] : box[2]] = 255
    return image


@pytest.mark.parametrize("key", range(12))
def test_boxes_follow_the_pixels(key):
    size, box = (75, 130), (40, 20, 80, 50)
    view = draw_view(key, size, SETTINGS)
    picture = render(marked_image(size, box), view, PICTURE, (0, 0, 0))
    rows, cols = np.nonzero(picture[..., 0] > 127)
    placed = boxes_in_view(np.array([box], dtype=np.float64), size, view, PICTURE)[0]
    placed = np.clip(placed, 0, (PICTURE[1], PICTURE[0]) * 2)
    if placed[2] - placed[0] < 2 or placed[3] - placed[1] < 2:
        pytest.skip("the crop does not show the box")
    np.testing.assert_allclose(placed, (cols.min(), rows.min(), cols.max() + 1, rows.max() + 1), atol=1.01)


def test_views_vary_within_their_bounds():
    size = (75, 130)
    views = [draw_view(key, size, SETTINGS) for key in range(300)]
    fit = min(PICTURE[0] / 75, PICTURE[1] / 130)
    heights = np.array([view.height for view in views]) / (75 * fit)
    assert 0.59 < heights.min() < 0.65
    assert 1.55 < heights.max() < 1.61
    assert 0.4 < np.mean([view.mirrored for view in views]) < 0.6
    assert 0.4 < np.mean([view.upside for view in views]) < 0.6
    for view in views:  # all of a small image is shown, and all of the picture is filled by a large one
        assert min(0, view.height - PICTURE[0]) <= view.top <= max(0, view.height - PICTURE[0])
        assert min(0, view.width - PICTURE[1]) <= view.left <= max(0, view.width - PICTURE[1])


def test_boxes_mostly_cut_away_and_crowds_are_not_learned():
    view = View(100, 100, 0, 50, False, False)  # shows columns 50 to 100
    boxes = np.array([[10.0, 10.0, 55.0, 20.0], [10.0, 10.0, 90.0, 20.0], [60.0, 60.0, 80.0, 90.0]])
    annotations = Annotations(boxes, np.array([0, 1, 2]), np.array([False, False, True]), np.ones(3))
    cut, labels = annotations_in_view(annotations, (100, 100), view, (100, 50))
    assert cut.tolist() == [[0, 10, 40, 20]]
    assert labels.tolist() == [1]


def test_plain_views_fit_and_come_back():
    view = plain_view((75, 130), PICTURE)
    assert (view.height, view.width) == (65, 112)
    boxes = np.array([[3.0, 4.0, 50.0, 60.0]])
    placed = boxes_in_view(boxes, (75, 130), view, PICTURE)
    np.testing.assert_allclose(boxes_in_image(placed, (75, 130), view), boxes)


def test_padding_has_the_mean_colour():
    picture = render(np.zeros((10, 20, 3), np.uint8), plain_view((10, 20), (40, 40)), (40, 40), FILL)
    assert (picture[20:] == FILL).all()
    images = torch.from_numpy(picture).permute(2, 0, 1)[None]
    assert normalise(images)[:, :, 20:].abs().max() < 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": -1}, "image_size must be between 0 and 8192"),
        ({"smallest_scale": 2.0}, r"smallest_scale \(2\) must not be above largest_scale \(1\.2\)"),
        ({"smallest_scale": 0.0}, "smallest_scale must be above 0"),
        ({"flip": 1.5}, "flip must be between 0 and 1, got 1.5"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DetectionRecipe(**settings)


@pytest.fixture(scope="module")
def cells():
    return open_detection("bccd").val


def stream_of(images, order, places, *, rank=0, world=1, start_step=0, **options):
    parts = order.parts(4, rank, world, start_step=start_step)
    return BatchStream(PictureBatches(images, SETTINGS, places, FILL), order, parts, **options)


def test_workers_and_device_draw_the_same_pictures(cells):
    order, places = epoch_order(len(cells), 0, 3), cells.most_boxes()
    resident = ResidentPictures(cells, SETTINGS, places, "cpu")
    for step, streamed in enumerate(stream_of(cells, order, places)):
        part = order.part(step, 4)
        inputs = resident(order.indices[part], order.keys[part], {})
        assert torch.equal(inputs["boxes"], streamed["boxes"])
        assert torch.equal(inputs["labels"], streamed["labels"])
        drawn, expected = resident.pictures(inputs["index"], inputs["view"]), normalise(streamed["images"])
        # One is resized once, the other twice: alike, not equal.
        assert (drawn - expected).abs().mean() < 0.05 * expected.std()


def test_a_stream_can_start_anywhere_and_be_shared(cells):
    order, places = epoch_order(len(cells), 1, 0), cells.most_boxes()
    whole = list(stream_of(cells, order, places))
    assert len(whole) == 3
    (last,) = stream_of(cells, order, places, start_step=2)
    assert all(torch.equal(last[name], whole[2][name]) for name in last)
    for rank in (0, 1):
        share = next(iter(stream_of(cells, order, places, rank=rank, world=2)))
        assert all(torch.equal(share[name], whole[0][name][2 * rank : 2 * rank + 2]) for name in share)


def test_workers_change_nothing(cells):
    order, places = epoch_order(len(cells), 1, 0), cells.most_boxes()
    alone, helped = (list(stream_of(cells, order, places, workers=n)) for n in (0, 1))
    for one, other in zip(alone, helped, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


class Broken:
    """A set in which some images cannot be read."""

    def __init__(self, images, bad):
        self._images, self._bad = images, bad

    def __len__(self):
        return len(self._images)

    def read(self, index):
        if index in self._bad:
            raise BadImage(self._images.names[index], "damaged")
        return self._images.read(index)

    def annotations(self, index):
        return self._images.annotations(index)


def test_bad_images_are_replaced_with_their_boxes_and_named(cells):
    order, places = epoch_order(len(cells), 0, 0, shuffle=False), cells.most_boxes()
    log = BadImageLog(len(cells))
    (first, *_) = stream_of(Broken(cells, {1}), order, places, bad=log)
    (sound, *_) = stream_of(cells, order, places)
    assert list(log.reasons) == [cells.names[1]]
    assert torch.equal(first["images"][0], sound["images"][0])
    assert not torch.equal(first["images"][1], sound["images"][1])
    with pytest.raises(TooManyBadImages, match="no readable image among 16 tried"):
        list(stream_of(Broken(cells, set(range(12))), order, places, bad=BadImageLog(100, cap=1.0)))


def test_images_of_mixed_sizes_in_one_batch():
    images = [np.full((5, 9, 3), 200, np.uint8), np.full((8, 4, 3), 100, np.uint8)]
    batch = pad_images(images, FILL)
    assert batch.shape == (2, 3, 8, 9)
    assert (batch[0, :, :5] == 200).all()
    assert (batch[0, 0, 5:] == FILL[0]).all()
    assert (batch[1, :, :, :4] == 100).all()
    assert (batch[1, 2, :, 4:] == FILL[2]).all()
