"""What every classifier here promises, and what all of them do alike, such as image sizes and the grids they make."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..geometry import Grid
from .saving import Saved


class Classifier(Saved):
    """Images [B, C, H, W] → logits; features, maps and attention weights on request."""

    img_size: tuple[int, int]  # that it was built for, or that its paper counts
    stride: int  # what an image's sides should be a multiple of
    in_chans: int
    num_classes: int
    num_features: int  # channels that the head is given
    grad_checkpointing = False

    def forward_features(self, images: Tensor) -> Tensor:
        """Images → what the head is given."""
        raise NotImplementedError

    def forward_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features, and the attention weights of every layer that has them, first layer first."""
        raise NotImplementedError

    def forward_intermediates(
        self, images: Tensor, indices: int | Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Features, and the maps [B, C, rows, cols] after chosen layers (the last n for a number; all by default)."""
        raise NotImplementedError

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Features → logits, or what the last linear layer is given."""
        raise NotImplementedError

    def forward(self, images: Tensor, need_weights: bool = False):
        """Images → logits, or (logits, attention weights)."""
        if need_weights:
            features, maps = self.forward_attention(images)
            return self.forward_head(features), maps
        return self.forward_head(self.forward_features(images))

    def reset_classifier(self, num_classes: int) -> None:
        """A fresh head for so many classes; 0 for none."""
        raise NotImplementedError

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Change what depends on the images' size for good, so that training goes on at another resolution."""
        raise NotImplementedError

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay spares, besides vectors."""
        raise NotImplementedError

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameters' names by layer, as timm's models have them: stem, blocks; the rest is the head."""
        raise NotImplementedError

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only each block's input for the backward pass and compute the rest again."""
        self.grad_checkpointing = enable

    def _run(self, part: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
        """part(*arguments), checkpointed where that is asked for."""
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(part, *arguments, use_reentrant=False, **options)
        return part(*arguments)


def as_pair(size: int | Sequence[int]) -> tuple[int, int]:
    """One side or (height, width) → (height, width)."""
    pair = (size, size) if isinstance(size, int) else size
    sound = isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(side, int) and side > 0 for side in pair)
    if not sound or isinstance(pair, str):
        raise ValueError(f"an image size is one side or (height, width) in whole pixels, not {size!r}")
    return pair[0], pair[1]


def grid_of(img_size: tuple[int, int], stride: int) -> Grid:
    """How many patches fit, or an error that names the nearest size that works."""
    height, width = img_size
    if height < stride or width < stride or height % stride or width % stride:
        near = tuple(max(round(side / stride), 1) * stride for side in img_size)
        raise ValueError(
            f"image size {height}x{width} is not divisible by the patch of {stride}; "
            f"resize to {near[0]}x{near[1]}, for example"
        )
    return height // stride, width // stride


def chosen_layers(indices: int | Sequence[int] | None, depth: int) -> set[int]:
    """Which of `depth` layers: all, the last n, or those listed (negative ones count from the end)."""
    if indices is None:
        return set(range(depth))
    if isinstance(indices, int):
        if not 1 <= indices <= depth:
            raise ValueError(f"the last {indices} layers were asked for; the model has {depth}")
        return set(range(depth - indices, depth))
    for index in indices:
        if not isinstance(index, int) or not -depth <= index < depth:
            raise ValueError(f"there is no layer {index!r}; the model has layers 0 to {depth - 1}")
    return {index % depth for index in indices}
