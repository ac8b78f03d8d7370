"""Sizes of launches in plain Python: Triton's functions for them work inside kernels too, and take 4 µs a call."""


def ceil_div(length: int, part: int) -> int:
    return -(-length // part)


def next_power_of_2(length: int) -> int:
    """The least power of two that is not below `length`, which is at least 1."""
    return 1 << (length - 1).bit_length()
