"""The log of a delta: what survives, what is cut off, what is an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.retrieval.journal import Journal
from services.runtime.errors import Unavailable, UserError

PRINT = "ab" * 16
PAYLOADS = [b"first", b"", b"third " * 100, b"last"]


def read(path: Path, fingerprint: str = PRINT) -> tuple[list[bytes], Journal]:
    seen: list[bytes] = []
    return seen, Journal.open(path, fingerprint, seen.append)


def contents(path: Path) -> list[bytes]:
    seen, journal = read(path)
    journal.close()
    return seen


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "delta.log"
    _, journal = read(path)
    assert [journal.append(payload) for payload in PAYLOADS] == [1, 2, 3, 4]
    journal.close()
    return path


def test_records_come_back_in_order_and_the_sequence_goes_on(log: Path) -> None:
    seen, journal = read(log)
    assert (seen, journal.last, journal.torn_bytes) == (PAYLOADS, 4, 0)
    assert journal.append(b"more") == 5
    journal.close()
    assert contents(log) == [*PAYLOADS, b"more"]


def test_every_cut_keeps_the_whole_records_before_it(log: Path, tmp_path: Path) -> None:
    data = log.read_bytes()
    cut = tmp_path / "cut.log"
    kept = set()
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        seen, journal = read(cut)
        assert seen == PAYLOADS[: len(seen)]
        assert journal.append(b"after") == len(seen) + 1
        journal.close()
        assert contents(cut) == [*seen, b"after"]
        kept.add(len(seen))
    assert kept == {0, 1, 2, 3}


def test_a_tail_of_zeros_is_cut(log: Path) -> None:
    with log.open("ab") as stream:
        stream.write(bytes(5000))
    seen, journal = read(log)
    assert (seen, journal.torn_bytes) == (PAYLOADS, 5000)
    journal.close()


def test_every_damaged_byte_before_the_last_record_is_an_error(log: Path, tmp_path: Path) -> None:
    data = log.read_bytes()
    last = len(data) - len(PAYLOADS[-1]) - 20
    damaged = tmp_path / "damaged.log"
    for position in range(last):
        damaged.write_bytes(data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :])
        with pytest.raises(UserError, match=r"damaged\.log: "):
            read(damaged)
        assert damaged.read_bytes()[:position] == data[:position], "a damaged log must stay as it is"


def test_a_damaged_head_of_the_last_record_is_an_error_too(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[len(data) - len(PAYLOADS[-1]) - 20] ^= 0x40
    log.write_bytes(data)
    with pytest.raises(UserError, match=r"record 4 at byte \d+ is damaged"):
        read(log)


def test_the_log_of_another_index_is_refused(log: Path) -> None:
    with pytest.raises(UserError, match=f"the log of index {PRINT}, not of cd"):
        read(log, "cd" * 16)


def test_two_servers_cannot_share_a_log(log: Path) -> None:
    _, journal = read(log)
    with pytest.raises(UserError, match="held by another server"):
        read(log)
    journal.close()
    assert contents(log) == PAYLOADS


def test_a_full_disk_refuses_the_change_and_keeps_the_log(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, journal = read(log)
    real = os.pwrite

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        real(descriptor, data[: len(data) // 2], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Unavailable, match="could not be stored: No space left"):
        journal.append(b"lost")
    monkeypatch.undo()
    assert journal.append(b"kept") == 5
    journal.close()
    assert contents(log) == [*PAYLOADS, b"kept"]


def test_after_a_failed_flush_nothing_more_is_promised(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, journal = read(log)

    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(Unavailable, match="Input/output error"):
        journal.append(b"unknown")
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="restart the server"):
        journal.append(b"refused")
    journal.close()


def test_killed_at_any_moment_no_acknowledged_record_is_lost(tmp_path: Path) -> None:
    """A child appends and prints each sequence once it was acknowledged; it is killed mid-way."""
    path = tmp_path / "delta.log"
    program = """
import sys
from pathlib import Path
from services.retrieval.journal import Journal
journal = Journal.open(Path(sys.argv[1]), "ab" * 16, lambda payload: None)
while True:
    sequence = journal.last + 1
    journal.append(str(sequence).encode() * 500)
    print(sequence, flush=True)
"""
    acknowledged = 0
    for lines in (1, 7, 20):
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        assert child.stdout is not None
        for _ in range(lines):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait()
        acknowledged = max([acknowledged, *map(int, rest)])
        seen = contents(path)
        assert len(seen) >= acknowledged
        assert seen == [str(i + 1).encode() * 500 for i in range(len(seen))]
