import pytest
import torch

from nearsight.geometry import (
    axis_offsets,
    grid_distances,
    grid_offsets,
    head_centers,
    relative_embeddings,
    window_offsets,
    window_padding,
)


def test_offsets_are_key_minus_query_rows_first():
    offsets = grid_offsets((5, 7))
    query, key = 2 * 7 + 3, 4 * 7 + 1
    assert offsets.shape == (35, 35, 2)
    assert offsets[query, key].tolist() == [2, -2]
    assert axis_offsets(4)[1].tolist() == [-1, 0, 1, 2]


def test_distances_and_embeddings_agree_on_a_rectangle():
    r = relative_embeddings((3, 4), dtype=torch.float64)
    torch.testing.assert_close(r[..., 0].sqrt(), grid_distances((3, 4), dtype=torch.float64))
    torch.testing.assert_close(r[..., 1:], grid_offsets((3, 4), dtype=torch.float64))


@pytest.mark.parametrize(("size", "offsets"), [(1, [0]), (2, [0, 1]), (3, [-1, 0, 1]), (4, [-1, 0, 1, 2])])
def test_windows_lean_right_when_even(size, offsets):
    assert window_offsets(size).tolist() == offsets
    before, after = window_padding(size)
    assert (-before, after) == (offsets[0], offsets[-1])


def test_centres_of_a_square_number_of_heads_fill_the_kernel_rows_first():
    assert head_centers(9).tolist()[:4] == [[-1, -1], [0, -1], [1, -1], [-1, 0]]
    assert head_centers(4).tolist() == [[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]
    assert head_centers(4, on_patches=True).tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]


def test_centres_of_six_heads_are_the_nearest_of_nine():
    centers = {tuple(center) for center in head_centers(6).tolist()}
    assert centers >= {(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)}
    assert len(centers) == 6


def test_no_heads_is_an_error():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        head_centers(0)
