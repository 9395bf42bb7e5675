"""Asks the processor for memory before it is needed: LLVM's prefetch, which numba does not offer."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as _ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ir: Any = _ir
utils: Any = cgutils


def _prefetch(_context: Any, address: Any) -> Any:
    def generate(target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [utils.voidptr_t, word, word, word])
        function = utils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        pointer = builder.inttoptr(arguments[0], utils.voidptr_t)
        builder.call(function, [pointer, word(0), word(3), word(1)])  # to read, keep in all caches, data
        return target.get_dummy_value()

    return types.void(types.uint64), generate


prefetch: Any = intrinsic(_prefetch)
"""prefetch(address): the cache line at an address (uint64). Any address is allowed; nothing is read."""
