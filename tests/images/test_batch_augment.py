"""Batched augmentation against Pillow, timm and torchvision, and its promises: per-sample, stateless, compilable."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import RandomResizedCrop

from nearsight.images import batch_geometry as geometry
from nearsight.images.augmentation import Augment, BatchAugment
from nearsight.images.rand_augment import (
    CODE,
    GEOMETRIC,
    NUM_CHOICES,
    OPERATIONS,
    Choice,
    apply_dense,
    apply_sparse,
    luma,
    mean_grey,
)
from nearsight.randomness import hash32, sample_keys, to_unit

HEIGHT, WIDTH = 15, 21
FILL = torch.tensor([124.0, 116.0, 104.0])
EVERYTHING = Augment(size=12, rand_num_ops=2, rand_prob=0.9, erase=0.5, jitter=0.3)


@pytest.fixture
def images(picture) -> torch.Tensor:
    return torch.stack([torch.from_numpy(picture(seed, HEIGHT, WIDTH)).permute(2, 0, 1) for seed in range(8)])


def apply_one(images: torch.Tensor, name: str, magnitude: float, sign: float = 1.0, how=apply_dense, mode="bilinear"):
    ones = torch.ones(len(images))
    choice = Choice(torch.full((len(images),), CODE[name]), ones * magnitude, ones * sign)
    return how(images.float(), choice, FILL, mode)


def pillow(images: torch.Tensor, function) -> torch.Tensor:
    done = [np.asarray(function(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in images]
    return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2).float()


PILLOW_TWINS = {
    "equalize": lambda level, sign: ImageOps.equalize,
    "invert": lambda level, sign: ImageOps.invert,
    "posterize": lambda level, sign: lambda image: ImageOps.posterize(image, max(1, 4 - int(level * 4))),
    "solarize": lambda level, sign: lambda image: ImageOps.solarize(image, 256 - int(level * 256)),
    "color": lambda level, sign: lambda image: ImageEnhance.Color(image).enhance(1 + sign * level * 0.9),
    "contrast": lambda level, sign: lambda image: ImageEnhance.Contrast(image).enhance(1 + sign * level * 0.9),
    "brightness": lambda level, sign: lambda image: ImageEnhance.Brightness(image).enhance(1 + sign * level * 0.9),
    "sharpness": lambda level, sign: lambda image: ImageEnhance.Sharpness(image).enhance(1 + sign * level * 0.9),
    "autocontrast": lambda level, sign: ImageOps.autocontrast,
    "solarize_add": lambda level, sign: (
        lambda image: image.point([min(255, v + int(level * 110)) if v < 128 else v for v in range(256)] * 3)
    ),
}


@pytest.mark.parametrize("magnitude", [0.0, 3.3, 7.0, 10.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", list(PILLOW_TWINS))
def test_colour_operations_do_pillows_arithmetic(images, name, magnitude, sign):
    expected = pillow(images, PILLOW_TWINS[name](magnitude / 10, sign))
    difference = (apply_one(images, name, magnitude, sign) - expected).abs()
    # Pillow blends in single precision, ours may round the other way where a value is whole: one grey level, rarely.
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.02


def test_colour_operations_on_flat_and_tiny_images():
    flat = torch.full((2, 3, 4, 5), 77, dtype=torch.uint8)
    for name in ("equalize", "autocontrast", "contrast", "color", "sharpness"):
        assert torch.equal(apply_one(flat, name, 9.0), flat.float()), name
    dot = torch.full((1, 3, 1, 1), 200, dtype=torch.uint8)
    for name in OPERATIONS:
        assert apply_one(dot, name, 9.0).shape == (1, 3, 1, 1)


def pillow_affine(name: str, strength: float):
    coefficients = {
        "shear_col": (1, strength * 0.3, 0, 0, 1, 0),
        "shear_row": (1, 0, 0, strength * 0.3, 1, 0),
        "translate_col": (1, 0, strength * 0.45 * WIDTH, 0, 1, 0),
        "translate_row": (1, 0, 0, 0, 1, strength * 0.45 * HEIGHT),
    }
    fill = tuple(int(value) for value in FILL)
    if name == "rotate":
        return lambda image: image.rotate(strength * 30, Image.Resampling.BILINEAR, fillcolor=fill)
    return lambda image: image.transform(
        image.size, Image.Transform.AFFINE, coefficients[name], Image.Resampling.BILINEAR, fillcolor=fill
    )


@pytest.mark.parametrize("strength", [-1.0, -0.4, 0.7])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_operations_agree_with_pillow_inside(images, name, strength):
    ours = apply_one(images, name, abs(strength) * 10, math.copysign(1, strength))
    theirs = pillow(images, pillow_affine(name, strength))
    # At the border of the moved image Pillow cuts and we blend with the fill: compare where neither is near it.
    covered = apply_one(torch.full_like(images, 255), name, abs(strength) * 10, math.copysign(1, strength))
    whole = (covered == 255).all(dim=1, keepdim=True).float()
    core = (-torch.nn.functional.max_pool2d(-whole, 3, 1, 1)).bool().expand_as(ours)
    assert core.float().mean() > 0.25
    assert (ours - theirs).abs()[core].max() <= 1.01


def test_shifts_by_whole_pixels_are_exact(images):
    moved = geometry.warp(images.float(), torch.tensor([[1.0, 0, 2], [0, 1, -3]]).expand(8, 2, 3), FILL, "bicubic")
    assert torch.allclose(moved[:, :, 3:, :-2], images.float()[:, :, :-3, 2:], atol=1e-3)
    assert torch.allclose(moved[:, :, :2, :], FILL.view(1, 3, 1, 1).expand(8, 3, 2, WIDTH), atol=1e-3)


def test_dense_and_sparse_are_the_same_bits(images):
    many = images.repeat(8, 1, 1, 1)
    generator = torch.Generator().manual_seed(0)
    choice = Choice(
        torch.arange(64) % len(OPERATIONS),
        torch.rand(64, generator=generator) * 10,
        torch.randint(0, 2, (64,), generator=generator) * 2.0 - 1,
    )
    for mode in ("bilinear", "bicubic"):
        dense, sparse = (how(many.float(), choice, FILL, mode) for how in (apply_dense, apply_sparse))
        assert torch.equal(dense, sparse)
        same = choice.operation == CODE["identity"]
        assert torch.equal(dense[same], many[same].float())


@pytest.mark.parametrize("crop", ["resized", "pad", "none"])
def test_an_image_does_not_notice_its_neighbours(images, crop):
    size = HEIGHT if crop != "none" else None
    square = images[..., :HEIGHT]
    augment = Augment(size=size or HEIGHT, crop=crop, rand_num_ops=2, erase=0.5, jitter=0.2)
    module, keys = BatchAugment(augment), sample_keys(0, 1, torch.arange(8))
    whole = module(square, keys)
    assert whole.shape == (8, 3, HEIGHT, HEIGHT)
    assert torch.isfinite(whole).all()
    shuffled = torch.tensor([5, 2, 7])
    assert torch.equal(module(square[shuffled], keys[shuffled]), whole[shuffled])
    assert not torch.equal(module(square, sample_keys(0, 2, torch.arange(8))), whole)
    assert torch.equal(module(square, keys), whole)


def test_images_can_be_augmented_one_by_one(images):
    square, keys = images[..., :HEIGHT].repeat(3, 1, 1, 1)[:21], sample_keys(0, 1, torch.arange(21))
    module = BatchAugment(Augment(size=HEIGHT, rand_num_ops=2, erase=0.5, jitter=0.2), cropped=True)
    before = square.clone()
    alone = torch.cat([module(one, key) for one, key in zip(square.split(1), keys.split(1), strict=True)])
    assert torch.equal(module(square, keys), alone)
    assert torch.equal(square, before)


@pytest.mark.parametrize("cropped", [True, False])
def test_what_a_cpu_leaves_out_makes_no_difference(images, cropped, monkeypatch):
    """It may look at values, and flips, recolours and erases where that is wanted."""
    square, keys = images[..., :HEIGHT].repeat(5, 1, 1, 1), sample_keys(0, 1, torch.arange(40))
    module = BatchAugment(Augment(size=HEIGHT, rand_num_ops=2, erase=0.5, jitter=0.2), cropped=cropped)
    sparse = module(square, keys)
    monkeypatch.setattr(geometry, "may_ask", lambda tensor: False)
    assert torch.equal(module(square, keys), sparse)


def test_threads_make_no_difference_to_large_images():
    """A sum of their grey values has more digits than float32, and threads add in another order."""
    generator = torch.Generator().manual_seed(0)
    large = torch.randint(0, 256, (2, 3, 500, 500), generator=generator).float()
    before = torch.get_num_threads()
    means = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        means.append(mean_grey(large))
    torch.set_num_threads(before)
    exact = torch.floor(luma(large).double().mean(dim=(1, 2, 3), keepdim=True) + 0.5).float()
    assert torch.equal(means[0], exact)
    assert torch.equal(means[1], exact)


def test_pad_crops_only_move_pixels(images):
    square = images[..., :HEIGHT]
    augment = Augment(size=HEIGHT, crop="pad", padding=3, mean=(0, 0, 0), std=(1, 1, 1))
    keys = sample_keys(0, 0, torch.arange(8))
    out = torch.round(BatchAugment(augment)(square, keys) * 255)
    padded = torch.nn.functional.pad(square.float(), (3, 3, 3, 3))
    for image, result in zip(padded, out, strict=True):
        windows = [
            window if not flip else window.flip(-1)
            for top in range(7)
            for left in range(7)
            for flip in (False, True)
            for window in [image[:, top : top + HEIGHT, left : left + HEIGHT]]
        ]
        assert any(torch.equal(window, result) for window in windows)


def test_pad_crops_reach_every_place_equally():
    unit = to_unit(hash32(torch.arange(8000)[:, None], torch.arange(2)))
    marker = torch.arange(25.0).view(1, 1, 5, 5).expand(8000, 1, 5, 5)
    out = geometry.pad_crop(marker, unit, torch.zeros(8000, dtype=torch.bool), 0, 3)
    places = torch.bincount(out[:, 0, 0, 0].long(), minlength=25).view(5, 5)
    assert places[3:].sum() == places[:, 3:].sum() == 0
    assert (places[:3, :3] - 8000 / 9).abs().max() < 150


def test_resized_crops_have_torchvisions_distribution():
    unit = to_unit(hash32(torch.arange(4000)[:, None], torch.arange(2 * geometry.CROP_TRIES + 2)))
    boxes = geometry.crop_boxes(unit, (0.1, 0.9), (3 / 4, 4 / 3), 40, 30)
    top, left, height, width = boxes.unbind(1)
    assert (boxes[:, :2] >= 0).all()
    assert ((top + height) <= 40).all()
    assert ((left + width) <= 30).all()
    torch.manual_seed(0)
    blank = torch.zeros(3, 40, 30)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(blank, [0.1, 0.9], [3 / 4, 4 / 3]) for _ in range(4000)], dtype=torch.float
    )
    spread = theirs.std(0) / math.sqrt(2000)
    assert ((boxes.mean(0) - theirs.mean(0)).abs() < 5 * spread).all()
    assert ((boxes.std(0) - theirs.std(0)).abs() < 5 * spread).all()


def test_a_crop_that_cannot_fit_takes_the_largest_centred_box():
    unit = torch.rand(3, 22, generator=torch.Generator().manual_seed(0))
    boxes = geometry.crop_boxes(unit, (1.0, 1.0), (1.0, 1.0), 10, 30)
    assert boxes.tolist() == [[0, 10, 10, 10]] * 3


def test_the_whole_image_comes_back_from_a_full_crop(images):
    boxes = torch.tensor([[0.0, 0, HEIGHT, WIDTH]]).expand(8, 4)
    square = torch.nn.functional.interpolate(images.float(), (21, 21), mode="bilinear")
    whole = torch.tensor([[0.0, 0, 21, 21]]).expand(8, 4)
    never = torch.zeros(8, dtype=torch.bool)
    assert torch.allclose(geometry.crop_resize(square, whole, never, 21, "bicubic"), square, atol=1e-2)
    assert torch.allclose(geometry.crop_resize(square, whole, ~never, 21, "bicubic"), square.flip(-1), atol=1e-2)
    wide = geometry.crop_resize(images.float(), boxes, never, 42, "bilinear")
    expected = torch.nn.functional.interpolate(images.float(), (42, 42), mode="bilinear", align_corners=False)
    assert torch.allclose(wide, expected, atol=1e-2)


def test_erasing_follows_its_chance_and_area():
    settings = {"size": 32, "crop": "none", "flip": 0.0, "erase_area": (0.05, 0.25)}
    images, keys = torch.full((3000, 3, 32, 32), 255, dtype=torch.uint8), sample_keys(0, 0, torch.arange(3000))
    plain, out = (BatchAugment(Augment(**settings, erase=chance))(images, keys) for chance in (0.0, 0.4))
    gone = (out != plain).float().mean(dim=(1, 2, 3))
    hit = gone > 0
    assert abs(hit.float().mean() - 0.4) < 0.04
    assert gone[hit].min() > 0.03
    assert gone[hit].max() < 0.28
    assert abs(gone[hit].mean() - 0.15) < 0.01


def test_erased_pixels_are_normal_noise():
    augment = Augment(size=32, crop="none", flip=0.0, erase=1.0, mean=(0, 0, 0), std=(0.01, 0.01, 0.01))
    images = torch.full((200, 3, 32, 32), 255, dtype=torch.uint8)  # normalised to 100, far from noise
    out = BatchAugment(augment)(images, sample_keys(3, 0, torch.arange(200)))
    noise = out[out < 50]
    assert len(noise) > 50_000
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs((noise.abs() < 1).float().mean() - 0.6827) < 0.01
    assert torch.isfinite(geometry.normal_from_unit(torch.tensor([0.0, 1 - 2.0**-24]))).all()


def test_operations_and_flips_are_drawn_evenly():
    marker = torch.zeros(6000, 3, 4, 4, dtype=torch.uint8)
    marker[..., 0] = 255
    out = BatchAugment(Augment(size=4, crop="none"))(marker, sample_keys(0, 0, torch.arange(6000)))
    assert abs((out[:, 0, 0, 0] < 0).float().mean() - 0.5) < 0.03
    seen: list[torch.Tensor] = []

    class Spy(BatchAugment):
        def _rand_augment(self, pixels, unit):
            seen.append(torch.floor(unit[:, 0] * NUM_CHOICES).long())
            return pixels

    Spy(Augment(size=4, crop="none", rand_num_ops=2))(marker, sample_keys(0, 0, torch.arange(6000)))
    for drawn in seen:
        assert (torch.bincount(drawn, minlength=NUM_CHOICES) - 400).abs().max() < 100
    assert (seen[0] == seen[1]).float().mean() < 0.1


def test_workers_leave_the_rest_to_the_device(images):
    square = images[..., :HEIGHT]
    keys = sample_keys(0, 0, torch.arange(8))
    augment = Augment(size=HEIGHT, crop="resized", rand_num_ops=1)
    assert BatchAugment(augment, cropped=True)(square, keys).shape == square.shape
    plain = BatchAugment(Augment(size=HEIGHT, mean=(0, 0, 0), std=(1, 1, 1), flip=0.0), cropped=True)
    assert torch.allclose(plain(square, keys) * 255, square.float(), atol=1e-3)
    with pytest.raises(ValueError, match=r"images are \(15, 21\), expected 15 × 15"):
        plain(images, keys)
    with pytest.raises(ValueError, match="too small to crop 40 × 40"):
        BatchAugment(Augment(size=40, crop="pad"))(square, keys)


def test_one_graph_without_breaks_gives_the_eager_result(images):
    module, keys = BatchAugment(EVERYTHING), sample_keys(0, 0, torch.arange(8))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(images, keys), module(images, keys))


@pytest.mark.slow
def test_generated_code_gives_the_eager_result(images):
    module, keys = BatchAugment(EVERYTHING), sample_keys(0, 0, torch.arange(8))
    assert torch.allclose(torch.compile(module, fullgraph=True)(images, keys), module(images, keys), atol=1e-5)


def test_a_crop_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="crop must be resized, pad or none, got 'centre'"):
        Augment(size=8, crop="centre")  # type: ignore[arg-type]
