"""Numba type for 512 bits, one for each of 512 objects that are processed in parallel.

LLVM does not vectorize the recurrences of an edit distance, because it cannot prove that the arrays
involved do not overlap. With this type, the code states explicitly which values stay in registers.
On a processor without 512-bit registers, the compiler splits the values.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import models, overload, register_model

N_WORDS = 8
"""Number of 64-bit words in one value."""

N_LANES = 64 * N_WORDS
"""Number of objects in one value, one bit each."""

# Typed as Any: callers of an intrinsic omit its first parameter, the typing context.
intrinsic: Any = extending.intrinsic

_VECTOR = ir.VectorType(ir.IntType(64), N_WORDS)


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__("Lanes")


_lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes_type: Any) -> None:
        super().__init__(manager, lanes_type, _VECTOR)


def _locate(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


@intrinsic
def load(_typing: Any, array: Any, _index: Any) -> Any:
    """Load eight words of a uint64 array, beginning at ``index``.

    There is no bounds check.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_locate(context, builder, signature.args[0], *arguments))
        value.align = 8  # NumPy guarantees no larger alignment
        return value

    return _lanes(array, types.intp), generate


@intrinsic
def store(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    """Store a value in a uint64 array, beginning at ``index``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, value = arguments
        written = builder.store(value, _locate(context, builder, signature.args[0], array, index))
        written.align = 8
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), generate


@intrinsic
def fill(_typing: Any, _word: Any) -> Any:
    """Return a value with all words equal to ``word``."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        index_type = ir.IntType(32)
        first = builder.insert_element(undefined, arguments[0], index_type(0))
        all_zero = ir.Constant(ir.VectorType(index_type, N_WORDS), [0] * N_WORDS)
        return builder.shuffle_vector(first, undefined, all_zero)

    return _lanes(types.uint64), generate


def _overload_operator(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    @intrinsic
    def apply(_typing: Any, _first: Any, _second: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return _lanes(_lanes, _lanes), generate

    @overload(symbol)
    def _select(first: Any, second: Any) -> Any:
        def implementation(first: Any, second: Any) -> Any:
            return apply(first, second)

        both_lanes = isinstance(first, _LanesType) and isinstance(second, _LanesType)
        return implementation if both_lanes else None


_overload_operator(operator.and_, "and_")
_overload_operator(operator.or_, "or_")
_overload_operator(operator.xor, "xor")


@intrinsic
def _complement(_typing: Any, _value: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.not_(arguments[0])

    return _lanes(_lanes), generate


@overload(operator.invert)
def _invert(value: Any) -> Any:
    def implementation(value: Any) -> Any:
        return _complement(value)

    return implementation if isinstance(value, _LanesType) else None
