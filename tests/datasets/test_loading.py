"""The same samples in the same order, whatever the number of workers, processes and restarts; bad images replaced."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from nearsight.datasets.labelled import ArrayImages
from nearsight.datasets.loading import LabelledBatches, load_all
from nearsight.datasets.sources import open_data
from nearsight.images.augmentation import Augment, BatchAugment, TrainCrop
from nearsight.images.epochs import BatchStream, device_batches, epoch_order
from nearsight.images.imageset import BadImageLog, TooManyBadImages
from nearsight.images.transforms import EvalTransform
from nearsight.randomness import sample_keys

CROP = Augment(size=8)
FIELDS = ("images", "labels", "indices", "keys")


@pytest.fixture
def images(picture) -> ArrayImages:
    return ArrayImages(np.stack([picture(seed, 11, 9) for seed in range(30)]), np.arange(30) % 3, ("a", "b", "c"))


def collect(stream) -> list[torch.Tensor]:
    batches = list(stream)
    return [torch.cat([batch[field] for batch in batches]) for field in FIELDS]


def stream_in_order(images, batch, *, transform=None, rank=0, world=1, start_step=0, drop_last=True, **options):
    order = epoch_order(len(images), 0, 0, shuffle=False)
    parts = order.parts(batch, rank, world, start_step=start_step, drop_last=drop_last)
    return BatchStream(LabelledBatches(images, transform or EvalTransform(8)), order, parts, **options)


def stream_of(images, *, workers=0, rank=0, world=1, start_step=0, repeats=1):
    order = epoch_order(len(images), 5, 2, repeats=repeats)
    parts = order.parts(6, rank, world, start_step=start_step)
    return BatchStream(LabelledBatches(images, TrainCrop(CROP)), order, parts, workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(images, workers):
    alone, shared = collect(stream_of(images, repeats=3)), collect(stream_of(images, repeats=3, workers=workers))
    assert all(torch.equal(one, other) for one, other in zip(alone, shared, strict=True))
    pixels, labels, indices, keys = alone
    assert pixels.shape == (30, 3, 8, 8)
    assert pixels.dtype == torch.uint8
    assert torch.equal(labels, indices % 3)
    assert torch.equal(keys, torch.from_numpy(epoch_order(30, 5, 2, repeats=3).keys))


@pytest.mark.parametrize("world", [2, 3])
def test_processes_change_nothing(images, world):
    whole = list(stream_of(images))
    parts = [list(stream_of(images, rank=rank, world=world)) for rank in range(world)]
    for step, batch in enumerate(whole):
        for field in FIELDS:
            assert torch.equal(batch[field], torch.cat([part[step][field] for part in parts]))


def test_an_epoch_resumes_at_any_step(images):
    whole = list(stream_of(images))
    assert len(whole) == len(stream_of(images)) == 5
    for start in range(6):
        rest = list(stream_of(images, start_step=start))
        assert len(rest) == 5 - start
        assert all(torch.equal(a["images"], b["images"]) for a, b in zip(whole[start:], rest, strict=True))


def test_the_last_short_batch(images):
    def sizes(batch, rank):
        return [len(b["labels"]) for b in stream_in_order(images, batch, rank=rank, world=2, drop_last=False)]

    assert [sizes(8, rank) for rank in (0, 1)] == [[4, 4, 4, 4], [4, 4, 4, 2]]
    assert sizes(28, 1) == [14]


def test_global_generators_are_left_alone(images):
    def state():
        return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002

    def seed():
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    expected = state()
    for workers in (0, 1):
        seed()
        collect(stream_of(images, workers=workers))
        assert state() == expected


def test_augmentation_differs_between_epochs_and_repeats(images):
    strong = Augment(size=8, rand_num_ops=2, jitter=0.3)
    crop, rest = TrainCrop(strong), BatchAugment(strong, cropped=True)

    def look(epoch, repeat):
        key = sample_keys(0, epoch, 0, repeat)
        return rest(crop(images.read(0), key)[None], torch.tensor([key]))

    looks = [look(epoch, repeat) for epoch in range(3) for repeat in range(3)]
    assert len({one.numpy().tobytes() for one in looks}) >= 8
    assert torch.equal(looks[0], look(0, 0))


def test_resident_and_streamed_images_are_the_same_samples(images):
    order = epoch_order(30, 1, 0)
    parts = order.parts(7, start_step=1)
    streamed = list(BatchStream(LabelledBatches(images, EvalTransform(8, crop_ratio=1.0)), order, parts))
    pixels, labels = load_all(images, 8), torch.from_numpy(images.labels)
    resident = [(pixels[indices], labels[indices], indices, keys) for indices, keys in device_batches(order, parts)]
    assert len(streamed) == len(resident) == 3
    for one, other in zip(streamed, resident, strict=True):
        assert all(torch.equal(one[field], value) for field, value in zip(FIELDS, other, strict=True))


def test_steps_that_make_no_sense_are_refused():
    order = epoch_order(30, 0, 0)
    for options, message in (
        ({"batch": 31}, "batch of 31 is larger than the 30 samples"),
        ({"batch": 10, "start_step": 4}, "cannot start at step 4: the epoch has 3"),
        ({"batch": 10, "world": 3}, "batch of 10 cannot be shared by 3 processes"),
    ):
        with pytest.raises(ValueError, match=message):
            order.parts(**options)


# --- bad images


@pytest.fixture
def damaged(image_folder) -> Path:
    root = image_folder({"train/cat": 12, "train/dog": 12, "val/cat": 1, "val/dog": 1})
    (root / "train" / "cat" / "003.png").write_bytes(b"")
    (root / "train" / "dog" / "004.png").write_bytes(b"text")
    return root


BAD = {"cat/003.png": "empty file", "dog/004.png": "not an image of a known format"}


def test_bad_images_are_replaced_by_their_class_counted_and_named(damaged):
    train = open_data(damaged).train
    results = []
    for workers in (0, 2):
        log = BadImageLog(len(train))
        results.append(collect(stream_in_order(train, 6, workers=workers, bad=log)))
        assert log.reasons == BAD
    assert torch.equal(results[0][0], results[1][0])
    log = BadImageLog(len(train))
    loaded = load_all(train, 8, bad=log)
    assert log.reasons == BAD
    assert "2 of 24 images unreadable (cat/003.png: empty file" in log.summary()
    fit = EvalTransform(8, crop_ratio=1.0)
    cats = [fit(train.read(index)) for index in range(12) if index != 3]
    assert any(torch.equal(loaded[3], cat) for cat in cats)


def test_too_many_bad_images_stop_the_run(damaged):
    train = open_data(damaged).train
    with pytest.raises(TooManyBadImages, match=r"2 of 24 images unreadable.*at most 1 are passed over"):
        load_all(train, 8, bad=BadImageLog(len(train), at_least=1))
    stream = stream_in_order(train, 24, workers=1, bad=BadImageLog(24, cap=0, at_least=0))
    with pytest.raises(TooManyBadImages, match=r"cat/003\.png|dog/004\.png"):
        list(stream)


def test_an_image_is_counted_once_however_often_it_is_met():
    log = BadImageLog(1000, at_least=2)
    assert log.limit == 2
    for _ in range(5):
        log.add({"x": "cut"})
    assert len(log) == 1
    assert BadImageLog(10_000).limit == 10
    assert BadImageLog(10).limit == 5


def test_a_class_without_a_readable_image_is_named(damaged):
    train = open_data(damaged).train
    for file in (damaged / "train" / "cat").iterdir():
        file.unlink()
    with pytest.raises(TooManyBadImages, match=r"class 'cat': no readable image among 12 tried.*No such file"):
        LabelledBatches(train, EvalTransform(8)).read(5, 0, {})
    with pytest.raises(TooManyBadImages):
        list(stream_in_order(train, 12, bad=BadImageLog(24, cap=1.0)))


def test_everything_travels_to_workers_that_do_not_share_memory(damaged, images):
    """Where processes are spawned rather than forked, sets and transforms are pickled."""
    for source in (open_data(damaged).train, open_data("clothing").val, images):
        copy = pickle.loads(pickle.dumps(source))
        assert copy.fingerprint() == source.fingerprint()
        assert np.array_equal(copy.read(0), source.read(0))
    transform = pickle.loads(pickle.dumps(TrainCrop(CROP)))
    assert torch.equal(transform(images.read(0), 5), TrainCrop(CROP)(images.read(0), 5))
