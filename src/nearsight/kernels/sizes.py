"""Sizes of launches in plain Python: Triton's functions for them work inside kernels too, and take 4 µs a call."""

PROGRAMS_WANTED = 528  # of a GPU kernel: four for each multiprocessor of a large device
LANES = 16  # float32 numbers of a vector in loops that numba compiles


def ceil_div(length: int, part: int) -> int:
    return -(-length // part)


def next_power_of_2(length: int) -> int:
    """The least power of two that is not below `length`, which is at least 1."""
    return 1 << (length - 1).bit_length()
