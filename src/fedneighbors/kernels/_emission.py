"""Parts of functions that emit code of their own into compiled loops."""

from typing import Any

from llvmlite import ir
from numba import extending, types

intrinsic: Any = extending.intrinsic  # the emitted function takes fewer arguments


def locate(context: Any, builder: Any, signature: Any, args: Any, position: int) -> Any:
    """Return the address of the first element of an array argument."""
    return context.make_array(signature.args[position])(context, builder, args[position]).data


@intrinsic
def lowest_bit(_typing: Any, word: Any) -> Any:
    """Return the index of the lowest set bit.

    The word must not be 0.
    """

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(word), codegen
