"""512 bits as one value in a compiled loop: 512 objects that take the same step at once.

LLVM's vectorizer gives up on the recurrences of an edit distance, since it cannot prove that the
arrays involved are distinct. A value of this type says outright what stays in a register; on a
processor without 512-bit registers the compiler splits it.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import models, overload, register_model

N_WORDS = 8
"""64-bit words in one value."""

N_LANES = 64 * N_WORDS
"""Objects in one value, a bit each."""

intrinsic: Any = extending.intrinsic  # the emitted function takes fewer arguments

_VECTOR = ir.VectorType(ir.IntType(64), N_WORDS)


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__("Lanes")


_lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes_type: Any) -> None:
        super().__init__(manager, lanes_type, _VECTOR)


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


@intrinsic
def load(_typing: Any, array: Any, _index: Any) -> Any:
    """Load eight words of a uint64 array, starting at ``index``.

    The end of the array is not checked.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_place(context, builder, signature.args[0], *arguments))
        value.align = 8  # numpy promises no more
        return value

    return _lanes(array, types.intp), generate


@intrinsic
def store(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    """Store a value in eight words of an array, from ``index``.

    The array is uint64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, value = arguments
        written = builder.store(value, _place(context, builder, signature.args[0], array, index))
        written.align = 8
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), generate


@intrinsic
def fill(_typing: Any, _word: Any) -> Any:
    """Return a value of which each word is ``word``."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        position = ir.IntType(32)
        first = builder.insert_element(undefined, arguments[0], position(0))
        everywhere = ir.Constant(ir.VectorType(position, N_WORDS), [0] * N_WORDS)
        return builder.shuffle_vector(first, undefined, everywhere)

    return _lanes(types.uint64), generate


def _give_operator(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    @intrinsic
    def apply(_typing: Any, _first: Any, _second: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return _lanes(_lanes, _lanes), generate

    @overload(symbol)
    def _choose(first: Any, second: Any) -> Any:
        def use(first: Any, second: Any) -> Any:
            return apply(first, second)

        both = isinstance(first, _LanesType) and isinstance(second, _LanesType)
        return use if both else None


_give_operator(operator.and_, "and_")
_give_operator(operator.or_, "or_")
_give_operator(operator.xor, "xor")


@intrinsic
def _complement(_typing: Any, _value: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.not_(arguments[0])

    return _lanes(_lanes), generate


@overload(operator.invert)
def _invert(value: Any) -> Any:
    def use(value: Any) -> Any:
        return _complement(value)

    return use if isinstance(value, _LanesType) else None
