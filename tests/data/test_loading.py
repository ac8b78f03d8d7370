"""The same samples in the same order, whatever the number of workers, processes and restarts; bad images replaced."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from nearsight.datasets.sources import open_data
from nearsight.datasets.stored import ArrayImages
from nearsight.images.augmentation import Augment
from nearsight.images.imageset import BadImage
from nearsight.images.loading import BatchStream, ResidentStream, load_all
from nearsight.images.order import epoch_order
from nearsight.images.transforms import EvalTransform, TrainTransform
from nearsight.images.unreadable import BadImageLog, TooManyBadImages, read_or_replace
from nearsight.randomness import sample_keys

STRONG = Augment(size=8, rand_num_ops=2, jitter=0.3)


@pytest.fixture
def images(picture) -> ArrayImages:
    return ArrayImages(np.stack([picture(seed, 11, 9) for seed in range(30)]), np.arange(30) % 3, ("a", "b", "c"))


def collect(stream) -> list[torch.Tensor]:
    batches = list(stream)
    return [torch.cat([batch[field] for batch in batches]) for field in range(4)]


def stream_of(images, *, workers=0, rank=0, world=1, start_step=0, repeats=1, **options):
    order = epoch_order(len(images), 5, 2, repeats=repeats)
    transform = TrainTransform(STRONG)
    return BatchStream(
        images, order, 6, transform=transform, workers=workers, rank=rank, world=world, start_step=start_step, **options
    )


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
        for field in range(4):
            assert torch.equal(batch[field], torch.cat([part[step][field] for part in parts]))


def test_an_epoch_resumes_at_any_step(images):
    whole = list(stream_of(images))
    assert len(whole) == len(stream_of(images)) == 5
    for start in range(6):
        rest = list(stream_of(images, start_step=start))
        assert len(rest) == 5 - start
        assert all(torch.equal(a.images, b.images) for a, b in zip(whole[start:], rest, strict=True))


def test_the_last_short_batch(images):
    order = epoch_order(30, 0, 0, shuffle=False)
    options = {"transform": EvalTransform(8), "drop_last": False, "world": 2}
    sizes = [[len(batch.labels) for batch in BatchStream(images, order, 8, rank=r, **options)] for r in (0, 1)]
    assert sizes == [[4, 4, 4, 4], [4, 4, 4, 2]]
    assert [len(b.labels) for b in BatchStream(images, order, 28, rank=1, **options)] == [14]


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
    transform = TrainTransform(STRONG)
    looks = [transform(images.read(0), sample_keys(0, epoch, 0, repeat)) for epoch in range(3) for repeat in range(3)]
    assert len({look.numpy().tobytes() for look in looks}) >= 8
    assert torch.equal(looks[0], transform(images.read(0), sample_keys(0, 0, 0, 0)))


def test_resident_and_streamed_images_are_the_same_samples(images):
    order = epoch_order(30, 1, 0)
    streamed = list(BatchStream(images, order, 7, transform=EvalTransform(8, crop_ratio=1.0), start_step=1))
    resident = list(ResidentStream(load_all(images, 8), torch.from_numpy(images.labels), order, 7, start_step=1))
    assert len(streamed) == len(resident) == 3
    for one, other in zip(streamed, resident, strict=True):
        assert all(torch.equal(one[field], other[field]) for field in range(4))


def test_steps_that_make_no_sense_are_refused(images):
    order = epoch_order(30, 0, 0)
    for options, message in (
        ({"batch": 31}, "batch of 31 is larger than the 30 samples"),
        ({"batch": 10, "start_step": 4}, "cannot start at step 4: the epoch has 3"),
        ({"batch": 10, "world": 3}, "batch of 10 cannot be shared by 3 processes"),
    ):
        with pytest.raises(ValueError, match=message):
            BatchStream(images, order, transform=EvalTransform(8), **options)


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
        order = epoch_order(len(train), 0, 0)
        stream = BatchStream(train, order, 6, transform=EvalTransform(8), workers=workers, bad=log)
        results.append(collect(stream))
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
    stream = BatchStream(
        train,
        epoch_order(24, 0, 0),
        24,
        transform=EvalTransform(8),
        workers=1,
        bad=BadImageLog(24, policy="error"),
    )
    with pytest.raises(BadImage, match=r"cat/003\.png|dog/004\.png"):
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
        read_or_replace(train, 5, {})
    with pytest.raises(TooManyBadImages):
        list(BatchStream(train, epoch_order(24, 0, 0), 12, transform=EvalTransform(8), bad=BadImageLog(24, cap=1.0)))


def test_everything_travels_to_workers_that_do_not_share_memory(damaged, images):
    """Where processes are spawned rather than forked, sets and transforms are pickled."""
    for source in (open_data(damaged).train, open_data("clothing").val, images):
        copy = pickle.loads(pickle.dumps(source))
        assert copy.fingerprint() == source.fingerprint()
        assert np.array_equal(copy.read(0), source.read(0))
    transform = pickle.loads(pickle.dumps(TrainTransform(STRONG)))
    assert torch.equal(transform(images.read(0), 5), TrainTransform(STRONG)(images.read(0), 5))


def test_progress_is_reported(images):
    seen = []
    load_all(images, 4, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (30, 30)
