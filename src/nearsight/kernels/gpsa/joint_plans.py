"""How GPSA's joint kernels are launched: sizes of tiles, how odd lengths are cut, and the plans in use."""

from functools import cache
from typing import NamedTuple

from ..sizes import ceil_div, next_power_of_2

SMALLEST = 16  # the least side of a tile that tensor cores multiply

Spans = tuple[tuple[int, int], ...]


class ForwardPlan(NamedTuple):
    """`rows` queries to a tile; a program takes one, or `all_tiles` of an image and head.

    `spare_channels` splits channels into powers of two (32 + 16 for 48) instead of padding them to the next one.
    """

    rows: int
    warps: int
    stages: int = 2
    all_tiles: bool = False
    spare_channels: bool = True


class RowsPlan(NamedTuple):
    """Backward by rows (∂query): as `ForwardPlan`."""

    rows: int
    warps: int
    stages: int = 1
    spare_channels: bool = True


class ColumnsPlan(NamedTuple):
    """Backward by columns (∂key, ∂value): `rows` keys to a program, which meet the queries `step` at a time.

    `registers` is the most a thread may take: 128 let four programs of four warps run on a multiprocessor.
    """

    rows: int
    step: int
    warps: int
    stages: int = 2
    spare_channels: bool = True
    registers: int | None = None


# The fastest on an H200 at 14×14 tokens of 48 channels with 9 heads, and within a percent of it with 4 and 16.
FORWARD = ForwardPlan(rows=64, warps=4, stages=2, all_tiles=True, spare_channels=False)
ROWS = RowsPlan(rows=64, warps=4, stages=1, spare_channels=False)
COLUMNS = ColumnsPlan(rows=64, step=32, warps=4, stages=2, registers=128)
FORWARD_BYTES = 120 << 10  # of shared memory that FORWARD takes at most (112 KiB by Triton 3.6, 88 by 3.8)


def forward_plan(shared_memory: int | None) -> ForwardPlan:
    """FORWARD, or a tile to a program where a device has less shared memory (99 KiB on GeForce, A10 and L4).

    Compiled for those, that takes 48 KiB at most; it has not been timed there. None: nothing is known of the device.
    """
    if shared_memory is not None and shared_memory < FORWARD_BYTES:
        return FORWARD._replace(all_tiles=False)
    return FORWARD


def power(length: int) -> int:
    return max(SMALLEST, next_power_of_2(length))


@cache
def spans(length: int, spare: bool, parts: int) -> Spans:
    """(start, width) of tiles that cover `length`: one power of two, or at most `parts` if they are less padding."""
    whole = power(length)
    widths: list[int] = []
    rest = length
    while rest > 0 and len(widths) < parts:
        up = power(rest)
        widths.append(up if len(widths) == parts - 1 or up == rest else max(SMALLEST, up // 2))
        rest -= widths[-1]
    if not spare or sum(widths) >= whole:
        widths = [whole]
    return tuple((sum(widths[:index]), width) for index, width in enumerate(widths))


def channel_spans(head_dim: int, spare: bool) -> Spans:
    return spans(head_dim, spare, parts=2)


def key_spans(tokens: int) -> Spans:
    return spans(tokens, spare=True, parts=3)


def tiling(tokens: int, rows: int) -> tuple[int, int]:
    """Rows of a tile, not larger than needed, and how many tiles there are."""
    rows = min(rows, power(tokens))
    return rows, ceil_div(tokens, rows)
