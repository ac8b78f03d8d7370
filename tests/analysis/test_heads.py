"""Centres, spans and closeness to a convolution: from v_pos, and measured."""

import math

import pytest
import torch

from nearsight.analysis import head_profiles, positional_geometry
from nearsight.analysis.measures import centers_and_spans, convolution_share, convolve_everywhere, offset_kernel
from nearsight.functional import convolutional_v_pos, positional_weights
from nearsight.geometry import head_centers
from nearsight.models import ResNet, VisionTransformer


def test_v_pos_gives_back_its_centres_and_strength():
    centers = torch.tensor([[-1.0, 2.0], [0.5, 0.0], [3.0, -4.0]])
    geometry = positional_geometry(convolutional_v_pos(centers, torch.tensor([0.5, 2.0, 8.0])), (9, 11))
    torch.testing.assert_close(torch.tensor(geometry.center), centers)
    assert geometry.strength == pytest.approx([0.5, 2.0, 8.0])
    assert geometry.span == pytest.approx([1.0, 0.5, 0.25])
    assert geometry.degenerate == [False] * 3


@pytest.mark.parametrize("v_pos", [(0.0, 0.3, 0.0), (0.4, 1.0, -1.0), (-1e-4, 0.3, 0.3), (0.0, 0.0, 0.0)])
def test_heads_without_a_peak_are_measured_on_their_map(v_pos):
    grid_size = (9, 7)
    geometry = positional_geometry(torch.tensor([v_pos, (-1.0, 0.0, 0.0)]), grid_size)
    assert geometry.degenerate == [v_pos != (-1.0, 0.0, 0.0), False]
    weights = positional_weights(torch.tensor([v_pos], dtype=torch.float64), grid_size)[0, 4 * 7 + 3].reshape(9, 7)
    row = (weights.sum(1) * torch.arange(-4, 5)).sum().item()
    col = (weights.sum(0) * torch.arange(-3, 4)).sum().item()
    assert geometry.center[0] == pytest.approx((row, col))
    assert math.isfinite(geometry.span[0])
    assert abs(row) <= 4


def test_measured_centre_and_span_of_a_gaussian():
    # Wide enough for the sum over the grid to be the Gaussian's integral, narrow enough to stay clear of the edges.
    grid_size, strength = (41, 45), 0.3
    weights = positional_weights(convolutional_v_pos(torch.tensor([[2.0, -1.0]]), strength).double(), grid_size)
    middle = 20 * 45 + 22
    only = weights[:, middle : middle + 1].expand(-1, weights.shape[1], -1)
    center, span = centers_and_spans(only[None], grid_size)
    # Seen from every query, the same keys: the mean of the queries is the middle of the grid.
    assert center[0, 0].tolist() == pytest.approx([2.0, -1.0], abs=1e-6)
    assert span[0, 0].item() == pytest.approx((2 * strength) ** -0.5, abs=1e-4)


def test_a_convolution_is_one_and_noise_is_not():
    grid_size = (9, 11)
    exact = positional_weights(convolutional_v_pos(head_centers(9), 60.0), grid_size)
    share = convolution_share(exact.square().sum((-2, -1)), exact, grid_size)
    torch.testing.assert_close(share, torch.ones(9))
    noise = torch.softmax(8 * torch.randn(4, 99, 99), dim=-1)
    assert convolution_share(noise.square().sum((-2, -1)), noise, grid_size).max() < 0.2
    # A head whose maps follow the picture is far from a convolution even when their mean is a perfect one.
    shifted = exact.roll(1, dims=-1)
    two = torch.stack((exact, shifted))
    assert convolution_share(two.square().sum((-2, -1)).mean(0), two.mean(0), grid_size).max() < 0.6


def test_offset_kernel_and_its_convolution_are_inverse():
    grid_size = (8, 10)
    kernel = torch.zeros(2, 15, 19)
    kernel[0, 6:9, 8:11] = torch.rand(3, 3)
    kernel[1, 7, 9] = 1
    kernel = kernel / kernel.sum((-2, -1), keepdim=True)
    maps = convolve_everywhere(kernel, grid_size)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 80))
    torch.testing.assert_close(offset_kernel(maps, grid_size), kernel)
    torch.testing.assert_close(maps[1], torch.eye(80))


def test_profiles_of_a_fresh_convit():
    model = VisionTransformer(
        width=36, depth=3, num_heads=9, num_gated_blocks=2, patch_size=8, img_size=(72, 88), locality_strength=20.0,
        gate=40.0, num_classes=3,
    )  # fmt: skip
    profiles = head_profiles(model, torch.randn(3, 3, 72, 88), batch_size=2)
    assert len(profiles) == 27
    assert [(profile.layer, profile.head) for profile in profiles[:10]] == [(0, h) for h in range(9)] + [(1, 0)]
    for profile, center in zip(profiles[:9], head_centers(9).tolist(), strict=True):
        assert profile.center == pytest.approx(center)
        # Queries on the edge that a head looks over stay where they are: one row of 9, one column of 11.
        expected = (center[0] * 8 / 9, center[1] * 10 / 11)
        assert profile.measured_center == pytest.approx(expected, abs=1e-3)
        assert profile.convolution_share == pytest.approx(1.0, abs=1e-4)
        assert profile.gate_value == pytest.approx(1.0)
        assert profile.strength == pytest.approx(20.0)
    plain = profiles[-1]
    assert plain.kind == "plain"
    assert plain.center is None
    assert plain.gate_value is None
    assert plain.entropy == pytest.approx(math.log(99), abs=0.02)


def test_profiles_of_local_layers():
    model = ResNet(layers=(1, 1, 1, 1), attention_stages=(3,), num_heads=4, kernel_size=5)
    x = torch.randn(3, 3, 192, 224)
    before = head_profiles(model, x)
    assert len(before) == 4
    assert all(0 < profile.convolution_share < 1 for profile in before)
    mixer = model.layer3[0].mixer
    with torch.no_grad():
        mixer.weight[:2].zero_()  # no queries: equal logits average the window, whatever the picture
    for profile in head_profiles(model, x, batch_size=2):
        assert profile.convolution_share == pytest.approx(1.0, abs=1e-5)
        assert profile.measured_center == pytest.approx((0.0, 0.0), abs=1e-5)
        assert profile.as_dict()["layer_name"] == "stage 3, block 1"
