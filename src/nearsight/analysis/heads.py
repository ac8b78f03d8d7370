"""Every head by itself: where it looks, how widely, how sharply, and how close it is to a convolution.

Two answers for a positional head: what its v_pos says (exact, on an unbounded grid) and what its map shows (measured).
"""

from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nearsight.analysis import measures
from nearsight.analysis.locality import nonlocality_and_entropy
from nearsight.analysis.views import GlobalView, Kind, LocalView, View
from nearsight.analysis.walk import inspectable, looking, walk_batches
from nearsight.functional import positional_weights
from nearsight.geometry import Grid, grid_offsets


class PositionalGeometry(NamedTuple):
    """What v_pos says about each head, lists over heads. Offsets are (row, col), key − query, in patches."""

    center: list[tuple[float, float]]
    span: list[float]
    strength: list[float]  # α; zero or negative when the head does not focus
    degenerate: list[bool]


def positional_geometry(v_pos: Tensor, grid_size: Grid) -> PositionalGeometry:
    """Centre Δ, span 1/√(2α) and strength α of positional heads, from v_pos [n, 3] = −α(1, −2Δ_row, −2Δ_col) (Eq. 5).

    Training may leave that form: with a = v_pos[0] ≥ 0 the logit a‖δ‖² + bδ_row + cδ_col has no peak, and with a tiny
    a < 0 its peak lies off any image. Such a head is **degenerate**: its centre and span are then those of its map on
    `grid_size`, seen from the middle query (the patch that the softmax leans towards, and how widely).
    """
    v_pos = v_pos.detach().double().cpu()
    square, linear = v_pos[:, 0], v_pos[:, 1:]
    height, width = grid_size
    center = -linear / (2 * square[:, None])
    reach = torch.tensor([height - 1, width - 1], dtype=torch.float64)
    degenerate = ~((square < 0) & (center.abs() <= reach).all(dim=-1))
    span = (-2 * square).clamp_min(0).rsqrt()
    seen_center, seen_span = _seen_from_the_middle(v_pos, grid_size)
    center = torch.where(degenerate[:, None], seen_center, center)
    span = torch.where(degenerate, seen_span, span)
    return PositionalGeometry(
        [(row, col) for row, col in center.tolist()], span.tolist(), (-square).tolist(), degenerate.tolist()
    )


def _seen_from_the_middle(v_pos: Tensor, grid_size: Grid) -> tuple[Tensor, Tensor]:
    height, width = grid_size
    query = (height // 2) * width + width // 2
    weights = positional_weights(v_pos, grid_size)[:, query]
    offset = grid_offsets(grid_size, dtype=v_pos.dtype)[query]
    center = weights @ offset
    variance = (weights @ offset.square().sum(dim=-1) - center.square().sum(dim=-1)).clamp_min(0)
    return center, (variance / 2).sqrt()


@dataclass(frozen=True)
class HeadProfile:
    """One head, averaged over images and queries. Distances in patches (of the layer's own grid), offsets (row,
    col)."""

    layer: int
    layer_name: str
    kind: Kind
    head: int
    nonlocality: float
    entropy: float
    measured_center: tuple[float, float]
    measured_span: float
    convolution_share: float
    gate_value: float | None = None
    center: tuple[float, float] | None = None  # from v_pos, as are the next three
    span: float | None = None
    strength: float | None = None
    degenerate: bool | None = None

    def as_dict(self) -> dict:
        return asdict(self)


def head_profiles(model: nn.Module, images: Tensor, *, batch_size: int = 8) -> list[HeadProfile]:
    """Every head of every attention layer on `images` [B, C, H, W], layer by layer.

    Holds one averaged map for each layer (not for each image), besides the maps of the layer at hand.
    """
    model = inspectable(model)
    labels: dict[int, _Label] = {}
    sums: dict[int, _Sums] = {}
    with looking(model):
        for view in walk_batches(model, images, batch_size):
            labels[view.index] = _label(view)
            new = _sums(view)
            old = sums.get(view.index)
            sums[view.index] = new if old is None else _Sums(*(a + b for a, b in zip(old, new, strict=True)))
    profiles: list[HeadProfile] = []
    for index, label in labels.items():
        profiles += _layer_profiles(index, label, _Sums(*(total / len(images) for total in sums[index])))
    return profiles


def profiles_of_view(view: View) -> list[HeadProfile]:
    """The heads of one layer on the images of one view."""
    return _layer_profiles(view.index, _label(view), _Sums(*(total / len(view.query) for total in _sums(view))))


class _Label(NamedTuple):
    name: str
    kind: Kind
    num_heads: int
    grid_size: Grid
    gate_value: list[float] | None
    position: PositionalGeometry | None


class _Sums(NamedTuple):
    """Summed over images; the first axis is the head."""

    nonlocality: Tensor
    entropy: Tensor
    center: Tensor
    variance: Tensor
    squares: Tensor  # Σ A² of the maps that `mean` averages
    mean: Tensor  # [n, N, N], or [n, k, k] for windows


def _label(view: View) -> _Label:
    gates = None if view.gate_value is None else view.gate_value.detach().float().tolist()
    position = None
    if isinstance(view, GlobalView) and view.v_pos is not None:
        position = positional_geometry(view.v_pos, view.grid_size)
    return _Label(view.name, view.kind, view.num_heads, view.grid_size, gates, position)


def _sums(view: View) -> _Sums:
    return _global_sums(view) if isinstance(view, GlobalView) else _local_sums(view)


def _global_sums(view: GlobalView) -> _Sums:
    weights = view.patch_weights()
    far, spread = nonlocality_and_entropy(view, weights)
    center, span = measures.centers_and_spans(weights, view.grid_size)
    squares = weights.square().sum(dim=(-2, -1))
    return _Sums(*(x.sum(dim=0) for x in (far, spread, center, span.square(), squares, weights)))


def _local_sums(view: LocalView) -> _Sums:
    weights = view.inside_weights()
    far, spread = nonlocality_and_entropy(view, weights)
    center, span = measures.window_centers_and_spans(weights, view.offsets())
    whole = view.inside().all(dim=-1).all(dim=-1)  # queries whose window the edge does not cut
    inner = weights[:, whole] if bool(whole.any()) else weights.flatten(1, 2)  # [B, queries, n, k, k]
    squares = inner.square().sum(dim=(-2, -1)).mean(dim=1)
    return _Sums(*(x.sum(dim=0) for x in (far, spread, center, span.square(), squares, inner.mean(dim=1))))


def _layer_profiles(index: int, label: _Label, mean: _Sums) -> list[HeadProfile]:
    if label.kind == "local":
        # The best kernel is the mean window m, so that Σ‖A − m‖² = Σ‖A‖² − ‖m‖².
        share = (mean.mean.square().sum(dim=(-2, -1)) / mean.squares).clamp(0, 1)
    else:
        share = measures.convolution_share(mean.squares, mean.mean, label.grid_size)
    learned = [(None,) * 4] * label.num_heads if label.position is None else zip(*label.position, strict=True)
    profiles = []
    for head, (center, span, strength, degenerate) in enumerate(learned):
        row, col = mean.center[head].tolist()
        profiles.append(
            HeadProfile(
                layer=index,
                layer_name=label.name,
                kind=label.kind,
                head=head,
                nonlocality=mean.nonlocality[head].item(),
                entropy=mean.entropy[head].item(),
                measured_center=(row, col),
                measured_span=mean.variance[head].sqrt().item(),
                convolution_share=share[head].item(),
                gate_value=None if label.gate_value is None else label.gate_value[head],
                center=center,
                span=span,
                strength=strength,
                degenerate=degenerate,
            )
        )
    return profiles
