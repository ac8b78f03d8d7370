"""Image sizes, the grids they make, and which of a model's layers are asked for."""

from collections.abc import Sequence

from ..geometry import Grid


def as_pair(size: int | Sequence[int]) -> tuple[int, int]:
    """One side or (height, width) → (height, width)."""
    pair = (size, size) if isinstance(size, int) else size
    sound = isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(side, int) and side > 0 for side in pair)
    if not sound or isinstance(pair, str):
        raise ValueError(f"an image size is one side or (height, width) in whole pixels, not {size!r}")
    return pair[0], pair[1]


def grid_of(img_size: tuple[int, int], stride: int) -> Grid:
    """How many patches fit, or an error that names the nearest size that works."""
    height, width = img_size
    if height < stride or width < stride or height % stride or width % stride:
        near = tuple(max(round(side / stride), 1) * stride for side in img_size)
        raise ValueError(
            f"image size {height}x{width} is not divisible by the patch of {stride}; "
            f"resize to {near[0]}x{near[1]}, for example"
        )
    return height // stride, width // stride


def chosen_layers(indices: int | Sequence[int] | None, depth: int) -> set[int]:
    """Which of `depth` layers: all, the last n, or those listed (negative ones count from the end)."""
    if indices is None:
        return set(range(depth))
    if isinstance(indices, int):
        if not 1 <= indices <= depth:
            raise ValueError(f"the last {indices} layers were asked for; the model has {depth}")
        return set(range(depth - indices, depth))
    for index in indices:
        if not isinstance(index, int) or not -depth <= index < depth:
            raise ValueError(f"there is no layer {index!r}; the model has layers 0 to {depth - 1}")
    return {index % depth for index in indices}
