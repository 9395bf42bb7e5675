"""A small random catalogue with known answers, its index bundle, and a server over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from frugalads.errors.v1 import errors_pb2
from frugalads.retrieval.v1 import retrieval_pb2 as pb
from frugalads.retrieval.v1 import retrieval_pb2_grpc as rpc
from services.retrieval.attributes import Columns, Condition, encode
from services.retrieval.build import build_index
from services.retrieval.config import RetrievalConfig
from services.retrieval.contents import KIND, check_seal, read_contents
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Query, Target
from services.retrieval.server import RetrievalServer, build
from services.runtime.bundles import open_bundle
from services.runtime.config import load
from services.runtime.deadlines import Deadline
from services.runtime.errors import DETAILS_TRAILER
from services.runtime.server import start_server

NEVER = Deadline(float("inf"))
MAX_BYTES = 1 << 30


@dataclass
class World:
    """Ads as they were given to the build, in their own order."""

    vectors: np.ndarray
    ad_ids: np.ndarray
    strings: dict[str, list[str | None]]
    numbers: dict[str, np.ndarray]
    queries: np.ndarray
    encoder: str = "encoder-1"

    def build(self, out: Path, seed: int = 1, kind: str = "ivf_flat") -> Path:
        build_index(
            self.vectors,
            self.ad_ids,
            self.strings,
            self.numbers,
            self.encoder,
            out,
            seed,
            lambda *_: None,
            self.queries,
            kind=kind,
        )
        return out

    @property
    def columns(self) -> Columns:
        return encode(self.strings, self.numbers, len(self.ad_ids))

    def nearest(
        self, query: np.ndarray, k: int, mask: np.ndarray | None = None
    ) -> tuple[list[int], np.ndarray]:
        """The exact k nearest admitted ads by brute force: ids, similarities, both by falling similarity."""
        similarities = self.vectors.astype(np.float64) @ query.astype(np.float64)
        rows = np.arange(len(self.ad_ids)) if mask is None else np.flatnonzero(mask)
        best = rows[np.lexsort((self.ad_ids[rows], -similarities[rows]))[:k]]
        return self.ad_ids[best].tolist(), similarities[best]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make_world(n: int = 2000, d: int = 16, seed: int = 0, copies: int = 20) -> World:
    """Clustered ads, some of them copies of each other; a tenth lacks a category, a tenth a price."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(2, n // 50), d))
    near = centres[rng.integers(len(centres), size=n)]
    vectors = unit(near + 0.5 * rng.standard_normal((n, d)))
    if n > 2 * copies:
        vectors[n - copies :] = vectors[:copies]
    category = [None if rng.random() < 0.1 else f"c{rng.integers(10)}" for _ in range(n)]
    price = np.where(rng.random(n) < 0.1, np.nan, np.round(rng.gamma(2, 50, n), 2))
    queries = unit(centres[rng.integers(len(centres), size=200)] + 0.6 * rng.standard_normal((200, d)))
    return World(
        vectors,
        (rng.permutation(n) + 1).astype(np.int64),
        {"advertiser": [f"a{i % 40}" for i in range(n)], "category": category},
        {"product_price_usd": price},
        queries,
    )


def load_folder(folder: Path) -> LoadedIndex:
    bundle = open_bundle(folder, KIND, max_bytes=MAX_BYTES)
    return LoadedIndex(read_contents(bundle, check_seal(bundle)))


def query(vectors: np.ndarray, k: int, target: Target, conditions: Sequence[Condition] = ()) -> Query:
    return Query(np.atleast_2d(vectors), k, tuple(conditions), target)


@dataclass
class Served:
    """A running server and stubs for both of its addresses."""

    server: RetrievalServer
    api: rpc.RetrievalServiceStub
    admin: rpc.RetrievalAdminServiceStub
    port: int
    metrics_port: int


@asynccontextmanager
async def served(index: Path, delta_dir: Path, **options: object) -> AsyncIterator[Served]:
    values = {"index": index, "delta_dir": delta_dir, **options}
    environ = {f"FRUGALADS_RETRIEVAL_{key.upper()}": str(value) for key, value in values.items()}
    config = load(RetrievalConfig, "retrieval", environ, None)
    async with (
        start_server("retrieval", config, build) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.admin_port}") as admin,
    ):
        assert isinstance(running.service, RetrievalServer)
        yield Served(
            running.service,
            rpc.RetrievalServiceStub(channel),
            rpc.RetrievalAdminServiceStub(admin),
            running.port,
            running.metrics_port,
        )


def on_server(
    index: Path, delta_dir: Path, body: Callable[[Served], Awaitable[Any]], **options: object
) -> Any:
    """Runs `body` against a server that serves `index`."""

    async def main() -> Any:
        async with served(index, delta_dir, **options) as live:
            return await body(live)

    return asyncio.run(main())


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str, str]:
    """Awaits a call that must fail: its code, message and reason."""
    code, message, info = await refused_with_info(call)
    return code, message, info.reason


async def refused_with_info(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str, errors_pb2.ErrorInfo]:
    """Awaits a call that must fail: its code, message and ErrorInfo."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        status = errors_pb2.Status.FromString(trailers[DETAILS_TRAILER])
        info = errors_pb2.ErrorInfo.FromString(status.details[0].value)
        return error.code(), error.details() or "", info
    raise AssertionError("the call succeeded")


def exact() -> pb.Target:
    return pb.Target(exact=pb.Exact())
