"""Swaps that are abandoned or name what cannot be read, and delta folders that cannot be written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from retrieval.small_world import Served, World, exact, load_folder, on_server, refused

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from services.retrieval import loading
from services.runtime.errors import UserError


def test_swaps_whose_callers_left_do_not_pile_up(
    index_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be cancelled: twelve swaps with short deadlines held six copies of an index at once."""
    running, most, gate = 0, 0, threading.Event()
    real = loading.read_contents

    def slow(bundle: Any, document: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        gate.wait(10)
        running -= 1
        return real(bundle, document)

    async def body(live: Served) -> None:
        monkeypatch.setattr(loading, "read_contents", slow)
        monkeypatch.setattr(loading, "parse_in_child", lambda *_: None)
        swap = pb.SwapIndexRequest(path=str(index_folder))
        for _ in range(4):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await live.admin.SwapIndex(swap, timeout=0.1)
            assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
        gate.set()
        assert (await live.admin.SwapIndex(swap)).current.index
        assert most == 1

    on_server(index_folder, tmp_path / "delta", body)


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("n" * 300, StatusCode.FAILED_PRECONDITION, "INDEX_REJECTED"),
        ("n" * 5000, StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        ("a\0b", StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
    ],
)
def test_a_path_that_the_system_refuses_is_a_typed_error(
    world: World, index_folder: Path, tmp_path: Path, path: str, code: StatusCode, reason: str
) -> None:
    """ENAMETOOLONG ended as INTERNAL."""

    async def body(live: Served) -> None:
        got = await refused(live.admin.SwapIndex(pb.SwapIndexRequest(path=path)))
        assert (got[0], got[2]) == (code, reason)
        assert (await live.api.Search(pb.SearchRequest(vector=world.queries[0], k=1, target=exact()))).ad_ids

    on_server(index_folder, tmp_path / "delta", body)


@pytest.mark.parametrize("fault", ["a file", "below a file", "the log is a folder"])
def test_a_delta_folder_that_cannot_be_written_is_said_in_a_sentence(
    index_folder: Path, tmp_path: Path, fault: str
) -> None:
    """It was a traceback, and exit code 1."""
    file = tmp_path / "file"
    file.write_text("")
    folder = {"a file": file, "below a file": file / "delta"}.get(fault, tmp_path / "delta")

    if fault == "the log is a folder":
        (folder / f"{_fingerprint(index_folder)}.log").mkdir(parents=True)

    async def body(live: Served) -> None:
        raise AssertionError("it started")

    with pytest.raises(UserError, match="no delta log can be kept there: "):
        on_server(index_folder, folder, body)


def test_a_swap_without_a_place_for_its_changes_leaves_the_current_index(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    other = World(world.vectors, world.ad_ids, world.strings, world.numbers, world.queries)
    path = other.build(tmp_path / "other", seed=2)

    async def body(live: Served) -> None:
        before = (await live.api.GetInfo(pb.GetInfoRequest())).versions
        (tmp_path / "delta" / f"{_fingerprint(path)}.log").mkdir()
        code, message, reason = await refused(live.admin.SwapIndex(pb.SwapIndexRequest(path=str(path))))
        assert (code, reason) == (StatusCode.FAILED_PRECONDITION, "INDEX_REJECTED")
        assert "no delta log can be kept there" in message
        assert (await live.api.GetInfo(pb.GetInfoRequest())).versions == before
        upsert = pb.UpsertRequest(ads=[pb.IndexedAd(ad_id=9_000, vector=world.queries[0])])
        assert (await live.api.Upsert(upsert)).delta_sequence == 1

    on_server(index_folder, tmp_path / "delta", body)


def _fingerprint(index: Path) -> str:
    return load_folder(index).fingerprint
