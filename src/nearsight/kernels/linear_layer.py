"""Linear layers on a CPU through the faster of two libraries that torch has.

torch multiplies float32 matrices by MKL, which takes half of an AMD processor's 512-bit vectors, and convolves by
oneDNN, which takes all of them. A linear layer is a convolution of extent 1 over tokens as they lie in memory, channels
last: nothing is copied, and forward and backward take half the time. With one thread torch convolves fewer than 16
images by MKL again, so that nothing is gained then, and nothing lost.
"""

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dispatch import Backend, Verdict, choose, exporting, verdicts

SMALLEST = 2**24  # multiply-adds: below, a convolution's preparations cost what they save
PLAIN = (Tensor, nn.Parameter)


def _maps(tokens: Tensor) -> Tensor:
    """[..., C] → [B, C, N, 1] with the channels last in memory: a view of dense tokens."""
    images = tokens.shape[0] if tokens.dim() > 2 else 1
    return tokens.contiguous().reshape(images, -1, 1, tokens.shape[-1]).permute(0, 3, 1, 2)


def _kernel(weight: Tensor) -> Tensor:
    return weight[:, :, None, None]


def _tokens(maps: Tensor, shape: torch.Size) -> Tensor:
    """[B, C, N, 1] → dense [..., C] with the leading sizes of `shape`: a view again."""
    return maps.permute(0, 2, 3, 1).reshape(*shape[:-1], maps.shape[1]).contiguous()


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _tokens(F.conv2d(_maps(x), _kernel(weight), bias), x.shape)


@torch.library.custom_op("nearsight::linear", mutates_args=(), device_types="cpu")
def linear_operator(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution, closed to inductor, which loses the channels' order and then copies every result."""
    return _convolve(x, weight, bias)


@linear_operator.register_fake
def _(x, weight, bias):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("nearsight::linear_backward", mutates_args=(), device_types="cpu")
def linear_operator_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the weight and a bias."""
    grad_maps, grad_kernel, grad_bias = torch.ops.aten.convolution_backward(
        _maps(gradient), _maps(x), _kernel(weight), [len(weight)], (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True,) * 3
    )
    return _tokens(grad_maps, x.shape), grad_kernel.flatten(1).contiguous(), grad_bias


@linear_operator_backward.register_fake
def _(gradient, x, weight):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[:1])


def _setup_context(ctx, inputs, output):
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _backward(ctx, gradient):
    grad_x, grad_weight, grad_bias = linear_operator_backward(gradient, *ctx.saved_tensors)
    return grad_x, grad_weight, grad_bias if ctx.has_bias else None


linear_operator.register_autograd(_backward, setup_context=_setup_context)


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return (linear_operator if torch.compiler.is_compiling() else _convolve)(x, weight, bias)


def _refusal(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if exporting() or torch.jit.is_tracing():
        return "an exported or traced graph keeps linear layers as they are"
    if not x.is_cpu:
        return f"the tensors are on {x.device.type}, not on a CPU"
    if any(type(tensor) not in PLAIN for tensor in tensors):
        return "a tensor is of a kind of its own"
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return f"the types are {', '.join(str(tensor.dtype) for tensor in tensors)}; float32 is needed"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on, and in half precision torch multiplies by oneDNN itself"
    if x.dim() < 2 or x.numel() == 0:
        return "there are no rows to compute"
    return _library_trouble()


def _reservation(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    if x.numel() * weight.shape[0] < SMALLEST:
        return f"fewer than {SMALLEST} multiply-adds are too little work for a convolution"
    return _processor_reservation()


@torch.compiler.assume_constant_result
def _library_trouble() -> str | None:
    if not torch.backends.mkldnn.is_available():
        return "this torch has no oneDNN"
    return None if torch._C._get_mkldnn_enabled() else "oneDNN is switched off"


@torch.compiler.assume_constant_result
def _processor_reservation() -> str | None:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "the processor has no 512-bit vectors that MKL would leave unused"
    return "MKL uses the whole vectors of Intel's processors" if "GenuineIntel" in _processor() else None


@cache
def _processor() -> str:
    """What the system says of the processor, its maker among it."""
    listed = Path("/proc/cpuinfo")
    return listed.read_text() if listed.exists() else platform.processor()


def _always(*tensors: Tensor | None) -> None:
    return None


BACKENDS = [
    Backend("onednn", _refusal, _run, _reservation),
    Backend("torch", _always, F.linear),
]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """x Wᵀ + b over the last axis of x, [..., in] → [..., out]: `torch.nn.functional.linear`, faster on some CPUs."""
    # At once, since small models on a GPU wait for Python; and nothing is asked of what a tracer holds in x's place.
    if backend is None and (type(x) not in PLAIN or not x.is_cpu):
        return F.linear(x, weight, bias)
    return choose(BACKENDS, backend, x, weight, bias).run(x, weight, bias)


def explain_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[Verdict]:
    """What each backend says about this call: it runs, or why it cannot or should not."""
    return verdicts(BACKENDS, x, weight, bias)
