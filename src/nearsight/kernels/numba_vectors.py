"""Vectors of 16 float32 for functions compiled by numba, and plain access to memory.

numba turns loops into vector instructions only where it can prove that arrays do not overlap, which it cannot for as
many as a kernel has. Here a vector is a type of its own: what is written as one instruction becomes one (or a few,
where the processor's vectors are shorter), on every processor that LLVM knows.

Memory is known by its address alone, without the object that owns it: nothing counts references, and indices are
trusted. Whoever calls a compiled function keeps its tensors alive.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from .sizes import LANES

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
# 2^f on [-1/2, 1/2], highest power first: off by less than two units in the last place of a float32.
_POWER_OF_TWO = (
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
    1.0,
)
_LOG2_E = 1.4426950408889634
_SMALLEST_EXPONENT = -126.0


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


def _everywhere(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [float(value)] * LANES)


def _whole_numbers(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * LANES)


def _call(builder: Any, name: str, arguments: list) -> Any:
    kind = ir.FunctionType(_FLOATS, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _in_memory(kind: Any) -> Any:
    """The intrinsic that takes an address, a 64-bit number, for a pointer to numbers of this kind."""

    @intrinsic
    def function(typingctx, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return function


floats, integers = _in_memory(types.float32), _in_memory(types.int64)


@intrinsic
def get(typingctx, pointer, index):
    """The number at `index`."""

    def generate(context, builder, signature, arguments):
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return pointer.dtype(pointer, types.intp), generate


@intrinsic
def put(typingctx, pointer, index, value):
    """Write a number at `index`."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, pointer.dtype), generate


@intrinsic
def take(typingctx, pointer, index):
    """The whole number at `index`, which grows by one: no two threads get the same."""

    def generate(context, builder, signature, arguments):
        place = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(pointer, types.intp), generate


@intrinsic
def load(typingctx, pointer, index):
    """The 16 numbers from `index` on."""

    def generate(context, builder, signature, arguments):
        place = builder.gep(arguments[0], [arguments[1]])
        return builder.load(builder.bitcast(place, _FLOATS.as_pointer()), align=4)

    return vector(pointer, types.intp), generate


@intrinsic
def store(typingctx, pointer, index, value):
    """Write 16 numbers from `index` on."""

    def generate(context, builder, signature, arguments):
        place = builder.gep(arguments[0], [arguments[1]])
        builder.store(arguments[2], builder.bitcast(place, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, vector), generate


@intrinsic
def splat(typingctx, value):
    """One number in every lane."""

    def generate(context, builder, signature, arguments):
        nothing = ir.Constant(_FLOATS, ir.Undefined)
        first = builder.insert_element(nothing, arguments[0], ir.Constant(_INT, 0))
        return builder.shuffle_vector(first, nothing, _whole_numbers(0))

    return vector(types.float32), generate


@intrinsic
def zeros(typingctx):
    def generate(context, builder, signature, arguments):
        return _everywhere(0.0)

    return vector(), generate


@intrinsic
def fma(typingctx, first, second, third):
    """first · second + third, rounded once."""

    def generate(context, builder, signature, arguments):
        return _call(builder, "llvm.fma.v16f32", arguments)

    return vector(vector, vector, vector), generate


def _of_two(operation: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def function(typingctx, first, second):
        def generate(context, builder, signature, arguments):
            return operation(builder, *arguments)

        return vector(vector, vector), generate

    return function


add = _of_two(lambda builder, x, y: builder.fadd(x, y))
sub = _of_two(lambda builder, x, y: builder.fsub(x, y))
mul = _of_two(lambda builder, x, y: builder.fmul(x, y))
div = _of_two(lambda builder, x, y: builder.fdiv(x, y))
# NaN of the second argument stays.
maximum = _of_two(lambda builder, x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@intrinsic
def exp(typingctx, x):
    """e^x of numbers up to 0; 0 below −87, NaN of NaN."""

    def generate(context, builder, signature, arguments):
        exponent = builder.fmul(arguments[0], _everywhere(_LOG2_E))
        vanishes = builder.fcmp_ordered("<", exponent, _everywhere(_SMALLEST_EXPONENT))
        exponent = builder.select(vanishes, _everywhere(_SMALLEST_EXPONENT), exponent)
        whole = _call(builder, "llvm.rint.v16f32", [exponent])
        fraction = builder.fsub(exponent, whole)
        power = _everywhere(_POWER_OF_TWO[0])
        for coefficient in _POWER_OF_TWO[1:]:
            power = _call(builder, "llvm.fma.v16f32", [power, fraction, _everywhere(coefficient)])
        bits = builder.shl(builder.add(builder.fptosi(whole, _INTS), _whole_numbers(127)), _whole_numbers(23))
        return builder.select(vanishes, _everywhere(0.0), builder.fmul(power, builder.bitcast(bits, _FLOATS)))

    return vector(vector), generate
