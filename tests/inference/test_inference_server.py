"""The inference service over real sockets, with the real encoder."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frugalads.errors.v1 import errors_pb2
from frugalads.inference.v1 import inference_pb2 as pb
from frugalads.inference.v1 import inference_pb2_grpc as rpc
from models.scorer.bundle import load_scorer, replace_calibrator
from models.scorer.calibration import DEFAULT, Calibration
from models.scorer.convert import Weights, build_scorer
from services.inference import serving as serving_module
from services.inference.config import InferenceConfig
from services.inference.server import build
from services.runtime.config import load
from services.runtime.errors import DETAILS_TRAILER, ConfigError, UserError
from services.runtime.server import RunningServer, start_server

NAME = "frugalads.inference.v1.InferenceService"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "scorer"
    build_scorer(Weights.of_package(), folder, DEFAULT)
    return folder


def configured(model: Path, **options: object) -> InferenceConfig:
    environ = {f"FRUGALADS_INFERENCE_{key.upper()}": str(value) for key, value in options.items()}
    return load(InferenceConfig, "inference", {"FRUGALADS_INFERENCE_MODEL": str(model), **environ}, None)


class Client:
    def __init__(self, running: RunningServer, public: grpc.aio.Channel, admin: grpc.aio.Channel) -> None:
        self.running = running
        self.channel = public
        self.health = health_pb2_grpc.HealthStub(public)
        self.api: Any = rpc.InferenceServiceStub(public)
        self.admin: Any = rpc.InferenceAdminServiceStub(admin)

    async def embed(self, *texts: str, timeout_s: float = 30) -> np.ndarray[Any, np.dtype[np.float32]]:
        response = await self.api.Embed(pb.EmbedRequest(texts=texts), timeout=timeout_s)
        return np.array(response.vectors, np.float32).reshape(len(texts), response.dimension)

    async def score(
        self, similarities: list[float], timeout_s: float = 30, **fields: Any
    ) -> pb.ScoreResponse:
        columns = {
            "query": "q",
            "ad_ids": range(1, len(similarities) + 1),
            "similarities": similarities,
        } | fields
        response: pb.ScoreResponse = await self.api.Score(pb.ScoreRequest(**columns), timeout=timeout_s)
        return response


@contextlib.asynccontextmanager
async def serving(model: Path, **options: object) -> AsyncIterator[Client]:
    async with (
        start_server("inference", configured(model, **options), build) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as public,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.admin_port}") as admin,
    ):
        yield Client(running, public, admin)


def status_of(error: grpc.aio.AioRpcError) -> tuple[errors_pb2.ErrorInfo, dict[str, Any]]:
    """ErrorInfo and the other details by their type's last name."""
    trailers = dict(error.trailing_metadata() or ())
    status = errors_pb2.Status.FromString(trailers[DETAILS_TRAILER])
    details = {any_.type_url.rpartition(".")[2]: any_.value for any_ in status.details}
    return errors_pb2.ErrorInfo.FromString(details["ErrorInfo"]), details


def test_embed_gives_the_encoders_vectors_versions_and_timings(model: Path) -> None:
    async def scenario() -> None:
        direct = load_scorer(model, threads=1)
        texts = ["laser printer toner", "shoes", "a longer text about garden hoses and other things " * 8]
        async with serving(model) as client:
            response = await client.api.Embed(pb.EmbedRequest(texts=texts))
            vectors = np.array(response.vectors, np.float32).reshape(3, 384)
            assert np.array_equal(vectors, direct.encoder.encode(texts))
            assert response.versions.encoder == direct.encoder_fingerprint
            assert response.versions.scorer == direct.scorer_fingerprint
            timings = response.timings
            assert 0 < timings.compute_us <= timings.total_us
            assert timings.queue_us + timings.tokenize_us + timings.compute_us <= timings.total_us + 1000
            assert timings.batch_rows >= 1

    asyncio.run(scenario())


def test_a_text_embeds_the_same_in_any_company(model: Path) -> None:
    async def scenario() -> None:
        async with serving(model) as client:
            texts = [f"{word} " * (1 + n % 9) for n, word in enumerate(("hose", "lamp", "tyre", "sofa") * 8)]
            alone = [await client.embed(text) for text in texts[:12]]
            together = await asyncio.gather(*(client.embed(text) for text in texts))
            in_one = await client.embed(*texts)
            for n, vector in enumerate(alone):
                assert np.array_equal(vector, together[n])
                assert np.array_equal(vector[0], in_one[n])

    asyncio.run(scenario())


def test_score_is_the_calibrated_similarity(model: Path) -> None:
    async def scenario() -> None:
        async with serving(model) as client:
            response = await client.score([-1.0, 0.0, 0.3, 0.9, 1.00005])
            expected = [
                1 / (1 + math.exp(-(DEFAULT.intercept + DEFAULT.slope * s))) for s in (-1, 0, 0.3, 0.9, 1)
            ]
            assert list(response.click_probabilities) == pytest.approx(expected, rel=1e-5)
            assert response.versions.scorer
            full = await client.score([0.1] * 1000, texts=["t"] * 1000)
            assert len(full.click_probabilities) == 1000

    asyncio.run(scenario())


def test_get_info_tells_limits_and_inputs_and_admin_is_elsewhere(model: Path) -> None:
    async def scenario() -> None:
        async with serving(
            model, max_texts=8, max_text_chars=100, max_candidates=7, max_batch_rows=5
        ) as client:
            info = await client.api.GetInfo(pb.GetInfoRequest())
            assert info.engine == "ctranslate2-int8"
            assert info.scorer_kind == "similarity-baseline"
            assert list(info.score_inputs) == [pb.SCORE_INPUT_SIMILARITIES]
            assert info.dimension == 384
            limits = info.limits
            assert (limits.max_texts, limits.max_text_chars, limits.max_candidates) == (8, 100, 7)
            assert (limits.max_batch_rows, limits.max_tokens, limits.max_concurrent) == (5, 128, 256)
            assert limits.max_message_bytes == 4 << 20
            public: Any = rpc.InferenceAdminServiceStub(client.channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await public.LoadModel(pb.LoadModelRequest(path=str(model)))
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scenario())


NAN = float("nan")


BAD_REQUESTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("Embed", {"texts": []}, "texts", "must be 1..64 texts, got 0"),
    ("Embed", {"texts": ["a"] * 65}, "texts", "must be 1..64 texts, got 65"),
    ("Embed", {"texts": ["a", ""]}, "texts[1]", "must be 1..2000 characters, got '0 characters'"),
    ("Embed", {"texts": ["x" * 2001]}, "texts[0]", "got '2001 characters'"),
    ("Score", {"query": ""}, "query", "must be 1..2000 characters"),
    ("Score", {"ad_ids": []}, "ad_ids", "must be 1..1000 candidates, got 0"),
    ("Score", {"ad_ids": range(1001)}, "ad_ids", "must be 1..1000 candidates, got 1001"),
    (
        "Score",
        {"similarities": []},
        "similarities",
        "must be one value for each of the 2 candidates, got 0",
    ),
    ("Score", {"similarities": [0.1]}, "similarities", "got 1"),
    ("Score", {"similarities": [0.1, NAN]}, "similarities[1]", "must be in -1..1, got nan"),
    ("Score", {"similarities": [0.1, -math.inf]}, "similarities[1]", "got -inf"),
    ("Score", {"similarities": [1.001, 0.1]}, "similarities[0]", "got 1.00"),
    ("Score", {"texts": ["one"]}, "texts", "must be empty, or one for each of the 2 candidates, got 1"),
    ("Score", {"texts": ["one", "x" * 2001]}, "texts[1]", "must be 0..2000 characters"),
]


def test_bad_input_names_field_value_and_limit(model: Path) -> None:
    async def scenario() -> None:
        async with serving(model) as client:
            for method, fields, field, says in BAD_REQUESTS:
                good = (
                    {"query": "q", "ad_ids": [1, 2], "similarities": [0.1, 0.2]} if method == "Score" else {}
                )
                request = getattr(pb, f"{method}Request")(**(good | fields))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(client.api, method)(request)
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                info, details = status_of(caught.value)
                assert info.reason == "INVALID_FIELD"
                violation = errors_pb2.BadRequest.FromString(details["BadRequest"]).field_violations[0]
                assert violation.field == field
                assert says in violation.description
            assert (await client.embed("still here")).shape == (1, 384)

    asyncio.run(scenario())


def test_odd_texts_are_only_texts(model: Path) -> None:
    async def scenario() -> None:
        async with serving(model) as client:
            odd = ["\0", " ", "\u202e", "ﷺ" * 600, "👩‍👩‍👧‍👦" * 200, "a\0b", "x" * 2000, "\ufffd"]
            vectors = await client.embed(*odd)
            assert np.isfinite(vectors).all()
            np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
            raw: Any = client.channel.unary_unary(f"/{NAME}/Embed")
            with pytest.raises(grpc.aio.AioRpcError):
                await raw(b"\x0a\x03\xed\xa0\x80")  # a lone surrogate, which is not UTF-8
            assert (await client.embed("still here")).shape == (1, 384)

    asyncio.run(scenario())


def test_a_deadline_is_kept_while_the_encoder_is_busy(model: Path) -> None:
    """Triton#7512. The busy calls are answered all the same."""

    async def scenario() -> None:
        async with serving(model) as client:
            busy = [asyncio.create_task(client.embed(*["word " * 120] * 64)) for _ in range(3)]
            await asyncio.sleep(0.05)
            started_s = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.embed("late", timeout_s=0.03)
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert time.monotonic() - started_s < 0.5
            assert [vectors.shape for vectors in await asyncio.gather(*busy)] == [(64, 384)] * 3

    asyncio.run(scenario())


def test_cancelled_clients_do_not_hold_up_others(model: Path) -> None:
    async def scenario() -> None:
        async with serving(model) as client:
            calls = [
                asyncio.create_task(client.embed(*["some words to encode " * 20] * 16)) for _ in range(20)
            ]
            await asyncio.sleep(0.02)
            for call in calls[1:]:
                call.cancel()
            assert (await client.embed("next", timeout_s=5)).shape == (1, 384)
            assert (await calls[0]).shape == (16, 384)

    asyncio.run(scenario())


def test_overload_is_refused_with_retry_info_and_passes(model: Path) -> None:
    """text-embeddings-inference#811, server#980: no panic, no unbounded queue."""

    async def scenario() -> None:
        async with serving(model, max_texts=16, max_queue_rows=16, max_queue_tokens=2048) as client:
            calls = [client.embed(*["words " * 50] * 8) for _ in range(40)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            refused = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
            assert refused
            assert len(refused) < 40
            for error in refused:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                info, details = status_of(error)
                assert info.reason == "ENCODER_QUEUE_FULL"
                retry = errors_pb2.RetryInfo.FromString(details["RetryInfo"]).retry_delay
                assert retry.ToMilliseconds() > 0
            assert (await client.embed("after the storm")).shape == (1, 384)

    asyncio.run(scenario())


def test_the_event_loop_stays_free_while_the_encoder_runs(model: Path) -> None:
    async def scenario() -> None:
        async with serving(model) as client:
            busy = asyncio.create_task(client.embed(*["word " * 120] * 64))
            await asyncio.sleep(0.05)
            delays_s = []
            while not busy.done():
                started_s = time.perf_counter()
                await client.api.GetInfo(pb.GetInfoRequest())
                delays_s.append(time.perf_counter() - started_s)
            assert len(delays_s) >= 5
            assert sorted(delays_s)[len(delays_s) // 2] < 0.05
            await busy

    asyncio.run(scenario())


def test_another_model_is_served_under_load_without_a_failed_call(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        other = tmp_path / "other"
        shutil.copytree(model, other)
        replace_calibrator(other, Calibration(-3.0, 1.0, "other"))
        async with serving(model) as client:
            before = await client.score([0.5])
            stop = asyncio.Event()

            async def load_it() -> int:
                answers = 0
                while not stop.is_set():
                    await client.embed("some text", "another one")
                    answers += 1
                return answers

            callers = [asyncio.create_task(load_it()) for _ in range(4)]
            response = await client.admin.LoadModel(pb.LoadModelRequest(path=str(other)))
            after = await client.score([0.5])
            stop.set()
            assert min(await asyncio.gather(*callers)) > 0
            assert response.previous == before.versions
            assert response.current == after.versions
            assert response.previous.encoder == response.current.encoder
            assert response.previous.scorer != response.current.scorer
            assert after.click_probabilities[0] == pytest.approx(1 / (1 + math.exp(2.5)), rel=1e-5)

    asyncio.run(scenario())


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


def altered(folder: Path) -> None:
    content = bytearray((folder / "model.bin").read_bytes())
    content[5_000_000] ^= 0xFF
    (folder / "model.bin").write_bytes(content)


def without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def test_a_bad_model_is_refused_and_the_current_one_stays(model: Path, tmp_path: Path) -> None:
    damages: list[tuple[Callable[[Path], None], str]] = [
        (missing, "no such model"),
        (altered, "model.bin: its SHA-256 differs"),
        (without_manifest, "missing"),
    ]

    async def scenario() -> None:
        async with serving(model) as client:
            before = (await client.api.GetInfo(pb.GetInfoRequest())).versions
            for damage, says in damages:
                bad = tmp_path / damage.__name__
                shutil.copytree(model, bad)
                damage(bad)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.admin.LoadModel(pb.LoadModelRequest(path=str(bad)))
                assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
                assert says in (caught.value.details() or "")
                assert status_of(caught.value)[0].reason == "MODEL_REFUSED"
                assert (await client.api.GetInfo(pb.GetInfoRequest())).versions == before
                assert (await client.embed("still here")).shape == (1, 384)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.admin.LoadModel(pb.LoadModelRequest())
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())


def test_loads_whose_callers_left_do_not_pile_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread cannot be cancelled: eight loads with short deadlines held six models at once."""
    running, most, gate = 0, 0, threading.Event()
    real = serving_module.load

    def slow(folder: Path, config: InferenceConfig) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        gate.wait(10)
        running -= 1
        return real(folder, config)

    async def scenario() -> None:
        async with serving(model) as client:
            monkeypatch.setattr(serving_module, "load", slow)
            load_model = pb.LoadModelRequest(path=str(model))
            for _ in range(4):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.admin.LoadModel(load_model, timeout=0.1)
                assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            gate.set()
            assert (await client.admin.LoadModel(load_model)).current.encoder
            assert most == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("n" * 300, grpc.StatusCode.FAILED_PRECONDITION),
        ("n" * 5000, grpc.StatusCode.INVALID_ARGUMENT),
        ("a\0b", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_path_that_the_system_refuses_is_a_typed_error(
    model: Path, path: str, code: grpc.StatusCode
) -> None:
    """ENAMETOOLONG ended as INTERNAL."""

    async def scenario() -> None:
        async with serving(model) as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.admin.LoadModel(pb.LoadModelRequest(path=path))
            assert caught.value.code() == code
            assert status_of(caught.value)[0].domain == "frugalads"

    asyncio.run(scenario())


def test_a_dead_worker_turns_health_red(model: Path) -> None:
    """infinity#242: the server answered nobody and stayed green."""

    async def scenario() -> None:
        async with serving(model) as client:
            request = health_pb2.HealthCheckRequest(service=NAME)
            assert (await client.health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            service: Any = client.running.service

            def die(rows: object) -> None:
                raise SystemExit("killed")

            service._model.batcher._forward = die
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.embed("victim")
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            async with asyncio.timeout(5):
                while (await client.health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING:
                    pass

    asyncio.run(scenario())


def test_metrics_say_how_batches_form(model: Path) -> None:
    """Triton#8251, BentoML PR#5637: batch sizes, queue times, and why a batch was released."""

    async def scenario() -> None:
        async with serving(model, metrics_port=0, max_batch_rows=4) as client:
            await client.embed(*["same length"] * 9)
            url = f"http://127.0.0.1:{client.running.metrics_port}/metrics"
            text = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())).decode()
            assert 'frugalads_inference_batch_releases_total{reason="rows"} 2.0' in text
            assert 'frugalads_inference_batch_releases_total{reason="drained"} 1.0' in text
            assert 'frugalads_inference_batch_rows_bucket{le="4.0"} 3.0' in text
            assert "frugalads_inference_queue_seconds_count 1.0" in text
            assert "frugalads_inference_tokens_total 72.0" in text

    asyncio.run(scenario())


def test_a_missing_model_is_said_in_a_sentence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "none"):
            pass

    with pytest.raises(UserError, match="none: no such model; `frugalads model build` makes one"):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    "options", [{"max_texts": 64, "max_queue_rows": 63}, {"max_queue_tokens": 64 * 128 - 1}]
)
def test_a_queue_that_a_full_request_would_never_fit_is_refused(model: Path, options: dict[str, int]) -> None:
    async def scenario() -> None:
        async with serving(model, **options):
            pass

    with pytest.raises(ConfigError, match="a full request could never be queued"):
        asyncio.run(scenario())
