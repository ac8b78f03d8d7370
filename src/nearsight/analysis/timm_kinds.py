"""Whether a module is one of timm's, without importing timm: there is none as long as nobody has imported its class."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import nn

if TYPE_CHECKING:
    from timm.models.convit import ConVit
    from timm.models.vision_transformer import Attention, Block, VisionTransformer


def _is(module: nn.Module, file: str, name: str) -> bool:
    loaded = sys.modules.get(f"timm.models.{file}")
    return loaded is not None and isinstance(module, getattr(loaded, name))


def is_timm_convit(module: nn.Module) -> TypeGuard[ConVit]:
    return _is(module, "convit", "ConVit")


def is_timm_vit(module: nn.Module) -> TypeGuard[VisionTransformer]:
    return _is(module, "vision_transformer", "VisionTransformer")


def is_timm_block(module: nn.Module) -> TypeGuard[Block]:
    return _is(module, "vision_transformer", "Block")


def is_timm_attention(module: nn.Module) -> TypeGuard[Attention]:
    return _is(module, "vision_transformer", "Attention")
