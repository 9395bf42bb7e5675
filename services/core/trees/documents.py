"""JSON and UBJSON documents with bounds on their size, nesting and number of containers."""

from __future__ import annotations

import json

from .limits import MAX_BYTES, MAX_CONTAINERS, ForestError
from .ubjson import read_ubjson


def read_document(data: bytes) -> object:
    """The document in `data`, whichever of the two encodings it has.

    Raises:
        ForestError: it has neither, or a limit is exceeded.
    """
    if len(data) > MAX_BYTES:
        raise ForestError(f"model: {len(data)} bytes, at most {MAX_BYTES}")
    if data[:1] == b"{" and data[1:2] in (b"i", b"U", b"I", b"l", b"L"):  # the size of a first key
        return read_ubjson(data)
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        raise ForestError(f"JSON: more than {MAX_CONTAINERS} containers")
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ForestError("JSON: nested too deeply") from None
    except ValueError as error:
        raise ForestError(f"JSON: {error}") from None
