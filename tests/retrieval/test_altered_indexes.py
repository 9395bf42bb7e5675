"""A thousand altered index files are offered to a server, half of them with a manifest that fits.

None is served and none ends the server: the manifest tells the first half from what was built, the seal of
the calibration (`services.retrieval.contents`) the other.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode
from retrieval.small_world import Served, World, exact, make_world, on_server, refused

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from services.retrieval.contents import KIND
from services.runtime.bundles import MANIFEST, write_bundle

FILES = 1_000 if os.environ.get("FRUGALADS_DRILL") else 50


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(1100, d=8, seed=2)


@pytest.fixture(scope="module", params=["ivf_flat", "ivf_pq"])
def folder(world: World, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return world.build(tmp_path_factory.mktemp("altered") / "index", kind=request.param)


def altered(data: bytes, rng: np.random.Generator) -> bytes:
    """One to twenty bytes changed, at the start or anywhere; or a cut; or a byte more."""
    changed = bytearray(data)
    if rng.random() < 0.1:
        return data[: rng.integers(len(data))]
    if rng.random() < 0.1:
        return data + b"\0"
    reach = min(len(data), 400) if rng.random() < 0.5 else len(data)
    for position in rng.integers(reach, size=rng.integers(1, 21)):
        changed[position] ^= int(rng.integers(1, 256))
    return bytes(changed) if bytes(changed) != data else data + b"\n"


def offered(folder: Path, out: Path, number: int) -> Path:
    """A copy with one file altered, every second with a manifest made to fit."""
    rng = np.random.default_rng(number)
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    name = "vectors.faiss" if number % 3 else names[number % len(names)]
    data = altered((folder / name).read_bytes(), rng)
    if number % 2:
        meta = json.loads((folder / MANIFEST).read_text())["meta"]
        with write_bundle(out, KIND, meta) as staging:
            for other in names:
                shutil.copy(folder / other, staging)
            (staging / name).write_bytes(data)
    else:
        shutil.copytree(folder, out, dirs_exist_ok=True)
        (out / name).write_bytes(data)
    return out


@pytest.mark.drill
def test_no_altered_index_is_served_or_ends_the_server(world: World, folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        served = (await live.api.GetInfo(pb.GetInfoRequest())).versions
        request = pb.SearchRequest(vector=world.queries[0], k=5, target=exact())
        right = await live.api.Search(request)
        reasons: Counter[str] = Counter()
        for number in range(FILES // 2):
            path = offered(folder, tmp_path / str(number % 4), number)
            code, message, reason = await refused(live.admin.SwapIndex(pb.SwapIndexRequest(path=str(path))))
            assert (code, reason) == (StatusCode.FAILED_PRECONDITION, "INDEX_REJECTED"), message
            reasons["seal" if "measured" in message or "calibration.json" in message else "manifest"] += 1
            shutil.rmtree(path)
        assert min(reasons["seal"], reasons["manifest"]) >= FILES // 5
        answer = await live.api.Search(request)
        assert (answer.versions, list(answer.ad_ids)) == (served, list(right.ad_ids))

    on_server(folder, tmp_path / "delta", body)


def test_a_file_of_another_build_is_refused(world: World, folder: Path, tmp_path: Path) -> None:
    """Both parts are sound: the calibration of one index does not hold for the vectors of another."""
    kind = json.loads((folder / MANIFEST).read_text())["meta"]["index_kind"]
    other = world.build(tmp_path / "other", seed=7, kind=kind)
    meta = json.loads((folder / MANIFEST).read_text())["meta"]
    with write_bundle(tmp_path / "mixed", KIND, meta) as staging:
        for path in folder.iterdir():
            if path.name != MANIFEST:
                shutil.copy(path, staging)
        shutil.copy(other / "vectors.faiss", staging)

    async def body(live: Served) -> None:
        swap = pb.SwapIndexRequest(path=str(tmp_path / "mixed"))
        _, message, reason = await refused(live.admin.SwapIndex(swap))
        assert reason == "INDEX_REJECTED"
        assert "vectors.faiss: not the file that calibration.json was measured on" in message

    on_server(folder, tmp_path / "delta", body)
