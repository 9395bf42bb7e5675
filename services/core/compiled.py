"""Compilation of hot functions: one decorator, so that every kernel is compiled the same way.

A kernel runs without the GIL and with numpy's arithmetic (a division by zero is inf or nan, never an
exception inside a loop). It checks no bounds: whoever passes it data from outside validates first.

Its machine code is kept beside the source or, where that is read-only, in the user's cache folder, so only
the first process after an install or a change compiles. A container without either compiles at every start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The function as machine code, callable from Python and from other compiled functions."""
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # numba found no folder to write to
        return cast(_Function, numba.njit(nogil=True, error_model="numpy")(function))
