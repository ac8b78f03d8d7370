"""Local attention beside what it replaces and what people use for it, at the four stages of a ResNet."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nearsight.acceleration import accelerate
from nearsight.bench.measure import Row, device_ms, median_ms, out_of_memory_named, peak_memory
from nearsight.functional import local as equations
from nearsight.kernels import (
    explain_gated_positional_attention,
    explain_linear,
    explain_local_attention,
    local_attention,
)
from nearsight.nn import LocalSelfAttention2d

STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels and side of ResNet-50's four stages at 224 pixels
GRIDS = (8, 14, 24, 64)  # sides of ConViT's patch grids: 32 pixels by 4, then 224, 384 and 1024 by 16
NUM_HEADS = 8
KERNEL_SIZE = 7
COLUMNS = (
    "shape", "what", "forward ms", "× conv", "forward+backward ms", "× conv (f+b)", "eager forward ms", "memory MiB",
)  # fmt: skip
PEERS = ("conv", "projection", "attention", "layer", "unfold", "flex")


def columns(device: torch.device) -> tuple[str, ...]:
    """What is measured there: on a CPU nothing is replayed, so that eager times are the times."""
    return COLUMNS if device.type == "cuda" else tuple(name for name in COLUMNS if name != "eager forward ms")


def default_batch(device: torch.device) -> int:
    return 128 if device.type == "cuda" else 4


def number_type(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def unfold_step(projected: Tensor, row_embedding: Tensor, col_embedding: Tensor) -> Tensor:
    """The equation as it is written, every window copied."""
    embeddings = (row_embedding.to(projected.dtype), col_embedding.to(projected.dtype))
    return equations.local_attention(*equations.query_key_value(projected), *embeddings, kernel_size=KERNEL_SIZE)


def flex_attention_step(side: int) -> Callable[..., Tensor]:
    """FlexAttention with the same window and q·r term; heads of 8 channels are padded to its least, 16."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    reach = KERNEL_SIZE // 2

    def in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        rows = (query // side - key // side).abs() <= reach
        return rows & ((query % side - key % side).abs() <= reach)

    mask = create_block_mask(in_window, None, None, side * side, side * side, device="cuda")
    torch.compiler.reset()  # or the stages together reach the limit of versions that one function may have
    compiled = torch.compile(flex_attention, dynamic=False)

    def attend(projected: Tensor, row_embedding: Tensor, col_embedding: Tensor) -> Tensor:
        query, key, value = projected.unbind(3)
        dtype, half = query.dtype, query.shape[-1] // 2
        by_row = torch.einsum("bijnd,gkd->bnijk", query[..., :half], row_embedding.to(dtype)).flatten(2, 3)
        by_col = torch.einsum("bijnd,gkd->bnijk", query[..., half:], col_embedding.to(dtype)).flatten(2, 3)

        def add_position(score: Tensor, batch: Tensor, head: Tensor, at: Tensor, key_at: Tensor) -> Tensor:
            row = torch.clamp(key_at // side - at // side + reach, 0, KERNEL_SIZE - 1)
            col = torch.clamp(key_at % side - at % side + reach, 0, KERNEL_SIZE - 1)
            return score + by_row[batch, head, at, row] + by_col[batch, head, at, col]

        pad = max(0, 16 - query.shape[-1])
        q, k, v = (nn.functional.pad(x.flatten(1, 2).transpose(1, 2), (0, pad)) for x in (query, key, value))
        out = compiled(q, k, v, score_mod=add_position, block_mask=mask, scale=1.0)
        return out[..., : query.shape[-1]].transpose(1, 2).unflatten(1, (side, side))

    return attend


def measure_stages(batch: int, device: torch.device, peers: Sequence[str], repeats: int) -> Iterator[Row]:
    """The rows of all four stages, as they come."""
    with out_of_memory_named(batch):
        for channels, side in STAGES:
            yield from measure_stage(channels, side, batch, device, peers, repeats)


def measure_stage(
    channels: int, side: int, batch: int, device: torch.device, peers: Sequence[str], repeats: int
) -> Iterator[Row]:
    """One row for each peer at one stage; the rows without a projection take q, k and v as one has made them."""
    head_dim, num_sets, dtype = channels // NUM_HEADS, 3, number_type(device)
    shape = (batch, side, side, 3, NUM_HEADS, head_dim)
    projected = [torch.randn(shape, device=device, dtype=dtype) for _ in range(num_sets)]
    images = [
        torch.randn(batch, channels, side, side, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        for _ in range(num_sets)
    ]
    row_embedding, col_embedding = (
        torch.randn(1, KERNEL_SIZE, head_dim // 2, device=device, requires_grad=True) for _ in range(2)
    )

    def on_images(module: nn.Module) -> tuple[Callable[[Any], Tensor], list[Any], list[Tensor]]:
        module = module.to(device, dtype).to(memory_format=torch.channels_last)
        return module, images, list(module.parameters())

    def on_projected(function: Callable[..., Tensor]) -> tuple[Callable[[Any], Tensor], list[Any], list[Tensor]]:
        embeddings = (row_embedding, col_embedding)
        return lambda one: function(one, *embeddings), projected, list(embeddings)

    builders: dict[str, Callable[[], tuple[Callable[[Any], Tensor], list[Any], list[Tensor]]]] = {
        "conv": lambda: on_images(nn.Conv2d(channels, channels, 3, padding=1, bias=False)),
        "projection": lambda: on_images(nn.Conv2d(channels, 3 * channels, 1, bias=False)),
        "attention": lambda: on_projected(partial(local_attention, kernel_size=KERNEL_SIZE)),
        "layer": lambda: on_images(
            accelerate(LocalSelfAttention2d(channels, channels, KERNEL_SIZE, num_heads=NUM_HEADS))
        ),
        "unfold": lambda: on_projected(unfold_step),
        "flex": lambda: on_projected(flex_attention_step(side)),
    }
    conv: Row | None = None
    for peer in peers:
        if peer == "flex" and device.type != "cuda":
            continue
        step, sets, parameters = builders[peer]()
        row = {"shape": f"{channels} × {side}²", "what": peer, **_measure(step, sets, parameters, device, repeats)}
        conv = row if peer == "conv" else conv
        if conv is not None:
            row["× conv"] = row["forward ms"] / conv["forward ms"]
            row["× conv (f+b)"] = row["forward+backward ms"] / conv["forward+backward ms"]
        if device.type == "cuda":
            torch.cuda.empty_cache()
        yield row


def _measure(
    step: Callable[[Any], Tensor], sets: list[Any], parameters: list[Tensor], device: torch.device, repeats: int
) -> Row:
    leaves = [one.detach().requires_grad_() for one in sets]
    gradient = torch.randn_like(step(sets[0]))

    def forward(one: Any) -> Tensor:
        with torch.no_grad():
            return step(one)

    def both(one: Any) -> Any:
        return torch.autograd.grad(step(one), [one, *parameters], gradient)

    row: Row = {"memory MiB": peak_memory(both, leaves[0], device) / 2**20}
    row["forward ms"] = device_ms(forward, sets, device, repeats)
    row["forward+backward ms"] = device_ms(both, leaves, device, repeats)
    if device.type == "cuda":  # elsewhere nothing else is measured above
        row["eager forward ms"] = median_ms(forward, sets, device, repeats)
    return row


def explain(batch: int, device: torch.device) -> str:
    """Which backend runs at each stage, on GPSA's grids and in ConViT-Ti's feed-forward, and why not the others."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, dtype=number_type(device))

    said = {}
    for channels, side in STAGES:
        head_dim = channels // NUM_HEADS
        projected, embedding = empty(batch, side, side, 3, NUM_HEADS, head_dim), empty(1, KERNEL_SIZE, head_dim // 2)
        verdicts = explain_local_attention(projected, embedding, embedding, kernel_size=KERNEL_SIZE)
        said[f"{channels} × {side}²"] = verdicts
    for side in GRIDS:
        qkv, v_pos, gate = empty(1, side * side, 3, 9, 48), empty(9, 3), empty(9)  # ConViT-S's heads
        verdicts = explain_gated_positional_attention(qkv, v_pos, gate, gate, grid_size=(side, side))
        said[f"GPSA {side}²"] = verdicts
    said[f"linear 192 → 768, {batch} × 196 tokens"] = explain_linear(empty(batch, 196, 192), empty(768, 192))
    return "\n".join(f"{what}: {verdict}" for what, verdicts in said.items() for verdict in verdicts)
