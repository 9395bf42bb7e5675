"""A corrupt index that is to be swapped in, and a disk of the state that takes no more, under load."""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path

import psutil
import pytest
from drill_load import RECOVERY_S, loaded
from redis_process import wait_until
from stack_process import Stack

from frugalads.client import FailedPreconditionError, connect
from frugalads.retrieval.v1 import retrieval_pb2
from frugalads.retrieval.v1.retrieval_pb2_grpc import RetrievalAdminServiceStub

pytestmark = pytest.mark.drill


def test_a_corrupt_index_is_refused_and_nobody_notices(stack: Stack, tmp_path: Path) -> None:
    """Each swap is refused as FAILED_PRECONDITION that names the file; every other call goes as usual, from
    the index that was there.
    """
    good = stack.data / "index"
    files = [path.name for path in good.iterdir()]
    with loaded(stack) as load, connect(f"127.0.0.1:{stack.ports.of('retrieval admin')}") as channel:
        admin = RetrievalAdminServiceStub(channel)
        began_s = time.monotonic()
        for name in files:
            bad = Path(shutil.copytree(good, tmp_path / f"changed {name}"))
            content = bytearray((bad / name).read_bytes())
            content[len(content) // 2] ^= 0xFF
            (bad / name).write_bytes(content)
            with pytest.raises(FailedPreconditionError, match=name):
                admin.SwapIndex(retrieval_pb2.SwapIndexRequest(path=str(bad)), timeout=60)
        print(f"corrupt index: {len(files)} swaps refused in {time.monotonic() - began_s:.1f} s")
        wait_until(lambda: len(load.since(began_s)) > 100, 10, "the load went on")
        load.check_usual(began_s)
        versions = {o.answer.versions.index for o in load.since(began_s) if o.answer}
        assert len(versions) == 1


def test_a_full_disk_of_the_state_loses_no_acknowledged_click(stack: Stack) -> None:
    """Clicks get UNAVAILABLE, answers at most STALE_ADS. A server that must have written before it answers
    (`appendfsync always`) ends at the first write that fails; the supervisor starts it again, with room.
    """
    with loaded(stack) as load:
        pid = stack.pid("state")
        log = max((stack.data / "state").rglob("*.incr.aof"), key=lambda path: path.stat().st_size)
        room = log.stat().st_size + 20_000
        full_s = time.monotonic()
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, room))
        wait_until(lambda: not psutil.pid_exists(pid), 10, "the disk was full")
        recovered_s = load.recovered_s(time.monotonic())
        print(f"state's disk full: last unusual call {recovered_s:.2f} s after the server's end")
        assert recovered_s <= RECOVERY_S
        for kind in ("warm", "fresh"):
            load.check_seen(full_s, kind, "OK", "STALE_ADS")
        assert load.check_seen(full_s, "click", "OK", "UNAVAILABLE")["UNAVAILABLE"]
