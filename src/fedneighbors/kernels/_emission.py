"""Helpers for Numba intrinsics, functions that emit LLVM code into compiled loops."""

from typing import Any

from llvmlite import ir
from numba import extending, types

# Typed as Any: callers of an intrinsic omit its first parameter, the typing context.
intrinsic: Any = extending.intrinsic


def locate(context: Any, builder: Any, signature: Any, args: Any, position: int) -> Any:
    """Return the address of the first element of array argument ``position``."""
    return context.make_array(signature.args[position])(context, builder, args[position]).data


@intrinsic
def lowest_bit(_typing: Any, word: Any) -> Any:
    """Return the index of the lowest set bit of a nonzero word."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(word), codegen
