"""GPSA's positional weights and their gradients against the equation, by Triton's interpreter."""

import pytest
from interpreter import results_of

pytest.importorskip("triton")


def test_weights_and_gradients_are_as_exact_as_the_equation_in_float32():
    for name, errors in results_of("interpreted_positions.py").items():
        for what, (ours, plain) in errors.items():
            assert ours <= 10 * plain + 1e-6, (name, what, ours, plain)
