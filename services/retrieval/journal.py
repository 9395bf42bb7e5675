"""The write-ahead log of a delta: length-prefixed, checksummed records, on disk before they are answered.

File: a header (magic, fingerprint of the index the changes belong to, CRC-32), then records. A record is its
head (payload length, sequence, CRC-32 of the payload, CRC-32 of the head) and the payload; sequences run
1, 2, 3, ... One process holds the file (flock) and one thread at a time writes it.

What may be wrong with it when it is opened:

* A torn tail: the last record was being written when the process or machine died, so it was never
  acknowledged. Its bytes are cut off. Torn means: the file ends within the head or the payload, the rest of
  the file is zeros (the size reached the disk and the data did not), or the very last payload fails its CRC.
* Anything else is damage to acknowledged changes and an error. The head has a CRC of its own so that a
  damaged length, which would point beyond the end, is not taken for a torn tail.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from services.runtime.errors import Unavailable, UserError

MAX_RECORD_BYTES = 256 << 20

_MAGIC = b"FADELTA1"
_HEADER = struct.Struct("<8s64sI")
_HEAD = struct.Struct("<IQI")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CRC.size


class Journal:
    """An open log. `last` is the sequence of its last record, 0 without any."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.last = 0
        self.torn_bytes = 0
        self._fd = descriptor
        self._end = 0
        self._broken = ""

    @classmethod
    def open(cls, path: Path, fingerprint: str, on_record: Callable[[bytes], None]) -> Journal:
        """Opens or creates the log of an index and hands every payload to `on_record`, oldest first.

        Raises UserError when another process holds it, it belongs to another index, it is damaged, or the
        disk does not let it be read and written.
        """
        try:
            return cls._opened(path, fingerprint, on_record)
        except OSError as error:
            raise UserError(f"{path}: no delta log can be kept there: {error.strerror or error}") from error

    @classmethod
    def _opened(cls, path: Path, fingerprint: str, on_record: Callable[[bytes], None]) -> Journal:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        journal = cls(path, descriptor)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(f"{path}: held by another server; give each its own delta_dir") from error
            journal._recover(fingerprint, on_record)
        except BaseException:
            os.close(descriptor)
            raise
        return journal

    def append(self, payload: bytes) -> int:
        """Writes one record and returns its sequence once it is on disk.

        Raises Unavailable when it cannot be written; the log then is as before. After a failed flush nobody
        knows what is on disk, so every later append is refused until the log is opened again.
        """
        if self._broken:
            raise Unavailable("DELTA_LOG_FAILED", f"the delta log failed: {self._broken}; restart the server")
        sequence = self.last + 1
        record = _record(sequence, payload)
        try:
            _write_at(self._fd, record, self._end)
        except OSError as error:
            with self._fatal():
                os.ftruncate(self._fd, self._end)
            raise Unavailable(
                "DELTA_WRITE_FAILED", f"the change could not be stored: {error.strerror}", 1_000
            ) from error
        with self._fatal():
            os.fdatasync(self._fd)
        self._end += len(record)
        self.last = sequence
        return sequence

    def close(self) -> None:
        """Closes the file and lets go of it."""
        os.close(self._fd)

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._broken = error.strerror or str(error)
            raise Unavailable("DELTA_LOG_FAILED", f"the delta log failed: {self._broken}") from error

    def _recover(self, fingerprint: str, on_record: Callable[[bytes], None]) -> None:
        header = _header(fingerprint)
        size = os.fstat(self._fd).st_size
        if size < len(header):
            # The process died while it created the log: nothing can have been acknowledged.
            self.torn_bytes = size
            os.ftruncate(self._fd, 0)
            _write_at(self._fd, header, 0)
            os.fsync(self._fd)
            _sync_folder(self.path.parent)
            self._end = len(header)
            return
        found = os.pread(self._fd, len(header), 0)
        if found != header:
            magic, owner, crc = _HEADER.unpack(found)
            if magic != _MAGIC or zlib.crc32(found[: -_CRC.size]) != crc:
                raise UserError(f"{self.path}: not a delta log, or its header is damaged")
            name = owner.rstrip(b"\0").decode(errors="replace")
            raise UserError(f"{self.path}: the log of index {name}, not of {fingerprint}")
        self._end = len(header)
        while self._end < size:
            payload = self._next(size)
            if payload is None:
                self.torn_bytes = size - self._end
                os.ftruncate(self._fd, self._end)
                os.fsync(self._fd)
                return
            on_record(payload)
            self._end += _HEAD_BYTES + len(payload)
            self.last += 1

    def _next(self, size: int) -> bytes | None:
        """The payload of the record at the end read so far; None for a torn tail."""
        rest = size - self._end
        head = os.pread(self._fd, _HEAD_BYTES, self._end)
        if rest < _HEAD_BYTES:
            return None
        length, sequence, payload_crc = _HEAD.unpack(head[: _HEAD.size])
        if zlib.crc32(head[: _HEAD.size]) != _CRC.unpack(head[_HEAD.size :])[0]:
            if self._only_zeros(size):
                return None
            raise UserError(f"{self.path}: record {self.last + 1} at byte {self._end} is damaged")
        if sequence != self.last + 1 or length > MAX_RECORD_BYTES:
            raise UserError(f"{self.path}: record {self.last + 1} at byte {self._end} is out of sequence")
        if rest < _HEAD_BYTES + length:
            return None
        payload = os.pread(self._fd, length, self._end + _HEAD_BYTES)
        if zlib.crc32(payload) != payload_crc:
            if rest == _HEAD_BYTES + length:
                return None
            raise UserError(f"{self.path}: record {sequence} at byte {self._end} is damaged")
        return payload

    def _only_zeros(self, size: int) -> bool:
        for start in range(self._end, size, 1 << 20):
            if os.pread(self._fd, min(1 << 20, size - start), start).strip(b"\0"):
                return False
        return True


def _header(fingerprint: str) -> bytes:
    owner = fingerprint.encode()
    if not 0 < len(owner) <= 64:
        raise ValueError(f"fingerprint of {len(owner)} bytes")
    crc = zlib.crc32(_HEADER.pack(_MAGIC, owner, 0)[: -_CRC.size])
    return _HEADER.pack(_MAGIC, owner, crc)


def _record(sequence: int, payload: bytes) -> bytes:
    if len(payload) > MAX_RECORD_BYTES:
        raise ValueError(f"record of {len(payload)} bytes")
    head = _HEAD.pack(len(payload), sequence, zlib.crc32(payload))
    return head + _CRC.pack(zlib.crc32(head)) + payload


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
