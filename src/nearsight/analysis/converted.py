"""Views of the layers that stand in the place of convolutions (`nearsight.convert`), in a network of any kind.

A view shows the map of every pixel, of which a strided layer uses some. Weight that taps have on padding, where there
is nothing to show, is left out.
"""

from __future__ import annotations

from torch import Tensor, nn

from nearsight.analysis.views import GlobalView, LocalView, View
from nearsight.nn import AttentionConv2d, GatedAttentionConv2d, LocalAttentionConv2d


def converted_view(layer: AttentionConv2d, x: Tensor, index: int, name: str) -> View:
    """The view of one layer on the map `x` [B, C, H, W] it is given."""
    x, _ = layer.surrounded(x)
    grid_size = (x.shape[2], x.shape[3])
    if isinstance(layer, LocalAttentionConv2d):
        query, key = layer.query_key(x)
        pixels = x.permute(0, 2, 3, 1)[:, :, :, None].expand(-1, -1, -1, layer.num_heads, -1)
        return LocalView(
            index=index,
            name=name,
            grid_size=grid_size,
            kernel_size=layer.window,
            stride=1,
            border=layer.border,
            query=query,
            key=key.permute(0, 3, 4, 1, 2),
            value=pixels,
            row_embedding=layer.row_embedding,
            col_embedding=layer.col_embedding,
        )
    assert isinstance(layer, GatedAttentionConv2d)
    query, key = layer.query_key(x)
    return GlobalView(
        index=index,
        name=name,
        kind="gpsa",
        grid_size=grid_size,
        num_prefix_tokens=0,
        query=query,
        key=key,
        value=x.flatten(2).transpose(1, 2)[:, None].expand(-1, layer.num_heads, -1, -1),
        scale=layer.head_dim**-0.5,
        v_pos=layer.v_pos,
        gate=layer.gate,
    )


def has_converted(model: nn.Module) -> bool:
    return any(isinstance(module, AttentionConv2d) for module in model.modules())
