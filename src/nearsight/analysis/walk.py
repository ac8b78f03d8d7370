"""Walk through a model's attention layers, one view at a time, while its own forward pass moves the activations on;
and their maps, of chosen layers for a batch.

Each layer's queries and keys are computed again from the activations that reach it. Known models: ours (ViT family,
ResNets, and detectors around either), timm's plain ViTs, timm's ConViTs, which are rebuilt as ours with their weights,
and any CNN whose convolutions `nearsight.convert` made attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nearsight.analysis.converted import converted_view, has_converted
from nearsight.analysis.timm_kinds import is_timm_attention, is_timm_block, is_timm_convit, is_timm_vit
from nearsight.analysis.views import GlobalView, LocalView, Part, View, patch_map
from nearsight.convert import layer_inputs
from nearsight.functional import query_key_value
from nearsight.geometry import Grid
from nearsight.models import ResNet, VisionTransformer
from nearsight.nn import (
    AttentionConv2d,
    GatedPositionalSelfAttention,
    LocalSelfAttention2d,
    PositionalSelfAttention,
    SelfAttention,
)
from nearsight.nn.local import sinusoidal_positions
from nearsight.weights import from_timm, load_weights

if TYPE_CHECKING:
    from timm.models.convit import ConVit
    from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer

KNOWN = "nearsight's models, timm's plain VisionTransformer, timm's ConVit, and what nearsight.convert made"


@runtime_checkable
class Detector(Protocol):
    """A model around another, whose body sees `pad(images)`. Its own local attention may stand behind the body."""

    stride: int

    @property
    def body(self) -> nn.Module: ...

    def pad(self, images: Tensor) -> Tensor: ...

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def __call__(self, images: Tensor) -> Any: ...


def body_of(model: nn.Module) -> nn.Module:
    """The network inside a detector; any other model is its own body."""
    return model.body if isinstance(model, Detector) else model


def num_attention_layers(model: nn.Module) -> int:
    """How many attention layers `walk` shows."""
    body = body_of(inspectable(model))
    if _is_network_of_maps(body):
        return sum(isinstance(module, (LocalSelfAttention2d, AttentionConv2d)) for module in model.modules())
    return len(body.blocks) + sum(  # type: ignore[arg-type]
        isinstance(module, LocalSelfAttention2d) for module in model.modules()
    )


def _is_network_of_maps(body: nn.Module) -> bool:
    """Whether attention layers stand where convolutions do, and not in the blocks of a transformer."""
    return not isinstance(body, VisionTransformer) and not is_timm_vit(body)


@contextmanager
def looking(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside the context; every module's own mode is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def inspectable(model: nn.Module) -> nn.Module:
    """The model itself if `walk` can go through it; timm's ConViT as ours; a ValueError for any other."""
    if is_timm_convit(model):
        return from_timm_convit(model)
    body = body_of(model)
    if _is_network_of_maps(body) and has_converted(model):
        return model
    if isinstance(body, ResNet) and not any(isinstance(part, LocalSelfAttention2d) for part in model.modules()):
        raise ValueError("this ResNet has no attention layers to look into; use a sasa_resnet model")
    if is_timm_vit(body):
        for index, block in enumerate(body.blocks, start=1):
            if not is_timm_block(block) or not is_timm_attention(block.attn):
                kind = type(block).__name__
                raise ValueError(f"block {index} of this timm model is a {kind}, not timm's plain Block and Attention")
    elif not isinstance(body, (VisionTransformer, ResNet)):
        raise ValueError(f"cannot look inside a {type(body).__name__}; known are {KNOWN}")
    return model


def is_inspectable(model: nn.Module) -> bool:
    """Whether `walk` can go through a model."""
    try:
        inspectable(model)
    except ValueError:
        return False
    return True


def walk_batches(model: nn.Module, images: Tensor, batch_size: int) -> Iterator[View]:
    """As `walk`, a few images at a time: all layers for the first few, then all layers for the next."""
    if images.ndim != 4 or len(images) == 0:
        raise ValueError(f"images must be a batch [B, C, H, W] of at least one, not {list(images.shape)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    for batch in images.split(batch_size):
        yield from walk(model, batch)


def walk(model: nn.Module, images: Tensor) -> Iterator[View]:
    """A view of every attention layer on `images` [B, C, H, W], first layer first.

    `model` is one that `inspectable` returned; walk inside `looking(model)`.
    """
    if _is_network_of_maps(body_of(model)) and has_converted(model):
        yield from _walk_converted(model, images)
    elif isinstance(model, VisionTransformer):
        yield from _walk_vit(model, images)
    elif isinstance(model, ResNet):
        yield from _walk_resnet(model, images)
    elif is_timm_vit(model):
        yield from _walk_timm_vit(model, images)
    elif isinstance(model, Detector):
        yield from _walk_detector(model, images)
    else:
        raise ValueError(f"cannot walk through a {type(model).__name__}; pass it through inspectable() first")


def from_timm_convit(model: ConVit) -> VisionTransformer:
    """timm's ConViT as ours: the same numbers, any input size, and maps that can be asked for."""
    gated = model.local_up_to_layer
    first: Any = model.blocks[0]
    bias = first.attn.v.bias if gated else first.attn.qkv.bias
    ours = VisionTransformer(
        img_size=model.patch_embed.img_size,
        patch_size=model.patch_embed.patch_size[0],
        in_chans=model.patch_embed.proj.in_channels,
        num_classes=model.num_classes,
        width=model.embed_dim,
        depth=len(model.blocks),
        num_heads=first.attn.num_heads,
        qkv_bias=bias is not None,
        num_gated_blocks=gated,
        locality_strength=model.locality_strength,
        pos_embed=model.use_pos_embed,
    )
    load_weights(ours, from_timm(model.state_dict()), "the model of timm")
    ours.pretrained_cfg = model.pretrained_cfg  # how it is shown pictures
    return ours.to(next(model.parameters()).device).eval()


def _walk_vit(model: VisionTransformer, images: Tensor) -> Iterator[View]:
    x, grid_size = model.embed(images)
    block: Any
    for index, block in enumerate(model.blocks):
        x = model.before_block(index, x)
        num_prefix_tokens = x.shape[1] - grid_size[0] * grid_size[1]
        yield global_view(block.attn, block.norm1(x), grid_size, num_prefix_tokens, index)
        x = block(x, grid_size)


def global_view(attention: nn.Module, x: Tensor, grid_size: Grid, num_prefix_tokens: int, index: int) -> GlobalView:
    """The view of one attention layer on the tokens `x` [B, T, dim] it is given."""
    batch, tokens, _ = x.shape
    if isinstance(attention, SelfAttention) or is_timm_attention(attention):
        qkv = attention.qkv(x).reshape(batch, tokens, 3, attention.num_heads, attention.head_dim).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        if is_timm_attention(attention):
            query, key = attention.q_norm(query), attention.k_norm(key)
        kind, extra = "plain", {}
    elif isinstance(attention, (PositionalSelfAttention, GatedPositionalSelfAttention)):
        query, key, value = attention.query_key_value(x)
        kind, extra = "psa", {"v_pos": attention.v_pos}
        if isinstance(attention, GatedPositionalSelfAttention):
            kind, extra = "gpsa", {"v_pos": attention.v_pos, "gate": attention.gate}
    else:
        raise ValueError(f"cannot look inside attention of type {type(attention).__name__}; known are {KNOWN}")
    return GlobalView(
        index=index,
        name=f"block {index + 1}",
        kind=kind,  # type: ignore[arg-type]
        grid_size=grid_size,
        num_prefix_tokens=num_prefix_tokens,
        query=query,
        key=key,
        value=value,
        scale=query.shape[-1] ** -0.5,
        **extra,
    )


def _walk_timm_vit(model: TimmVisionTransformer, images: Tensor) -> Iterator[View]:
    height, width = model.patch_embed.dynamic_feat_size((images.shape[2], images.shape[3]))
    x = model._pos_embed(model.patch_embed(images))
    x = model.norm_pre(model.patch_drop(x))
    block: Any
    for index, block in enumerate(model.blocks):
        num_prefix_tokens = x.shape[1] - height * width
        yield global_view(block.attn, block.norm1(x), (height, width), num_prefix_tokens, index)
        x = block(x)


def _walk_resnet(model: ResNet, images: Tensor) -> Iterator[View]:
    x, index = model.embed(images), 0
    for stage_number, stage in enumerate(model.stages, start=1):
        block: Any
        for position, block in enumerate(stage, start=1):
            if isinstance(block.mixer, LocalSelfAttention2d):
                given = block.relu(block.bn1(block.conv1(x)))
                yield local_view(block.mixer, given, index, f"stage {stage_number}, block {position}")
                index += 1
            x = block(x)


def _walk_converted(model: nn.Module, images: Tensor) -> Iterator[View]:
    """Layers in the place of convolutions, and those of a SASA network among them, as they are first called."""
    given = layer_inputs(model, images, AttentionConv2d, LocalSelfAttention2d)
    for index, (name, x) in enumerate(given.items()):
        layer = model.get_submodule(name)
        if isinstance(layer, AttentionConv2d):
            yield converted_view(layer, x, index, name)
        elif isinstance(layer, LocalSelfAttention2d):
            yield local_view(layer, x, index, name)


def _walk_detector(model: Detector, images: Tensor) -> Iterator[View]:
    """The body's layers, then those behind it in the order they are called. A layer that reads several scales, as
    those of a detector's heads do, is shown on the first of them, the finest."""
    count = 0
    for view in walk(model.body, model.pad(images)):
        yield view
        count += 1
    inside = set(model.body.modules())
    modules = dict(model.named_modules())
    given = layer_inputs(model, images, LocalSelfAttention2d)  # type: ignore[arg-type]
    behind = {name: x for name, x in given.items() if modules[name] not in inside}
    for place, (name, x) in enumerate(behind.items(), start=count):
        yield local_view(modules[name], x, place, name)  # type: ignore[arg-type]


def local_view(attention: LocalSelfAttention2d, x: Tensor, index: int, name: str) -> LocalView:
    """The view of one local attention on the map `x` [B, C, H, W] it is given."""
    pixels = x.permute(0, 2, 3, 1)
    if attention.positions == "absolute":
        pixels = pixels + sinusoidal_positions(pixels.shape[1:], device=x.device, dtype=x.dtype)
    query, key, value = query_key_value(attention.project(pixels))
    stride = attention.stride if attention.downsample == "stride" else 1
    return LocalView(
        index=index,
        name=name,
        grid_size=(value.shape[1], value.shape[2]),
        kernel_size=attention.kernel_size,
        stride=stride,
        border=attention.border,
        query=query[:, ::stride, ::stride],
        key=key,
        value=value,
        row_embedding=attention.row_embedding,
        col_embedding=attention.col_embedding,
    )


def attention_maps(
    model: nn.Module, images: Tensor, blocks: Sequence[int] | None = None, *, part: Part = "mixed"
) -> dict[int, Tensor]:
    """Maps of chosen layers (all by default; negative counts from the end): {layer: weights}.

    Over a grid [B, n, N, N] between patches, prefix tokens left out and rows renormalised; over windows [B, I, J, n,
    k, k]. `part`: what the layer uses ("mixed"), or its content or positional half alone. All asked maps are held at
    once: for many images go through `walk`.
    """
    model = inspectable(model)
    depth = num_attention_layers(model)
    if wrong := [block for block in blocks or () if not -depth <= block < depth]:
        raise ValueError(f"there is no layer {wrong[0]}; this model has {depth}, counted from 0")
    wanted = range(depth) if blocks is None else {block % depth for block in blocks}
    with looking(model):
        views = walk_batches(model, images, len(images))
        return {view.index: patch_map(view, part) for view in views if view.index in wanted}
