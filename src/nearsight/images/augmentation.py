"""The knobs of augmentation, shared by the per-image path (workers) and the batched path (device). No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Interpolation = Literal["bilinear", "bicubic"]


def _require(fine: bool, message: str) -> None:
    if not fine:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What happens to a training image between reading and the model."""

    size: int
    """Side of the square image the model receives."""
    crop: Literal["resized", "pad", "none"] = "resized"
    """resized: random area and aspect, resized; pad: pad, then crop at random (small images); none: as it is."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest share of the image's area in a resized crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest aspect (width / height) of a resized crop."""
    padding: int = 4
    """Black pixels added on each side before a pad crop."""
    flip: float = 0.5
    """Probability of a left-right flip."""
    rand_num_ops: int = 0
    """RandAugment operations per image; 0 turns it off."""
    rand_magnitude: float = 9.0
    """RandAugment strength, 0 to 10."""
    rand_std: float = 0.5
    """Standard deviation of the strength."""
    rand_prob: float = 0.5
    """Probability that a chosen RandAugment operation is carried out."""
    jitter: float = 0.0
    """Colour jitter: brightness, contrast and saturation factors in 1 ± jitter."""
    erase: float = 0.0
    """Probability that a rectangle is erased."""
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    """Smallest and largest share of the area that is erased."""
    erase_mode: Literal["noise", "zero"] = "noise"
    """What an erased pixel becomes: normal noise, or the mean colour."""
    interpolation: Interpolation = "bicubic"
    """How crops and geometric operations resample."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Subtracted per channel (images in 0..1)."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Divided by per channel."""

    def __post_init__(self) -> None:
        _require(self.size >= 1, f"size must be positive, got {self.size}")
        _require(self.crop in ("resized", "pad", "none"), f"crop must be resized, pad or none, got {self.crop!r}")
        _require(self.interpolation in ("bilinear", "bicubic"), f"interpolation: no {self.interpolation!r}")
        _require(self.erase_mode in ("noise", "zero"), f"erase_mode must be noise or zero, got {self.erase_mode!r}")
        low, high = self.crop_scale
        _require(0 < low <= high <= 1, f"crop_scale must be 0 < low ≤ high ≤ 1, got {self.crop_scale}")
        low, high = self.crop_ratio
        _require(0 < low <= high, f"crop_ratio must be 0 < low ≤ high, got {self.crop_ratio}")
        low, high = self.erase_area
        _require(0 < low <= high < 1, f"erase_area must be 0 < low ≤ high < 1, got {self.erase_area}")
        for name, chance in (("flip", self.flip), ("rand_prob", self.rand_prob), ("erase", self.erase)):
            _require(0 <= chance <= 1, f"{name} is a probability, got {chance}")
        _require(self.padding >= 0, f"padding must not be negative, got {self.padding}")
        _require(self.rand_num_ops >= 0, f"rand_num_ops must not be negative, got {self.rand_num_ops}")
        _require(0 <= self.rand_magnitude <= 10, f"rand_magnitude must be in 0..10, got {self.rand_magnitude}")
        _require(self.rand_std >= 0, f"rand_std must not be negative, got {self.rand_std}")
        _require(0 <= self.jitter <= 1, f"jitter must be in 0..1, got {self.jitter}")
        _require(min(self.std) > 0, f"std must be positive, got {self.std}")


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixup and cutmix with soft targets."""

    mixup: float = 0.8
    """α of mixup's Beta(α, α); 0 turns mixup off."""
    cutmix: float = 1.0
    """α of cutmix's Beta(α, α); 0 turns cutmix off."""
    prob: float = 1.0
    """Probability that a group is mixed at all."""
    switch: float = 0.5
    """Probability of cutmix rather than mixup where both are on."""
    smoothing: float = 0.1
    """Label smoothing."""
    group: int = 16
    """Images that share one λ and find their partners among themselves. Partners depend on the position in the global
    batch only: any number of processes and micro-batches whose size is a multiple of `group` gives the same result."""

    def __post_init__(self) -> None:
        _require(self.mixup >= 0, f"mixup must not be negative, got {self.mixup}")
        _require(self.cutmix >= 0, f"cutmix must not be negative, got {self.cutmix}")
        _require(0 <= self.prob <= 1, f"prob is a probability, got {self.prob}")
        _require(0 <= self.switch <= 1, f"switch is a probability, got {self.switch}")
        _require(0 <= self.smoothing < 1, f"smoothing must be in [0, 1), got {self.smoothing}")
        _require(self.group >= 2 and self.group % 2 == 0, f"group must be even and at least 2, got {self.group}")
