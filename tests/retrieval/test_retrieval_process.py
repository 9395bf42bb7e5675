"""The retrieval process: start on broken bundles, kill -9, SIGTERM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from retrieval.small_world import Served, World, exact, on_server

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from frugalads.retrieval.v1 import retrieval_pb2_grpc as rpc
from services.runtime.errors import UserError


def search(vector: np.ndarray, k: int = 5, **fields: Any) -> pb.SearchRequest:
    return pb.SearchRequest(vector=vector, k=k, **fields)


@pytest.mark.parametrize("fault", ["missing", "altered", "truncated", "an extra file", "a file less"])
def test_a_server_does_not_start_on_a_broken_bundle(index_folder: Path, tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "index"
    if fault != "missing":
        shutil.copytree(index_folder, folder)
    vectors = folder / "vectors.faiss"
    if fault == "altered":
        data = bytearray(vectors.read_bytes())
        data[-1] ^= 1
        vectors.write_bytes(data)
    elif fault == "truncated":
        os.truncate(vectors, vectors.stat().st_size // 2)
    elif fault == "an extra file":
        (folder / "extra").write_text("")
    elif fault == "a file less":
        (folder / "ad_ids.npy").unlink()

    async def body(live: Served) -> None:
        raise AssertionError("it started")

    with pytest.raises(UserError, match=str(folder)):
        on_server(folder, tmp_path / "delta", body)
    environ = {**os.environ, "FRUGALADS_RETRIEVAL_INDEX": str(folder), "FRUGALADS_RETRIEVAL_PORT": "0"}
    environ["FRUGALADS_RETRIEVAL_DELTA_DIR"] = str(tmp_path / "delta")
    done = subprocess.run(
        [sys.executable, "-m", "services.retrieval"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert str(folder) in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_killed_server_loses_no_acknowledged_change(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    """kill -9 of the real process while it is writing, three times, then every answered change is there."""
    environ = {
        **os.environ,
        "FRUGALADS_RETRIEVAL_INDEX": str(index_folder),
        "FRUGALADS_RETRIEVAL_DELTA_DIR": str(tmp_path / "delta"),
        "FRUGALADS_RETRIEVAL_LOG_FORMAT": "json",
    }
    acknowledged: dict[int, int] = {}

    def start() -> tuple[subprocess.Popen[str], int]:
        child = subprocess.Popen(
            [sys.executable, "-m", "services.retrieval"], env=environ, stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        for line in child.stderr:
            if '"serving"' in line:
                return child, int(line.split('"port": ')[1].split(",")[0].rstrip("}"))
        raise AssertionError("it did not start")

    for turn in range(3):
        child, port = start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            api = rpc.RetrievalServiceStub(channel)
            everything = api.Search(search(world.queries[0], 1000, target=exact()))
            assert everything.versions.delta_sequence >= len(acknowledged)
            for ad_id, row in acknowledged.items():
                found = api.Search(search(world.queries[row], 1000, target=exact()))
                assert ad_id in found.ad_ids[:10]
            killer = threading.Timer(0.15, child.send_signal, (signal.SIGKILL,))
            killer.start()
            for row in range(150):
                ad_id = 10_000 + 1000 * turn + row
                ad = pb.IndexedAd(ad_id=ad_id, vector=world.queries[row])
                try:
                    api.Upsert(pb.UpsertRequest(ads=[ad]))
                except grpc.RpcError:
                    break
                if row < 20:
                    acknowledged[ad_id] = row
            killer.join()
            child.wait(timeout=30)
            assert child.stderr is not None
            child.stderr.close()
    assert len(acknowledged) >= 3


def test_a_server_stops_cleanly_on_sigterm(index_folder: Path, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "FRUGALADS_RETRIEVAL_INDEX": str(index_folder),
        "FRUGALADS_RETRIEVAL_DELTA_DIR": str(tmp_path / "delta"),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "services.retrieval"], env=environ, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    for line in child.stderr:
        if '"serving"' in line:
            break
    child.terminate()
    rest = child.stderr.read()
    assert child.wait(timeout=30) == 0
    assert "Traceback" not in rest
    child.stderr.close()
