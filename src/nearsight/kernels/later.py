"""What waits until somebody imports another module: torch's compiler and its FLOP counter take longer to load than a
model to build, and both bring Triton along."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

COMPILER, FLOP_COUNTER = "torch._dynamo", "torch.utils.flop_counter"

Function = TypeVar("Function", bound=Callable[..., Any])


class _Waiting(MetaPathFinder):
    """Finds modules as others do; once one of those waited for has run, so do the actions that wait for it."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[], object]]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.actions:
            return None
        next_ones = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in next_ones)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_act(module: ModuleType) -> None:
                run(module)
                for action in self.actions.pop(name, ()):
                    action()

            spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec


_waiting = _Waiting()
sys.meta_path.insert(0, _waiting)


def when_imported(module: str, action: Callable[[], object]) -> None:
    """Call `action` as soon as the module has been imported: now, where it has been."""
    if module in sys.modules and module not in _waiting.actions:
        action()
    else:
        _waiting.actions.setdefault(module, []).append(action)


def constant_when_compiled(function: Function) -> Function:
    """`torch.compiler.assume_constant_result`, which imports the compiler, once that has been imported."""

    def mark() -> None:
        import torch

        torch.compiler.assume_constant_result(function)  # marks the function itself

    when_imported(COMPILER, mark)
    return function


def register_flop_formula(operator: Any) -> Callable[[Function], Function]:
    """torch's decorator of this name, once its FLOP counter has been imported."""

    def keep(formula: Function) -> Function:
        def register() -> None:
            from torch.utils.flop_counter import register_flop_formula

            register_flop_formula(operator)(formula)

        when_imported(FLOP_COUNTER, register)
        return formula

    return keep
