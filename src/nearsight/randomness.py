"""Random numbers without state: a hash of counters such as (seed, epoch, index).

Exact resume, any number of workers and any number of processes all follow from one rule: randomness is a pure function
of *what* is drawn, never of what was drawn before. The arithmetic below stays under 2^63, so Python integers, NumPy
int64 arrays and torch int64 tensors (on any device, compiled or not) give the same bits from the same lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# What a run's seed is hashed with, so that its streams of numbers never meet: for torch's own generator,
INITIALISATION_STREAM = 1  # first weights
STEP_STREAM = 2  # dropout and stochastic depth, with the step and the process
# and for orders.
ROUND_STREAM = 3  # the order of classes in each round of a balanced epoch
CLASS_STREAM = 4  # the order of a class's images in each pass over them

_MASK = 0xFFFFFFFF
# Odd multipliers below 2^31, so that a 32-bit value times one of them fits a signed 64-bit integer.
_MULTIPLIERS = (0x2C1B3C6D, 0x297A2D39, 0x5BD1E995)
_START = 0x9E3779B9


def scramble32(value: Any) -> Any:
    """A bijection of 32-bit values in which every input bit reaches every output bit."""
    for multiplier in _MULTIPLIERS:
        value = ((value ^ (value >> 15)) * multiplier) & _MASK
    return value ^ (value >> 16)


def hash32(*parts: Any) -> Any:
    """32 random-looking bits (as int64) for integers, integer arrays or integer tensors, broadcast together."""
    state: Any = _START
    for part in parts:
        state = scramble32((state + (part & _MASK)) & _MASK)
        state = scramble32(state ^ ((part >> 32) & _MASK))
    return state


def to_unit(bits: Any) -> Any:
    """32 random bits to a number in [0, 1): the upper 24, which float32 holds exactly."""
    return (bits >> 8) * 2.0**-24


def sample_keys(seed: Any, epoch: Any, indices: Any, repeats: Any = 0) -> Any:
    """One 32-bit key per sample; all augmentation of the sample follows from its key.

    Integers, NumPy arrays or torch tensors. Inside a compiled step pass seed and epoch as 0-d int64 tensors, so that a
    new epoch does not mean a new graph.
    """
    return hash32(seed, epoch, indices, repeats)


def permutation(count: int, *key: int) -> np.ndarray:
    """A permutation of range(count) that depends on the integers of `key` alone, in every version of NumPy."""
    positions = np.arange(count, dtype=np.int64)
    high, low = hash32(*key, positions, 0), hash32(*key, positions, 1)
    return np.argsort((high << 31) | (low >> 1), kind="stable")
