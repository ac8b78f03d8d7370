import numpy as np
import pytest

from nearsight.images.epochs import balanced_order, epoch_order, local_batch
from nearsight.randomness import sample_keys


def test_an_epoch_shows_every_image_once_and_epochs_differ():
    first, second = (epoch_order(53, 7, epoch) for epoch in (0, 1))
    assert sorted(first.indices) == list(range(53)) == sorted(second.indices)
    assert first.indices.tolist() != second.indices.tolist()
    assert first.indices.tolist() == epoch_order(53, 7, 0).indices.tolist()
    assert first.indices.tolist() != epoch_order(53, 8, 0).indices.tolist()
    assert epoch_order(5, 0, 3, shuffle=False).indices.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("count", "repeats"), [(12, 3), (53, 3), (10, 4)])
def test_repeated_augmentation_keeps_the_length_and_is_fair(count, repeats):
    epochs = [epoch_order(count, 0, epoch, repeats=repeats) for epoch in range(2 * repeats)]
    assert all(len(order) == count for order in epochs)
    for cycle in (epochs[:repeats], epochs[repeats:]):
        shown = np.bincount(np.concatenate([order.indices for order in cycle]), minlength=count)
        assert set(shown) == {repeats}
    # Copies of an image lie side by side, each with its own augmentation.
    order = epochs[0]
    assert order.indices[:repeats].tolist() == [order.indices[0]] * repeats
    assert order.repeats[:repeats].tolist() == list(range(repeats))
    assert len(set(order.keys)) == count
    assert order.keys[1] == sample_keys(0, 0, int(order.indices[1]), 1)


@pytest.mark.parametrize(("count", "size", "repeats"), [(7, 53, 1), (7, 53, 3), (1, 5, 2), (53, 53, 3)])
def test_epochs_of_a_share_are_passes_one_after_the_other(count, size, repeats):
    """Cut out of one endless row of showings: in every r passes each image r times, no key twice."""
    epochs = [epoch_order(count, 4, epoch, size=size, repeats=repeats) for epoch in range(9)]
    assert all(len(order) == size for order in epochs)
    indices, keys = (np.concatenate([getattr(order, name) for order in epochs]) for name in ("indices", "keys"))
    cycle = count * repeats
    whole = indices[: len(indices) // cycle * cycle].reshape(-1, cycle)
    assert all(set(np.bincount(shown, minlength=count)) == {repeats} for shown in whole)
    assert count < 7 or len({tuple(shown) for shown in whole}) == len(whole)
    assert len(set(keys)) == len(keys)
    passes = [epoch_order(count, 4, number, repeats=repeats) for number in range(3)]
    assert indices[: 3 * count].tolist() == np.concatenate([order.indices for order in passes]).tolist()
    assert keys[: 3 * count].tolist() == np.concatenate([order.keys for order in passes]).tolist()


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_balanced_epoch_shows_every_class_as_often_and_every_image_of_a_class(repeats):
    labels = np.array([0] * 100 + [3] * 2 + [1] * 7)  # one to fifty; there is no class 2
    epochs = [balanced_order(labels, 5, epoch, size=109, repeats=repeats) for epoch in range(20)]
    assert all(len(order) == 109 for order in epochs)
    indices, keys = (np.concatenate([getattr(order, name) for order in epochs]) for name in ("indices", "keys"))
    assert len(set(keys)) == len(keys), "every showing has its own augmentation"
    slots = indices[::repeats]
    assert np.array_equal(np.repeat(slots, repeats)[: len(indices)], indices), "copies lie side by side"
    rounds = slots[: len(slots) // 3 * 3].reshape(-1, 3)
    assert all(set(labels[shown]) == {0, 1, 3} for shown in rounds)
    assert len({tuple(labels[shown]) for shown in rounds}) == 6, "in every order"
    for label in (0, 1, 3):
        members = np.flatnonzero(labels == label)
        shown = slots[labels[slots] == label]
        passes = shown[: len(shown) // len(members) * len(members)].reshape(-1, len(members))
        assert all(set(one) == set(members) for one in passes)
        assert len(passes) < 3 or len({tuple(one) for one in passes}) > 1


def test_a_balanced_epoch_is_a_pure_function():
    labels = np.array([0] * 90 + [1] * 10)
    order = balanced_order(labels, 5, 3, size=100)
    assert order.indices.tolist() == balanced_order(labels, 5, 3, size=100).indices.tolist()
    for other in (balanced_order(labels, 6, 3, size=100), balanced_order(labels, 5, 4, size=100)):
        assert order.indices.tolist() != other.indices.tolist()
    halves = [balanced_order(labels, 5, epoch, size=50) for epoch in (6, 7)]
    for name in ("indices", "keys"):  # cut out of one endless row
        assert np.concatenate([getattr(half, name) for half in halves]).tolist() == getattr(order, name).tolist()


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_processes_share_each_global_batch(world):
    order = epoch_order(50, 0, 0)
    for step in range(order.steps(12, drop_last=False)):
        shares = [order.indices[order.part(step, 12, rank, world)] for rank in range(world)]
        assert np.concatenate(shares).tolist() == order.indices[step * 12 : (step + 1) * 12].tolist()


def test_a_batch_that_does_not_divide_is_refused_with_the_sizes_that_would():
    with pytest.raises(ValueError, match=r"batch of 16 .* 3 processes; numbers that fit: 1, 2, 4, 8, 16"):
        local_batch(16, 3)
