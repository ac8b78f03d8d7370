"""What a call of the GPU kernels costs the processor, measured without a GPU: eager, small models wait for it.

    PYTHONPATH=src python benchmarks/calls.py --out results/benchmarks/calls.json

Everything of a call is real but the launch itself and questions to the device: a stand-in for Triton's driver takes
the kernels, compiled for an H200, and does nothing. Each call is timed torch's way, through the registered operator,
and as it is made in eager mode. The tensors are on the CPU and small, since what PyTorch itself computes in a backward
pass, a few sums, is part of the time.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from nearsight.bench.measure import environment
from nearsight.kernels import dispatch, gated_positional_attention, local_attention, triton_launch

CALLS, ROUNDS = 50, 40


def pretend_driver() -> SimpleNamespace:
    """Of an H200 on which nothing happens."""
    utils = SimpleNamespace(
        load_binary=lambda *arguments: (1, 1, 64, 0, 1024),
        unload_module=lambda module: None,
        get_device_properties=lambda device: {"max_shared_mem": 232448},
    )
    return SimpleNamespace(
        launcher_cls=lambda source, metadata: lambda *arguments: None,
        utils=utils,
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )


def nothing_against(tensor: torch.Tensor) -> None:
    return None


def always() -> bool:
    return True


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Tensors of the CPU are taken for a GPU's."""
    with (
        mock.patch.object(driver, "_active", pretend_driver()),
        mock.patch.object(dispatch, "no_triton_here", nothing_against),
    ):
        yield


def seconds(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        step()
    return (time.perf_counter() - started) / CALLS


def in_turns(step: Callable[[], object]) -> dict[str, float]:
    """Microseconds of both ways: the least of all rounds, since whatever else a machine does only adds."""
    ways: dict[str, list[float]] = {"torch's way": [], "straight": []}
    for _ in range(ROUNDS):
        ways["straight"].append(seconds(step))
        with mock.patch.object(triton_launch, "intercepted", always):
            ways["torch's way"].append(seconds(step))
    return {way: min(rounds) * 1e6 for way, rounds in ways.items()}


def steps() -> dict[str, Callable[[], object]]:
    """A layer of ConViT-Ti and one of ResNet-50's third stage, each for one small image."""
    qkv = torch.randn(1, 16, 3, 4, 48, dtype=torch.bfloat16, requires_grad=True)
    positions = [torch.randn(shape, requires_grad=True) for shape in ((4, 3), (4,), (4,))]
    projected = torch.randn(1, 4, 4, 3, 8, 32, dtype=torch.bfloat16, requires_grad=True)
    embeddings = [torch.randn(1, 7, 16, requires_grad=True) for _ in range(2)]
    layers = {
        "GPSA": (lambda: gated_positional_attention(qkv, *positions, grid_size=(4, 4)), [qkv, *positions]),
        "local attention": (
            lambda: local_attention(projected, *embeddings, kernel_size=7),
            [projected, *embeddings],
        ),
    }
    listed: dict[str, Callable[[], object]] = {}
    for name, (layer, inputs) in layers.items():
        gradient = torch.randn_like(layer())
        listed[f"{name}, inference"] = torch.no_grad()(layer)
        listed[f"{name}, forward"] = layer
        listed[f"{name}, forward + backward"] = lambda layer=layer, inputs=inputs, gradient=gradient: (
            torch.autograd.grad(layer(), inputs, gradient)
        )
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = {}
    with pretend_gpu():
        for name, step in steps().items():
            measured[name] = in_turns(step)
            print(f"{name}: {', '.join(f'{spent:.0f} µs {way}' for way, spent in measured[name].items())}")
    if options.out is not None:
        record = {
            "what": f"microseconds of a call without its launch, the least of {ROUNDS} rounds of {CALLS} calls",
            "environment": environment(torch.device("cpu")),
            "microseconds": measured,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
