"""Image sizes and the grids they make."""

from ..geometry import Grid


def as_pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """One side or (height, width) → (height, width)."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


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
