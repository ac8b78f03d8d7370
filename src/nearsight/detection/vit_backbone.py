"""A vision transformer as the backbone of a detector: three scales from its one map. Neither paper has it."""

from collections.abc import Sequence

from torch import Tensor, nn

from nearsight.models.vit import VisionTransformer


class ViTBackbone(nn.Module):
    """The last block's patches as they are, once more at twice and once at half the resolution.

    A transformer keeps one resolution throughout, so the pyramid's scales come from its last map alone: a transposed
    convolution makes the finer one, a max pool the coarser one. Positions are relative (ConViT) or resampled (DeiT), so
    any image size works that twice the patch divides.
    """

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        width, patch = vit.num_features, vit.patch_size
        if patch % 2:
            raise ValueError(f"the finer map halves the patch, so patch_size must be even, not {patch}")
        self.vit = vit
        self.finer = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.coarser = nn.MaxPool2d(2)
        self.in_chans, self.stride, self.finest_stride = vit.in_chans, 2 * patch, patch // 2
        self.stage_widths = (width,) * 4

    def forward_intermediates(self, images: Tensor, indices: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The map, and its three scales as stages 1 to 3 of a ResNet would give them."""
        if tuple(indices) != (1, 2, 3):
            raise ValueError(f"the scales of this backbone stand for stages 1, 2 and 3, not {tuple(indices)}")
        _, (patches,) = self.vit.forward_intermediates(images, indices=1, norm=True)
        return patches, [self.finer(patches), patches, self.coarser(patches)]
