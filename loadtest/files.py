"""Text files: read whole, gzipped or not; written so that they appear whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from services.runtime.errors import UserError


def read_text(file: Path) -> str:
    """The text of a UTF-8 file, gzipped where its name ends in .gz. Raises UserError."""
    try:
        content = file.read_bytes()
        return (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise UserError(f"{file}: not a whole gzip file: cut short or damaged") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not a UTF-8 text file: {error}") from error


@contextlib.contextmanager
def written_whole(file: Path) -> Iterator[TextIO]:
    """A UTF-8 text stream; what was written to it becomes `file` when the block ends without an exception.

    Makes the folder where it is missing. Raises UserError when the file cannot be written.
    """
    if not file.name:
        raise UserError(f"cannot write {file}: not the name of a file")
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        part.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # there is none, or no folder it could be in
            part.unlink()
