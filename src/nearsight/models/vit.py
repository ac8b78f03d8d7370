"""One vision transformer for both sides of ConViT's comparison: DeiT, ConViT and every ablation between them.

The first `num_gated_blocks` blocks attend with position (GPSA, or PSA), the rest are plain; −2 means all but the last
two, at any depth. The class token carries no position, so it joins the patches after the last positional block
(Fig. 4); with no such block it joins at once and the model is a DeiT.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..geometry import Grid
from ..nn import FeedForward, GatedPositionalSelfAttention, PositionalSelfAttention, SelfAttention
from ..nn.checks import (
    require_choice,
    require_count,
    require_divisible,
    require_finite,
    require_images,
    require_positive,
    require_share,
)
from ..nn.local import sinusoidal_positions
from ..nn.random import DropPath, trunc_normal_
from ..nn.transformer import initialise
from .embed import ConvPatchEmbed, PatchEmbed, resampled_positions
from .impulse import start_as_impulses
from .model import Classifier, as_pair, chosen_layers, grid_of

PositionalLayer = Literal["gpsa", "psa"]
Pool = Literal["token", "mean"]
Stem = Literal["patch", "conv"]
AttentionStart = Literal["random", "impulse"]


class Block(nn.Module):
    """x + attention(norm(x)), then x + FFN(norm(x)); the attention is built outside and named by its owner."""

    def __init__(
        self, attention: nn.Module, width: int, *, mlp_ratio: float, proj_drop: float, drop_path: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = attention
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = FeedForward(width, int(width * mlp_ratio), drop=proj_drop)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the block, once its attention is known."""
        x = x + self.drop_path(attended)
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def forward(self, x: Tensor, grid_size: Grid) -> Tensor:
        return self.after_attention(x, self.attn(self.norm1(x), grid_size))

    def forward_with_weights(self, x: Tensor, grid_size: Grid) -> tuple[Tensor, Tensor]:
        attended, weights = self.attn(self.norm1(x), grid_size, need_weights=True)
        return self.after_attention(x, attended), weights


class VisionTransformer(Classifier):
    """DeiT, ConViT, and what lies between.

    Ablations of the ConViT paper as arguments: `num_gated_blocks` and `locality_strength` (Fig. 8),
    `positional_layer="psa"` (Fig. 9), `conv_init`, `gate`, `train_gate`, `train_attention` (Table 3).
    `attention_start="impulse"` starts a plain ViT near a convolution by its weights alone: ConViT's closest rival.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        stem: Stem = "patch",
        in_chans: int = 3,
        num_classes: int = 1000,
        width: int,
        depth: int = 12,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        num_gated_blocks: int = 0,
        positional_layer: PositionalLayer = "gpsa",
        locality_strength: float = 1.0,
        conv_init: bool = True,
        centers_on_patches: bool = False,
        gate: float = 1.0,
        train_gate: bool = True,
        train_attention: bool = True,
        pos_embed: bool = True,
        attention_start: AttentionStart = "random",
        distilled: bool = False,
        pool: Pool | None = None,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        require_choice("positional_layer", positional_layer, get_args(PositionalLayer))
        require_choice("stem", stem, get_args(Stem))
        require_choice("attention_start", attention_start, get_args(AttentionStart))
        require_positive(patch_size=patch_size, in_chans=in_chans, depth=depth)
        require_divisible(width, num_heads, "width")
        require_share(drop_rate=drop_rate, proj_drop_rate=proj_drop_rate, drop_path_rate=drop_path_rate)
        require_count(num_classes=num_classes)  # 0 for no head
        require_finite(mlp_ratio=mlp_ratio, gate=gate)
        if mlp_ratio <= 0:
            raise ValueError(f"mlp_ratio must be positive, not {mlp_ratio}")
        if not isinstance(num_gated_blocks, int) or not -depth <= num_gated_blocks <= depth:
            raise ValueError(f"num_gated_blocks={num_gated_blocks!r} must lie between 0 and depth={depth}")
        num_gated_blocks = num_gated_blocks if num_gated_blocks >= 0 else depth + num_gated_blocks
        # A class token that no attention layer follows would never see the patches, so their mean is read instead.
        pool = ("mean" if num_gated_blocks == depth else "token") if pool is None else pool
        require_choice("pool", pool, get_args(Pool))
        if num_gated_blocks == depth and (pool == "token" or distilled):
            raise ValueError(
                f"with all {depth} blocks positional no plain block is left for class or distillation tokens; "
                f"use pool='mean' without distillation, or num_gated_blocks={depth - 1}"
            )
        if attention_start == "impulse" and (num_gated_blocks or pool != "mean" or not pos_embed):
            raise ValueError(
                "attention_start='impulse' is for plain blocks whose tokens all carry a position: "
                "it needs num_gated_blocks=0, pool='mean' and pos_embed=True"
            )
        if distilled and pool == "mean":
            raise ValueError("a distilled model reads its two tokens; leave pool='mean' or distilled=True out")
        self.img_size, self.patch_size, self.in_chans = as_pair(img_size), patch_size, in_chans
        self.grid_size = grid_of(self.img_size, patch_size)
        self.stride = patch_size
        self.width = self.num_features = width
        self.num_heads, self.num_gated_blocks, self.num_classes = num_heads, num_gated_blocks, num_classes
        self.pool, self.distilled = pool, distilled

        embed = PatchEmbed if stem == "patch" else ConvPatchEmbed
        self.patch_embed = embed(patch_size, in_chans, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if pool == "token" else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, width)) if distilled else None
        self.num_prefix_tokens = (self.cls_token is not None) + (self.dist_token is not None)
        # Tokens that join at the start have a position of their own, as in DeiT; those that join later have none.
        self.num_placed_tokens = self.num_prefix_tokens if num_gated_blocks == 0 else 0
        num_slots = self.num_placed_tokens + self.grid_size[0] * self.grid_size[1]
        self.pos_embed = nn.Parameter(torch.zeros(1, num_slots, width)) if pos_embed else None

        def attention(index: int) -> nn.Module:
            if index >= num_gated_blocks:
                return SelfAttention(width, num_heads, qkv_bias=qkv_bias, proj_drop=proj_drop_rate)
            shared: dict[str, Any] = {
                "qkv_bias": qkv_bias,
                "proj_drop": proj_drop_rate,
                "locality_strength": locality_strength,
                "init": "convolutional" if conv_init else "random",
                "centers_on_patches": centers_on_patches,
            }
            if positional_layer == "psa":
                return PositionalSelfAttention(width, num_heads, **shared)
            return GatedPositionalSelfAttention(
                width, num_heads, gate=gate, train_gate=train_gate, backend=backend, **shared
            )

        self.blocks = nn.ModuleList(
            Block(
                attention(index),
                width,
                mlp_ratio=mlp_ratio,
                proj_drop=proj_drop_rate,
                drop_path=drop_path_rate * index / max(depth - 1, 1),
            )
            for index in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = self._new_head(num_classes)
        self.head_dist = self._new_head(num_classes) if distilled else None
        self.attention_start = attention_start
        self.reset_parameters()
        if not train_attention:
            for block in self.blocks[:num_gated_blocks]:
                block.attn.requires_grad_(False)

    def reset_parameters(self) -> None:
        for embedding in (self.cls_token, self.dist_token, self.pos_embed):
            if embedding is not None:
                trunc_normal_(embedding, std=0.02)
        for module in self.blocks.modules():
            if isinstance(module, FeedForward):
                module.reset_parameters()
        if self.attention_start == "impulse":
            self._start_as_impulses()

    @torch.no_grad()
    def _start_as_impulses(self) -> None:
        """The position embedding starts as sinusoids, and is learned from there; heads start at offsets in it."""
        assert self.pos_embed is not None
        positions = sinusoidal_positions((*self.grid_size, self.width))
        self.pos_embed.copy_(positions.flatten(0, 1)[None])
        layers = (module for module in self.blocks.modules() if isinstance(module, SelfAttention))
        start_as_impulses(layers, self.pos_embed[0], self.grid_size)

    def _new_head(self, num_classes: int) -> nn.Module:
        if num_classes <= 0:
            return nn.Identity()
        head = nn.Linear(self.width, num_classes)
        initialise(head)
        return head

    # Promises every model keeps

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed", "cls_token", "dist_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        last = (r"^norm\.", (99999,))  # timm's number for what belongs to the last block
        return {"stem": r"^(?:cls_token|dist_token|pos_embed|patch_embed)", "blocks": [(r"^blocks\.(\d+)", None), last]}

    def reset_classifier(self, num_classes: int) -> None:
        self.num_classes = num_classes
        like = self.cls_token if self.cls_token is not None else self.norm.weight
        self.head = self._new_head(num_classes).to(like)
        if self.distilled:
            self.head_dist = self._new_head(num_classes).to(like)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Resize the position embedding for good, so that training goes on at another resolution."""
        grid_size = grid_of(as_pair(img_size), self.patch_size)
        if self.pos_embed is not None:
            with torch.no_grad():
                resized = self.positions(grid_size)
            self.pos_embed = nn.Parameter(resized.clone(), requires_grad=self.pos_embed.requires_grad)
        self.img_size, self.grid_size = as_pair(img_size), grid_size

    def positions(self, grid_size: Grid) -> Tensor:
        """The position embedding, resampled where the grid is not the one that it was built for."""
        assert self.pos_embed is not None
        return resampled_positions(self.pos_embed, self.grid_size, grid_size, self.num_placed_tokens)

    # Forward, in the order of Fig. 4

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Images → what the first block sees, and the grid of its patches."""
        require_images(images, self.in_chans, next(self.patch_embed.parameters()).dtype)
        grid_size = grid_of((images.shape[2], images.shape[3]), self.patch_size)
        x = self.patch_embed(images)
        if self.num_gated_blocks == 0:
            x = self._join_tokens(x)
        if self.pos_embed is not None:
            x = x + self.positions(grid_size)
        return x, grid_size

    def _join_tokens(self, x: Tensor) -> Tensor:
        tokens = [token.expand(x.shape[0], -1, -1) for token in (self.cls_token, self.dist_token) if token is not None]
        return torch.cat([*tokens, x], dim=1) if tokens else x

    def before_block(self, index: int, x: Tensor) -> Tensor:
        """Class and distillation token join in front of the first plain block."""
        return self._join_tokens(x) if index == self.num_gated_blocks and index > 0 else x

    def forward_features(self, images: Tensor) -> Tensor:
        """Images → normalised tokens [B, prefix + N, width]."""
        x, grid_size = self.embed(images)
        for index, block in enumerate(self.blocks):
            x = self._run(block, self.before_block(index, x), grid_size)
        return self.norm(x)

    def forward_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features, and every block's attention weights [B, heads, tokens, tokens]."""
        x, grid_size = self.embed(images)
        maps = []
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, weights = block.forward_with_weights(self.before_block(index, x), grid_size)
            maps.append(weights)
        return self.norm(x), maps

    def forward_intermediates(
        self, images: Tensor, indices: int | Sequence[int] | None = None, *, norm: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Features, and the patches after chosen blocks as maps [B, width, H, W].

        `indices`: which blocks (negative counts from the end), the last n for a number, all by default.
        """
        wanted = chosen_layers(indices, len(self.blocks))
        x, grid_size = self.embed(images)
        maps = []
        for index, block in enumerate(self.blocks):
            x = self._run(block, self.before_block(index, x), grid_size)
            if index in wanted:
                patches = (self.norm(x) if norm else x)[:, x.shape[1] - grid_size[0] * grid_size[1] :]
                maps.append(patches.transpose(1, 2).unflatten(2, grid_size))
        return self.norm(x), maps

    def forward_heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the class head and of the distillation head, which training keeps apart."""
        if self.head_dist is None:
            raise ValueError("this model has no distillation head; create it with distilled=True")
        return self.head(self.head_drop(features[:, 0])), self.head_dist(self.head_drop(features[:, 1]))

    def forward_distilled(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images → logits of both heads: what training with a teacher compares."""
        return self.forward_heads(self.forward_features(images))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Features → logits; a distilled model averages its two heads, as DeiT does at evaluation."""
        if self.distilled and not pre_logits:
            by_class, by_teacher = self.forward_heads(features)
            return (by_class + by_teacher) / 2
        # With one token this is that token; a distilled model's two tokens are averaged as their logits are.
        read = features[:, : self.num_prefix_tokens] if self.pool == "token" else features[:, self.num_prefix_tokens :]
        pooled = read.mean(dim=1)
        return pooled if pre_logits else self.head(self.head_drop(pooled))
