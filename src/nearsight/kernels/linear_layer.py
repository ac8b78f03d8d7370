"""Linear layers on a CPU through the faster of two libraries that torch has.

torch multiplies float32 matrices by MKL, which takes half of an AMD processor's 512-bit vectors, and convolves by
oneDNN, which takes all of them. A linear layer is a convolution of extent 1 over tokens as they lie in memory, channels
last: nothing is copied, and forward and backward take half the time.
"""

import math
import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .compat import exporting, plain_operators_needed
from .dispatch import Backend, Verdict, choose, nothing_against, verdicts
from .later import constant_when_compiled, register_flop_formula

FEWEST_ROWS = 256  # below, the weight's gradient costs more than the products save
FEWEST_MULTIPLY_ADDS = 2**24
FEWEST_TOKENS = 8  # of an image; oneDNN takes many smaller images one by one
FEWEST_IMAGES = 16  # with one thread torch convolves fewer by MKL as well
PLAIN = (Tensor, nn.Parameter)


def _num_images(tokens: Tensor) -> int:
    """How [B, ..., C] is cut into images: B of them, or all rows as one where they would be tiny."""
    if tokens.dim() == 2:
        return 1
    return tokens.shape[0] if math.prod(tokens.shape[1:-1]) >= FEWEST_TOKENS else 1


def _maps(tokens: Tensor) -> Tensor:
    """[..., C] → [B, C, N, 1] with the channels last in memory: a view of dense tokens."""
    return tokens.contiguous().reshape(_num_images(tokens), -1, 1, tokens.shape[-1]).permute(0, 3, 1, 2)


def _kernel(weight: Tensor) -> Tensor:
    return weight[:, :, None, None]


def _tokens(maps: Tensor, shape: torch.Size) -> Tensor:
    """[B, C, N, 1] → dense [..., C] with the leading sizes of `shape`: a view again."""
    return maps.permute(0, 2, 3, 1).reshape(*shape[:-1], maps.shape[1]).contiguous()


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _tokens(F.conv2d(_maps(x), _kernel(weight), bias), x.shape)


# torch.compile's caches on disk know a graph by its forward operators: if the backward one below is to take other
# arguments, both need other names.
@torch.library.custom_op("nearsight::linear", mutates_args=(), device_types="cpu")
def linear_operator(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution, closed to inductor, which loses the channels' order and then copies every result."""
    return _convolve(x, weight, bias)


@linear_operator.register_fake
def _(x, weight, bias):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("nearsight::linear_backward", mutates_args=(), device_types="cpu")
def linear_operator_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, for_x: bool, for_weight: bool, for_bias: bool
) -> list[Tensor]:
    """Gradients of x, the weight and a bias, each where it is needed; empty tensors for the others."""
    needed = (for_x, for_weight, for_bias)
    grad_maps, grad_kernel, grad_bias = torch.ops.aten.convolution_backward(
        _maps(gradient), _maps(x), _kernel(weight), [len(weight)], (1, 1), (0, 0), (1, 1), False, (0, 0), 1, needed
    )
    return [
        x.new_empty(0) if grad_maps is None else _tokens(grad_maps, x.shape),
        x.new_empty(0) if grad_kernel is None else grad_kernel.flatten(1).contiguous(),
        x.new_empty(0) if grad_bias is None else grad_bias,
    ]


@linear_operator_backward.register_fake
def _(gradient, x, weight, *needed):
    shapes = (x.shape, weight.shape, weight.shape[:1])
    return [x.new_empty(shape if one else (0,)) for shape, one in zip(shapes, needed, strict=True)]


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx, gradient):
    x, weight = ctx.saved_tensors
    grads = linear_operator_backward(gradient, x, weight, *ctx.needs_input_grad)
    return tuple(grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad, strict=True))


linear_operator.register_autograd(_backward, setup_context=_setup_context)


def _flops(x_shape, weight_shape) -> int:
    return 2 * math.prod(x_shape) * weight_shape[0]


@register_flop_formula(torch.ops.nearsight.linear)
def _(x, weight, bias, out_shape=None, **_):
    return _flops(x, weight)


@register_flop_formula(torch.ops.nearsight.linear_backward)
def _(gradient, x, weight, for_x, for_weight, for_bias, out_shape=None, **_):
    return (for_x + for_weight) * _flops(x, weight)


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    as_operator = torch.compiler.is_compiling() and plain_operators_needed() is None
    return (linear_operator if as_operator else _convolve)(x, weight, bias)


def _refusal(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if exporting() or torch.jit.is_tracing():
        return "an exported or traced graph keeps linear layers as they are"
    if not x.is_cpu:
        return f"the tensors are on {x.device.type}, not on a CPU"
    if any(type(tensor) not in PLAIN or tensor.layout != torch.strided for tensor in tensors):
        return "a tensor is of a kind of its own"
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return f"the types are {', '.join(str(tensor.dtype) for tensor in tensors)}; float32 is needed"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on, and in half precision torch multiplies by oneDNN itself"
    if x.dim() < 2 or x.numel() == 0:
        return "there are no rows to compute"
    if weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        return f"x of shape {tuple(x.shape)} does not fit a weight of shape {tuple(weight.shape)}"
    if bias is not None and bias.shape != weight.shape[:1]:
        return f"a bias of shape {tuple(bias.shape)} is not one number for each of {len(weight)} outputs"
    return _library_trouble()


def _reservation(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    # Hardware first: what is asked of sizes, torch.compile makes a graph's condition.
    reservation = _processor_reservation()
    if reservation is not None:
        return reservation
    if x.numel() < FEWEST_ROWS * x.shape[-1]:
        return f"fewer than {FEWEST_ROWS} rows are too little work for a convolution"
    if x.numel() * weight.shape[0] < FEWEST_MULTIPLY_ADDS:
        return f"fewer than {FEWEST_MULTIPLY_ADDS} multiply-adds are too little work for a convolution"
    if _num_threads() == 1 and _num_images(x) < FEWEST_IMAGES:
        return f"with one thread torch convolves fewer than {FEWEST_IMAGES} images by MKL as well"
    return None


@constant_when_compiled
def _num_threads() -> int:
    return torch.get_num_threads()


@constant_when_compiled
def _library_trouble() -> str | None:
    if not torch.backends.mkldnn.is_available():
        return "this torch has no oneDNN"
    return None if torch.backends.mkldnn.enabled else "oneDNN is switched off"


@constant_when_compiled
def _processor_reservation() -> str | None:
    if not torch.backends.mkl.is_available():
        return "this torch does not multiply by MKL"
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "the processor has no 512-bit vectors that MKL would leave unused"
    return "MKL uses the whole vectors of Intel's processors" if "GenuineIntel" in processor_listing() else None


@cache
def processor_listing() -> str:
    """What the system says of the processor, its maker among it."""
    listed = Path("/proc/cpuinfo")
    return listed.read_text() if listed.exists() else platform.processor()


BACKENDS = [
    Backend("onednn", _refusal, _run, _reservation),
    Backend("torch", nothing_against, F.linear),
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
