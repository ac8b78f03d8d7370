"""The sizes of every model, one table for each paper, registered by name.

ConViT's Table 1: 12 blocks of patch 16 at 224 px, FFN ratio 4; ConViTs have 10 gated blocks, no bias on q, k, v
(the released code), DeiTs have that bias. "+" models have 64 channels a head and the DeiT shares the ConViT's heads.
SASA: group layouts of ResNet-26/38/50.
"""

from typing import NamedTuple

from .registry import register
from .resnet import ResNet
from .vit import VisionTransformer

# name: (heads, width)                          Table 1 of ConViT
CONVIT_SIZES = {
    "tiny": (4, 192),
    "tiny_plus": (4, 256),
    "small": (9, 432),
    "small_plus": (9, 576),
    "base": (16, 768),
    "base_plus": (16, 1024),
}
DEIT_SIZES = {**CONVIT_SIZES, "tiny": (3, 192), "small": (6, 384), "base": (12, 768)}

# For 32 to 96 px. name: (heads, width, depth). Nine heads start as a 3×3 convolution, and a DeiT here has the
# heads of its ConViT, so that the two differ in nothing but the gated blocks.
SMALL_IMAGE_SIZES = {"nano": (9, 144, 6), "micro": (9, 216, 8), "tiny": (4, 192, 12)}
SMALL_IMAGE_PATCHES = {32: 4, 64: 8, 96: 8}

# Blocks in each of the four groups.             SASA, section 4.1
RESNET_LAYERS = {26: (1, 2, 4, 1), 38: (2, 3, 5, 2), 50: (3, 4, 6, 3)}

NUM_PLAIN_BLOCKS = 2  # every ConViT ends in two plain blocks, where the class token has joined


def _register_pair(size: str, *, convit: dict, deit: dict, shared: dict) -> None:
    """A ConViT and its DeiT, each with and without the token and head of hard distillation."""
    for ending, distilled in (("", False), ("_distilled", True)):
        both = {**shared, "distilled": distilled}
        register(f"convit_{size}{ending}", VisionTransformer, num_gated_blocks=-NUM_PLAIN_BLOCKS, **both, **convit)
        register(f"deit_{size}{ending}", VisionTransformer, **both, **deit)


def _register_all() -> None:
    for size, (heads, width) in CONVIT_SIZES.items():
        deit_heads, deit_width = DEIT_SIZES[size]
        _register_pair(
            size,
            convit={"num_heads": heads, "width": width},
            deit={"num_heads": deit_heads, "width": deit_width, "qkv_bias": True},
            shared={"depth": 12},
        )
    for size, (heads, width, depth) in SMALL_IMAGE_SIZES.items():
        for img_size, patch_size in SMALL_IMAGE_PATCHES.items():
            body = {"num_heads": heads, "width": width, "depth": depth, "img_size": img_size, "patch_size": patch_size}
            _register_pair(f"{size}_{img_size}", convit={}, deit={}, shared=body)
    for depth, layers in RESNET_LAYERS.items():
        everywhere = {"layers": layers, "attention_stages": (1, 2, 3, 4)}
        register(f"resnet{depth}", ResNet, layers=layers)
        register(f"sasa_resnet{depth}_convstem", ResNet, **everywhere)
        register(f"sasa_resnet{depth}", ResNet, stem="attention", **everywhere)


class Reported(NamedTuple):
    """What a paper prints: *reported* figures, beside which `nearsight models` shows those we counted."""

    parameters: str
    operations: str  # FLOPS (multiply and add = 2) for SASA, multiply-adds for ConViT
    top1: float  # ImageNet
    source: str


_CONVIT_REPORTS = {
    "deit_tiny": ("6M", "1G", 72.2),
    "convit_tiny": ("6M", "1G", 73.1),
    "deit_tiny_plus": ("10M", "2G", 75.9),
    "convit_tiny_plus": ("10M", "2G", 76.7),
    "deit_small": ("22M", "4.3G", 79.8),
    "convit_small": ("27M", "5.4G", 81.3),
    "deit_small_plus": ("48M", "10G", 79.0),
    "convit_small_plus": ("48M", "10G", 82.2),
    "deit_base": ("86M", "17G", 81.8),
    "convit_base": ("86M", "17G", 82.4),
    "deit_base_plus": ("152M", "30G", 77.5),
    "convit_base_plus": ("152M", "30G", 82.5),
}
_SASA_REPORTS = {
    "resnet26": ("13.7M", "4.7B", 74.5),
    "resnet38": ("19.6M", "6.5B", 76.2),
    "resnet50": ("25.6M", "8.2B", 76.9),
    "sasa_resnet26_convstem": ("10.3M", "4.5B", 75.8),
    "sasa_resnet38_convstem": ("14.1M", "5.7B", 77.1),
    "sasa_resnet50_convstem": ("18.0M", "7.0B", 77.4),
    "sasa_resnet26": ("10.3M", "4.7B", 74.8),
    "sasa_resnet38": ("14.1M", "6.0B", 76.9),
    "sasa_resnet50": ("18.0M", "7.2B", 77.6),
}
REPORTED = {
    **{name: Reported(*figures, "ConViT, Table 1") for name, figures in _CONVIT_REPORTS.items()},
    **{name: Reported(*figures, "SASA, Table 1") for name, figures in _SASA_REPORTS.items()},
}

_register_all()
