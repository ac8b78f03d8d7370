"""Local attention on the CPU: small tiles of queries against the keys of their common halo, by matrix products.

A tile of T×T queries sees (T + k − 1)² keys. Copying each tile's halo costs ((T + k − 1) / T)² times the keys, 6 times
for k = 7 instead of unfold's 49, and turns the ragged windows into dense products; keys outside a query's window get −∞
through the position term. A few rows of tiles at a time, so that the logits stay in the cache and memory does not grow
with the batch. The backward pass computes the weights again: only the inputs are kept.

Shapes: z tiles of a chunk, n heads, T tile side, S = T + k − 1 halo side, d channels of a head.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...functional.local import query_key_value
from ...geometry import window_padding
from .cpu_operator import cpu_backend

TILE = 4
CHUNK_LOGITS = 1 << 19  # two megabytes of float32: a core's share of the cache
OUTSIDE = -1e30  # finite, so that threads of queries beyond the edge stay free of NaN


class _Problem(NamedTuple):
    """Sizes shared by both passes."""

    height: int
    width: int
    num_heads: int
    head_dim: int
    kernel_size: int
    mask: bool

    @property
    def halo(self) -> int:
        return TILE + self.kernel_size - 1

    @property
    def tiles(self) -> tuple[int, int]:
        return -(-self.height // TILE), -(-self.width // TILE)

    def position_part(self, row: bool) -> tuple[slice, int]:
        """Channels that meet the row (or column) embedding, and the axis of rows (columns) in tiles [z, n, T, T, …]."""
        half = self.head_dim // 2
        return (slice(half), 2) if row else (slice(half, None), 3)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """First and last row of tiles of each chunk."""
        rows, cols = self.tiles
        step = max(1, CHUNK_LOGITS // (cols * self.num_heads * TILE**2 * self.halo**2))
        for first in range(0, rows, step):
            yield first, min(first + step, rows)


def _padded(image: Tensor, problem: _Problem, before: int, beyond: int) -> Tensor:
    """[H, W, n, d] with `before` zero pixels on top and left; below and right, whole tiles and `beyond` more."""
    rows, cols = problem.tiles
    below, right = rows * TILE - problem.height + beyond, cols * TILE - problem.width + beyond
    return F.pad(image, (0, 0, 0, 0, before, right, before, below))


def _query_tiles(padded: Tensor, first: int, last: int) -> Tensor:
    """Rows first…last of tiles of a padded image: [z, n, T, T, d]."""
    tiles = padded[first * TILE : last * TILE].unflatten(0, (-1, TILE)).unflatten(2, (-1, TILE))
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(0, 1)


def _key_tiles(padded: Tensor, halo: int, first: int, last: int) -> Tensor:
    """The halos of the same tiles: [z, n, S², d]."""
    rows = padded[first * TILE : (last - 1) * TILE + halo]
    tiles = rows.unfold(0, halo, TILE).unfold(1, halo, TILE)
    return tiles.permute(0, 1, 2, 4, 5, 3).flatten(3, 4).flatten(0, 1)


def _add_key_tiles(padded: Tensor, tiles: Tensor, problem: _Problem, first: int, last: int) -> None:
    """Adds halos [z, n, S², d] back into the padded image, block by block: halos overlap, blocks of T pixels do not."""
    halo, cols = problem.halo, problem.tiles[1]
    tiles = tiles.unflatten(2, (halo, halo)).unflatten(0, (last - first, cols)).permute(0, 1, 2, 5, 3, 4)
    for row in range(0, halo, TILE):
        for col in range(0, halo, TILE):
            block = tiles[..., row : row + TILE, col : col + TILE]
            rows = padded[first * TILE + row :, col:].unfold(0, block.shape[-2], TILE)[: last - first]
            rows.unfold(1, block.shape[-1], TILE)[:, :cols].add_(block)


def _inside(start: int, count: int, length: int, problem: _Problem) -> Tensor:
    """Which places of the halos of `count` tiles lie inside the image along one axis: [count, S]."""
    before = window_padding(problem.kernel_size)[0]
    place = (start + torch.arange(count))[:, None] * TILE + torch.arange(problem.halo) - before
    return (place >= 0) & (place < length)


def _axis_terms(tiles: Tensor, embedding: Tensor | None, problem: _Problem, row: bool) -> Tensor:
    """q·r along one axis for every key row (or column) of the halo, −∞ outside the window: [z, n, T, T, S]."""
    terms = tiles.new_full((*tiles.shape[:4], problem.halo), float("-inf"))
    part, axis = problem.position_part(row)
    logits = None if embedding is None else tiles[..., part] @ embedding.transpose(1, 2)[:, None]
    for place in range(TILE):
        seen = slice(place, place + problem.kernel_size)
        terms.select(axis, place)[..., seen] = 0.0 if logits is None else logits.select(axis, place)
    return terms


def _weights(
    tiles: Tensor, keys: Tensor | None, row_embedding: Tensor | None, col_embedding: Tensor | None,
    problem: _Problem, first: int, last: int,
) -> Tensor:  # fmt: skip
    """Attention weights of a chunk, [z·n, T², S²]."""
    row_terms = _axis_terms(tiles, row_embedding, problem, row=True)
    col_terms = _axis_terms(tiles, col_embedding, problem, row=False)
    if problem.mask:
        count, cols = last - first, problem.tiles[1]
        row_inside = _inside(first, count, problem.height, problem).repeat_interleave(cols, dim=0)
        col_inside = _inside(0, cols, problem.width, problem).repeat(count, 1)
        # Keep −∞ where it is: only a place inside the window may fall back to the finite OUTSIDE.
        row_terms = torch.where(row_inside[:, None, None, None], row_terms, row_terms.clamp(max=OUTSIDE))
        col_terms = torch.where(col_inside[:, None, None, None], col_terms, col_terms.clamp(max=OUTSIDE))
    logits = (row_terms[..., :, None] + col_terms[..., None, :]).flatten(4).flatten(2, 3).flatten(0, 1)
    if keys is not None:
        logits.baddbmm_(tiles.flatten(2, 3).flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
    return logits.softmax(dim=-1)


def _problem(projected: Tensor, kernel_size: int, mask: bool) -> _Problem:
    _, height, width, _, num_heads, head_dim = projected.shape
    return _Problem(height, width, num_heads, head_dim, kernel_size, mask)


def _arithmetic_type(projected: Tensor) -> torch.dtype:
    """The projection's own, or float32 where that is half precision."""
    return torch.promote_types(projected.dtype, torch.float32)


class _Image(NamedTuple):
    """Query, key and value of one image in the type of the arithmetic, padded to whole tiles and their halos."""

    query: Tensor
    key: Tensor | None
    value: Tensor

    @classmethod
    def of(cls, projected: Tensor, index: int, problem: _Problem) -> "_Image":
        query, key, value = query_key_value(projected[index : index + 1].to(_arithmetic_type(projected)))
        before, after = window_padding(problem.kernel_size)
        return cls(
            _padded(query[0], problem, 0, 0),
            None if key is None else _padded(key[0], problem, before, after),
            _padded(value[0], problem, before, after),
        )

    def tiles(self, problem: _Problem, first: int, last: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Queries [z, n, T, T, d], and the keys and values of their halos [z, n, S², d]."""
        keys = None if self.key is None else _key_tiles(self.key, problem.halo, first, last)
        return _query_tiles(self.query, first, last), keys, _key_tiles(self.value, problem.halo, first, last)


def _forward(
    projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None, kernel_size: int, mask: bool
) -> Tensor:
    problem = _problem(projected, kernel_size, mask)
    row, col = (x if x is None else x.to(_arithmetic_type(projected)) for x in (row_embedding, col_embedding))
    output = projected.new_empty((*projected.shape[:3], *projected.shape[4:]))
    for index in range(projected.shape[0]):
        image = _Image.of(projected, index, problem)
        for first, last in problem.chunks():
            tiles, keys, values = image.tiles(problem, first, last)
            weights = _weights(tiles, keys, row, col, problem, first, last)
            _write(output[index], weights @ values.flatten(0, 1), problem, first, last)
    return output


def _write(image: Tensor, tiles: Tensor, problem: _Problem, first: int, last: int) -> None:
    """Puts tiles [z·n, T², d] in their place of an image [H, W, n, d]."""
    cols = problem.tiles[1]
    pixels = tiles.reshape(last - first, cols, problem.num_heads, TILE, TILE, problem.head_dim)
    rows = pixels.permute(0, 3, 1, 4, 2, 5).flatten(2, 3).flatten(0, 1)
    end = min(last * TILE, problem.height)
    image[first * TILE : end] = rows[: end - first * TILE, : problem.width]


def _backward(
    grad_output: Tensor, projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    kernel_size: int, mask: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the projection and of both embeddings; empty tensors for those that are absent."""
    problem = _problem(projected, kernel_size, mask)
    row, col = (x if x is None else x.to(_arithmetic_type(projected)) for x in (row_embedding, col_embedding))
    grad_row, grad_col = (projected.new_empty(0) if x is None else torch.zeros_like(x) for x in (row, col))
    grad_projected = projected.new_empty(projected.shape)
    grad_query, grad_key, grad_value = query_key_value(grad_projected)
    before = window_padding(kernel_size)[0]
    inner = (slice(before, before + problem.height), slice(before, before + problem.width))
    for index in range(projected.shape[0]):
        image = _Image.of(projected, index, problem)
        padded_grad = _padded(grad_output[index].to(image.query.dtype), problem, 0, 0)
        into_key = None if image.key is None else torch.zeros_like(image.key)
        into_value = torch.zeros_like(image.value)
        for first, last in problem.chunks():
            tiles, keys, values = image.tiles(problem, first, last)
            grads = _query_tiles(padded_grad, first, last).flatten(2, 3).flatten(0, 1)
            weights = _weights(tiles, keys, row, col, problem, first, last)
            back = (weights.transpose(1, 2) @ grads).unflatten(0, (-1, problem.num_heads))
            _add_key_tiles(into_value, back, problem, first, last)
            grad_weights = grads @ values.flatten(0, 1).transpose(1, 2)
            grad_logits = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            into_tiles = torch.zeros_like(tiles)
            if keys is not None and into_key is not None:
                flat = tiles.flatten(2, 3).flatten(0, 1)
                back = (grad_logits.transpose(1, 2) @ flat).unflatten(0, (-1, problem.num_heads))
                _add_key_tiles(into_key, back, problem, first, last)
                into_tiles = (grad_logits @ keys.flatten(0, 1)).view_as(tiles)
            by_pair = grad_logits.view(*tiles.shape[:4], problem.halo, problem.halo)
            if row is not None and col is not None:
                _position_gradients(by_pair.sum(-1), tiles, into_tiles, row, grad_row, problem, row=True)
                _position_gradients(by_pair.sum(-2), tiles, into_tiles, col, grad_col, problem, row=False)
            _write(grad_query[index], into_tiles.flatten(2, 3).flatten(0, 1), problem, first, last)
        grad_value[index] = into_value[inner]
        if into_key is not None and grad_key is not None:
            grad_key[index] = into_key[inner]
    embeddings = (row_embedding, col_embedding)
    shares = (g if e is None else g.to(e.dtype) for g, e in zip((grad_row, grad_col), embeddings, strict=True))
    return [grad_projected, *shares]


def _position_gradients(
    sums: Tensor, tiles: Tensor, into_tiles: Tensor, embedding: Tensor, grad_embedding: Tensor, problem: _Problem,
    *, row: bool,
) -> None:  # fmt: skip
    """Adds the position term's part of ∂query and ∂embedding; `sums` [z, n, T, T, S]: ∂logits by halo row or column."""
    part, axis = problem.position_part(row)
    windows = [sums.select(axis, place)[..., place : place + problem.kernel_size] for place in range(TILE)]
    by_offset = torch.stack(windows, dim=axis)
    into_tiles[..., part] += by_offset @ embedding[:, None]
    share = torch.einsum("znijk,znijd->nkd", by_offset, tiles[..., part])
    grad_embedding += share if grad_embedding.shape[0] > 1 else share.sum(dim=0, keepdim=True)


CPU = cpu_backend("cpu", _forward, _backward)
