"""Compilation of hot functions: one decorator, so that every kernel is compiled the same way.

A kernel runs without the GIL and with numpy's arithmetic (a division by zero is inf or nan, never an
exception inside a loop). It checks no bounds: whoever passes it data from outside validates first.

Its machine code is kept beside the source or, where that is read-only, in the user's cache folder, so only
the first process after an install or a change compiles. A container without either compiles at every start.

numba drops kept code when the file of the function itself changes, but machine code also holds what the
function calls and the constants it names, from whatever file. So code is kept under a digest of all of it:
the file, the digests of the kernels it calls, the values of the constants. Without it a corrected kernel
would go on living in its callers.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])

_DIGESTS: dict[Any, str] = {}  # of every kernel made so far
_CONSTANTS = (bool, int, float, str, bytes, tuple, np.generic, np.ndarray, np.dtype)


def compiled(function: _Function) -> _Function:
    """The function as machine code, callable from Python and from other compiled functions."""
    digest = _digest(function)
    config: Any = numba.config
    chosen = config.CACHE_DIR
    config.CACHE_DIR = str((Path(chosen) if chosen else _beside(function)) / digest)
    try:
        kernel = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder to write to
        kernel = numba.njit(nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = chosen
    _DIGESTS[kernel] = digest
    return cast(_Function, kernel)


def _beside(function: Callable[..., Any]) -> Path:
    return Path(function.__code__.co_filename).parent / "__pycache__" / "kernels"


def _digest(function: Callable[..., Any]) -> str:
    """Of everything that the machine code of a function depends on."""
    source = Path(function.__code__.co_filename)
    seen = hashlib.sha256(source.read_bytes() if source.is_file() else function.__code__.co_code)
    closure = inspect.getclosurevars(function)
    for name, value in sorted({**closure.globals, **closure.nonlocals}.items()):
        for found in _used(value, closure.unbound):
            if callable(found) and found in _DIGESTS:
                seen.update(f"{name} {_DIGESTS[found]}".encode())
            elif isinstance(found, _CONSTANTS):
                seen.update(f"{name} {found!r}".encode())
    return seen.hexdigest()[:16]


def _used(value: object, attributes: Set[str]) -> Iterator[Any]:
    """A value that a function names; of a module, those of its values whose names the function mentions."""
    if isinstance(value, ModuleType):
        yield from (vars(value)[name] for name in sorted(attributes & vars(value).keys()))
    else:
        yield value
