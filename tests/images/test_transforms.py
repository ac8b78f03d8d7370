import math

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import _RAND_INCREASING_TRANSFORMS
from torchvision import transforms

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.images.augmentation import Augment, BatchAugment, TrainCrop
from nearsight.images.mixing import Mixing
from nearsight.images.rand_augment import NUM_CHOICES
from nearsight.images.transforms import BatchEval, EvalTransform
from nearsight.randomness import sample_keys


@pytest.mark.parametrize(("height", "width"), [(70, 90), (91, 40), (28, 28), (20, 33)])
@pytest.mark.parametrize("ratio", [0.875, 0.9, 1.0])
def test_eval_is_torchvisions_resize_and_centre_crop(picture, height, width, ratio):
    pixels = picture(0, height, width)
    twin = transforms.Compose(
        [
            transforms.Resize(math.floor(28 / ratio), transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(28),
        ]
    )
    out = EvalTransform(28, crop_ratio=ratio)(pixels)
    assert np.abs(out.permute(1, 2, 0).numpy().astype(int) - np.asarray(twin(Image.fromarray(pixels)))).max() <= 1


def test_batched_eval_agrees_with_the_per_image_one(picture):
    pixels = picture(1, 64, 64)
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    batched = BatchEval(28, crop_ratio=0.875, mean=(0, 0, 0), std=(1, 1, 1))(images) * 255
    single = EvalTransform(28, crop_ratio=0.875)(pixels)
    assert (batched[0] - single).abs().max() <= 1.01
    untouched = BatchEval(64, mean=(0, 0, 0), std=(1, 1, 1))(images) * 255
    assert torch.allclose(untouched, images.float())


def test_shapes_of_every_kind_become_square(picture):
    for height, width in ((1, 1), (1, 500), (300, 2), (8, 8)):
        pixels = picture(2, height, width)
        for crop in ("resized", "pad", "none"):
            assert TrainCrop(Augment(size=8, crop=crop))(pixels, 3).shape == (3, 8, 8)
        assert EvalTransform(8)(pixels).shape == (3, 8, 8)


def test_workers_do_only_the_crop(picture):
    pixels = picture(3, 20, 20)
    plain = Augment(size=20, crop="none", flip=1.0, rand_num_ops=3, rand_prob=1.0)
    cropped = TrainCrop(plain)(pixels, 1)
    assert torch.equal(cropped, torch.from_numpy(pixels).permute(2, 0, 1))
    rest = BatchAugment(plain, cropped=True)(cropped[None], sample_keys(0, 0, torch.arange(1)))
    assert not torch.allclose(rest, BatchEval(20)(cropped[None]))


@pytest.mark.parametrize("crop", ["resized", "pad"])
def test_crops_follow_from_the_key_alone(picture, crop):
    transform, pixels = TrainCrop(Augment(size=9, crop=crop)), picture(5, 14, 14)
    crops = [transform(pixels, key) for key in (1, 2, 1)]
    assert torch.equal(crops[0], crops[2])
    assert not torch.equal(crops[0], crops[1])


def test_the_strongest_augmentation_never_fails(picture):
    augment = Augment(size=9, rand_num_ops=2, rand_magnitude=10, rand_std=5, rand_prob=1, jitter=1)
    images = torch.from_numpy(picture(4)).permute(2, 0, 1).expand(200, -1, -1, -1)
    out = BatchAugment(augment)(images, sample_keys(0, 0, torch.arange(200)))
    assert out.dtype == torch.float32
    assert out.isfinite().all()
    assert len(_RAND_INCREASING_TRANSFORMS) == NUM_CHOICES


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": -1}, "image_size must be between 0 and 8192"),
        ({"crop": "centre"}, "crop must be one of resized, pad, none; got 'centre'"),
        ({"crop_scale": 1.5}, "crop_scale must be between 0 and 1"),
        ({"flip": 1.5}, "flip must be between 0 and 1"),
        ({"randaugment_magnitude": 11.0}, r"randaugment_magnitude must be between 0 and 10, got 11"),
        ({"erasing": -0.1}, "erasing must be between 0 and 1"),
        ({"mixup": -0.5}, "mixup must be at least 0"),
    ],
)
def test_bad_settings_are_refused_by_the_recipe(fields, message):
    with pytest.raises(ValueError, match=message):
        ClassificationRecipe(**fields)


def test_bad_mixing():
    with pytest.raises(ValueError, match="group must be even"):
        Mixing(group=3)
    with pytest.raises(ValueError, match="smoothing"):
        Mixing(smoothing=1.0)
