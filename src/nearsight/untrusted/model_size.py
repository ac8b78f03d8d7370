"""How large a model may be that somebody else's settings ask for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules import module as hooks

from nearsight.untrusted.limits import MODEL_MODULES, MODEL_PARAMETERS


class TooLarge(ValueError):
    """A model of more layers or numbers than any machine here could hold."""


def check_size(build: Callable[[], nn.Module], what: str) -> None:
    """Build a model without memory, and stop as soon as it has too many layers or numbers.

    Settings such as a depth of ten million would otherwise keep the machine busy until its memory is full.
    """
    modules = numbers = 0

    def count_module(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        nonlocal modules
        modules += 1
        if modules > MODEL_MODULES:
            raise TooLarge(f"{what} would have more than {MODEL_MODULES:,} layers; choose a smaller one")

    def count_numbers(parent: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        nonlocal numbers
        numbers += 0 if tensor is None else tensor.numel()
        if numbers > MODEL_PARAMETERS:
            raise TooLarge(f"{what} would have more than {MODEL_PARAMETERS:,} parameters; choose a smaller one")

    handles = [
        hooks.register_module_module_registration_hook(count_module),
        hooks.register_module_parameter_registration_hook(count_numbers),
        hooks.register_module_buffer_registration_hook(count_numbers),
    ]
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            build()
    except ValueError:
        raise
    # What layers raise for numbers that make no sense, such as a width of zero or a word for a number.
    except (RuntimeError, TypeError, ArithmeticError, LookupError, AttributeError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{what} cannot be built with these options: {reason:.400}") from error
    finally:
        for handle in handles:
            handle.remove()
