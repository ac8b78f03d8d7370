"""Faster forms of a built model's layers, put in place from outside and taken out again.

`accelerate(model)` gives layers of this package another class with the same parameters and the same equation;
`restore(model)` gives them their own class back. Only layers of exactly our types are changed, and a fast form calls
the plain one where a module does more than its equation (a hook, an adapter, a replaced part) or a graph is exported.
Accelerate before sharding or wrapping a model; restore before tools that look for exactly `nn.Linear`.
"""

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from . import kernels
from .functional.stem import from_blocks, to_blocks
from .geometry import Grid
from .kernels.compat import exporting, has_hooks, intercepted, plain_operators_needed
from .models.embed import PatchEmbed
from .models.vit import Block, VisionTransformer
from .nn import (
    AttentionStem2d,
    FeedForward,
    GatedPositionalSelfAttention,
    LocalSelfAttention2d,
    PositionalSelfAttention,
    SelfAttention,
)
from .nn.checks import require_tokens
from .nn.positional import GridAttention

Model = TypeVar("Model", bound=nn.Module)


def _is_changed(*modules: nn.Module) -> bool:
    """Whether one of these modules, or a submodule, has hooks or a `forward` set on the instance.

    Adapters and offloading do the latter.
    """
    parts = (part for module in modules for part in module.modules())
    return any(has_hooks(part) or "forward" in part.__dict__ for part in parts)


def _is_untouched(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether calling the module computes its equation and nothing else."""
    return type(module) in kinds and not _is_changed(module)


class FastLinear(nn.Linear):
    """On a CPU by the faster of torch's two libraries; see `kernels.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return kernels.linear(input, self.weight, self.bias)


class FastFeedForward(FeedForward):
    """GELU is written over its argument where no gradient needs that.

    The hidden layer is a model's largest tensor by far. With a second one glibc gives the memory of both back to the
    system in each block, and on a CPU getting it again, page by page, took a fifth of ConViT-Ti's time.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self._activate(self.fc1(x)))))

    def _activate(self, hidden: Tensor) -> Tensor:
        fresh = type(hidden) is Tensor and _is_untouched(self.fc1, FastLinear, nn.Linear)
        if not fresh or not _is_untouched(self.act, nn.GELU) or hidden.requires_grad:
            return self.act(hidden)
        if intercepted() or plain_operators_needed() is not None:
            return self.act(hidden)
        return F.gelu(hidden, approximate=self.act.approximate, out=hidden)  # type: ignore[call-arg]


class FastSelfAttention(SelfAttention):
    """Small grids on a CPU attend by compiled loops. Can compute the first tokens of its output alone."""

    def forward(self, x: Tensor, grid_size: Grid | None = None, need_weights: bool = False):
        if need_weights or not x.is_cpu:
            return super().forward(x, grid_size, need_weights)
        require_tokens(x, self.dim)
        return self.join(kernels.token_attention(self.project(x)).transpose(1, 2))

    def of_first(self, x: Tensor, num_tokens: int) -> Tensor:
        """What `forward` makes of the first tokens, which attend to all."""
        query, key, value = self.query_key_value(x)
        return self.join(F.scaled_dot_product_attention(query[:, :, :num_tokens], key, value))


class _OneProjection(GridAttention):
    """One product instead of one for each of `qk` and `v`: tokens are read once, and their gradient needs no sum."""

    def project(self, x: Tensor) -> Tensor:
        if not (_is_untouched(self.qk, FastLinear) and _is_untouched(self.v, FastLinear)):
            return super().project(x)
        weight = torch.cat((self.qk.weight, self.v.weight))
        bias = None if self.qk.bias is None else torch.cat((self.qk.bias, self.v.bias))
        return kernels.linear(x, weight, bias).unflatten(-1, (3, self.num_heads, self.head_dim))


class FastPositionalSelfAttention(_OneProjection, PositionalSelfAttention):
    pass


class FastGatedPositionalSelfAttention(_OneProjection, GatedPositionalSelfAttention):
    pass


class FastLocalSelfAttention2d(LocalSelfAttention2d):
    """Full projections by the faster of torch's two libraries."""

    linear = staticmethod(kernels.linear)


class FastAttentionStem2d(AttentionStem2d):
    """Spatially aware values mix weights instead of pixels; on a CPU pixels lie block by block from the start."""

    linear = staticmethod(kernels.linear)

    def forward(self, x: Tensor, need_weights: bool = False):
        if need_weights or not x.is_cpu or plain_operators_needed() is not None:
            return super().forward(x, need_weights)
        self.check(x)
        pixels = x.permute(0, 2, 3, 1)
        if self.values == "spatial":
            mixture = self.value_mixture()
            packed = kernels.project_blocks(pixels, self.query_key, self.value_weights, mixture)
        else:
            packed = to_blocks(torch.cat((self.project(pixels), self._values(x, pixels)), dim=-1), self.block_size)
        blocks = packed.flatten(0, 2).unflatten(2, (3, self.num_heads, self.head_dim))
        y = kernels.block_attention(blocks).unflatten(0, packed.shape[:3])
        return from_blocks(y, self.block_size).flatten(3).permute(0, 3, 1, 2)

    def _values(self, x: Tensor, pixels: Tensor) -> Tensor:
        if self.values != "spatial":
            return super()._values(x, pixels)
        return kernels.spatially_aware_values(pixels, self.value_weights, self.value_mixture())


class FastPatchEmbed(PatchEmbed):
    """Patches do not overlap, so that laid out in rows they are one product.

    Compiled, cuDNN's convolution took seven to thirteen times as long on an H200; the product saved a sixth of
    ConViT-Ti's forward pass (docs/kernels.md).
    """

    def forward(self, images: Tensor) -> Tensor:
        if not _is_untouched(self.proj, nn.Conv2d):
            return super().forward(images)
        size = self.proj.kernel_size[0]
        cut = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # [B, C, rows, size, cols, size]
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [B, N, C · size · size]
        return kernels.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class FastVisionTransformer(VisionTransformer):
    """In the last block only the tokens that the heads use attend and are fed forward.

    A sixteenth less arithmetic in twelve blocks. All tokens go through it where patches are averaged, where the block
    has hooks (FSDP2 installs some too) or replaced parts, and on the meta device, where operations are counted as the
    papers count them.
    """

    def forward(self, images: Tensor, need_weights: bool = False):
        if need_weights:
            return super().forward(images, need_weights=True)
        return self.forward_head(self.head_tokens(images))

    def forward_distilled(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_heads(self.head_tokens(images))

    def head_tokens(self, images: Tensor) -> Tensor:
        """`forward_features`, or its first tokens [B, prefix, width] where no more are needed."""
        last = self.blocks[-1]
        if type(last) is not Block or type(last.attn) is not FastSelfAttention:
            return self.forward_features(images)
        if self.pool == "mean" or images.is_meta or _is_changed(last, self.norm):
            return self.forward_features(images)
        x, grid_size = self.embed(images)
        before = len(self.blocks) - 1
        for index in range(before):
            x = self._run(self.blocks[index], self.before_block(index, x), grid_size)
        x = self.before_block(before, x)
        return self.norm(self._run(partial(_first_tokens, last), x, self.num_prefix_tokens))

    def positions(self, grid_size: Grid) -> Tensor:
        if not exporting():
            # A compiled graph is made for each size: torch cannot take the gradient of resampling to symbolic ones.
            grid_size = (len(range(grid_size[0])), len(range(grid_size[1])))
        return super().positions(grid_size)


def _first_tokens(block: Block, x: Tensor, num_tokens: int) -> Tensor:
    """What a block makes of the first tokens."""
    return block.after_attention(x[:, :num_tokens], block.attn.of_first(block.norm1(x), num_tokens))  # type: ignore[operator]


FAST: dict[type[nn.Module], type[nn.Module]] = {
    AttentionStem2d: FastAttentionStem2d,
    FeedForward: FastFeedForward,
    GatedPositionalSelfAttention: FastGatedPositionalSelfAttention,
    LocalSelfAttention2d: FastLocalSelfAttention2d,
    PatchEmbed: FastPatchEmbed,
    PositionalSelfAttention: FastPositionalSelfAttention,
    SelfAttention: FastSelfAttention,
    VisionTransformer: FastVisionTransformer,
}
PLAIN: dict[type[nn.Module], type[nn.Module]] = {FastLinear: nn.Linear, **{fast: plain for plain, fast in FAST.items()}}
# Their linear layers are large and see every token; a model's head is neither.
WITH_LINEAR = (FeedForward, SelfAttention, PositionalSelfAttention, GatedPositionalSelfAttention)


def accelerate(model: Model) -> Model:
    """Make a model faster, in place, without changing what it computes or its state dict; returns the model."""
    for module in _modules(model):
        kind = PLAIN.get(type(module), type(module))
        if kind in WITH_LINEAR:
            for layer in module.children():
                if type(layer) is nn.Linear:
                    layer.__class__ = FastLinear
        if kind in FAST:
            module.__class__ = FAST[kind]
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`, in place; returns the model."""
    for module in _modules(model):
        kind = type(module)
        if kind in PLAIN:
            module.__class__ = PLAIN[kind]
        elif is_parametrized(module) and kind.__base__ in PLAIN:  # torch derives a class for each parametrised module
            plain = PLAIN[kind.__base__]
            module.__class__ = type(f"Parametrized{plain.__name__}", (plain,), dict(vars(kind)))
    return model


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(model, nn.Module):
        raise ValueError(f"{model!r:.80} is no model; give a torch.nn.Module, as nearsight.create_model returns one")
    return model.modules()
