"""A real Prometheus scrapes the real stack under every kind of call and answers every dashboard and alert."""

from __future__ import annotations

import math
import re
import urllib.request
import uuid
from collections.abc import Iterator

import pytest
from prometheus_process import Prometheus, alerts, dashboards, panels, promtool, running_prometheus
from redis_process import wait_until
from stack_process import SERVICES, Stack

from frugalads.client import Client, FailedPreconditionError, InvalidArgumentError, connect
from frugalads.inference.v1 import inference_pb2
from frugalads.inference.v1.inference_pb2_grpc import InferenceAdminServiceStub
from frugalads.retrieval.v1 import retrieval_pb2
from frugalads.retrieval.v1.retrieval_pb2_grpc import RetrievalAdminServiceStub, RetrievalServiceStub
from frugalads.scoring.v1 import scoring_pb2

pytestmark = pytest.mark.timeout(300)

MISSES, HITS, REFRESHES = 6, 4, 1  # the sixth call for a query is its fifth hit, which refreshes

UNITS = {"seconds", "bytes", "usd"}
COUNTED = {
    "ads", "calls", "changes", "computations", "entries", "events", "lists", "rises", "rows",
    "streams", "texts", "units",
}  # fmt: skip
STATES = {"ready", "up", "open", "paused", "leading"}
UNUSED = re.compile(
    r"process_(virtual_memory_bytes|start_time_seconds|(open|max)_fds)|python_info"  # of every Python process
    r"|scrape_.*|up|ALERTS(_FOR_STATE)?"  # Prometheus' own
    r"|frugalads_\w+_trace_faults_total"  # a fault of tracing costs a span; nobody need look at it
    r"|frugalads_eviction_call_seconds_.*"  # reports are streams, and nobody waits for GetStats
)


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that watched the stack answer calls of every kind."""
    ports = {name: stack.ports.of(f"{name} metrics") for name in SERVICES}
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), ports) as server:
        send_everything(stack)
        settle(server, stack)
        yield server


def send_everything(stack: Stack) -> None:
    """Misses, hits, refreshes, clicks, changes, and calls that are refused, to every service."""
    with Client(stack.target) as client:
        for number in range(MISSES):
            client.rank_ads(f"garden chair number {number}")
        for _ in range(HITS + REFRESHES):
            answer = client.rank_ads("garden chair number 0")
        token = answer.ads[0].click_token
        for _ in range(2):
            client.record_clicks([scoring_pb2.Click(click_id=uuid.uuid4().hex, click_token=token)])
        client.update_ads(changes=[scoring_pb2.AdChange(ad_id=answer.ads[0].ad_id, paused=True)])
        with pytest.raises(InvalidArgumentError):
            client.rank_ads("")
    with connect(f"127.0.0.1:{stack.ports.of('retrieval')}") as channel:
        retrieval = RetrievalServiceStub(channel)
        ad = retrieval_pb2.IndexedAd(ad_id=10**9, vector=[1.0] * 384)
        retrieval.Upsert(retrieval_pb2.UpsertRequest(ads=[ad]))
        retrieval.Delete(retrieval_pb2.DeleteRequest(ad_ids=[10**9]))
    with connect(f"127.0.0.1:{stack.ports.of('retrieval admin')}") as channel:
        index = RetrievalAdminServiceStub(channel)
        with pytest.raises(FailedPreconditionError):
            index.SwapIndex(retrieval_pb2.SwapIndexRequest(path="/nowhere"))
    with connect(f"127.0.0.1:{stack.ports.of('inference admin')}") as channel:
        models = InferenceAdminServiceStub(channel)
        with pytest.raises(FailedPreconditionError):
            models.LoadModel(inference_pb2.LoadModelRequest(path="/nowhere"))


def settle(server: Prometheus, stack: Stack) -> None:
    """Waits until Prometheus holds two scrapes of everything that was sent."""
    sent = MISSES + HITS + REFRESHES
    seen = f"min_over_time(sum(frugalads_scoring_answers_total)[2s:1s]) == {sent}"
    heard = "frugalads_eviction_events_total > 0"
    wait_until(lambda: bool(server.query(seen)) and bool(server.query(heard)), 20, "everything was scraped")


def expressions() -> dict[str, dict[str, str]]:
    """Every query of the dashboards and the alerts: file, what it is for, query."""
    found = {
        name: {
            f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "1m")
            for panel in panels(board)
            for target in panel["targets"]
        }
        for name, board in dashboards().items()
    }
    found["alerts.yml"] = {}
    for name, rule in alerts().items():
        # A comparison answers nothing while it does not hold; with `bool` it says 0.
        found["alerts.yml"][name], comparisons = re.subn(r"\s(==|>|<)\s", r" \1 bool ", rule["expr"])
        assert comparisons == 1, name
    return found


EXPRESSIONS = expressions()


@pytest.mark.parametrize("file", EXPRESSIONS)
def test_every_query_has_an_answer(prometheus: Prometheus, file: str) -> None:
    answers = {title: prometheus.query(query) for title, query in EXPRESSIONS[file].items()}
    assert not [title for title, series in answers.items() if not series]
    unknown = [
        title
        for title, series in answers.items()
        if not any(math.isfinite(sample.value) for sample in series)
    ]
    assert not unknown


def test_what_was_sent_is_what_prometheus_counts(prometheus: Prometheus) -> None:
    def counted(metric: str, label: str) -> dict[str, float]:
        samples = prometheus.query(f"sum by ({label}) (frugalads_{metric})")
        return {sample.labels[label]: sample.value for sample in samples}

    assert counted("scoring_answers_total", "cache_state") == {
        "miss": MISSES, "hit": HITS, "refreshed": REFRESHES, "bypassed": 0,
    }  # fmt: skip
    assert counted("scoring_refresh_decisions_total", "decision") == {
        "reuse": HITS, "refresh": REFRESHES,
        "probe": 0, "outdated": 0, "control": 0, "running": 0, "cooling": 0,
    }  # fmt: skip
    assert counted("scoring_computation_callers_total", "share") == {
        "started": MISSES + REFRESHES, "joined": 0, "remembered": 0, "refused": 0,
    }  # fmt: skip
    assert counted("scoring_cache_writes_total", "outcome") == {
        "new": MISSES, "replaced": REFRESHES, "overtaken": 0, "failed": 0,
    }  # fmt: skip
    assert counted("scoring_clicks_total", "outcome") == {"charged": 1, "duplicate": 1}
    assert counted("retrieval_changed_ads_total", "kind") == {"upsert": 1, "delete": 1}
    assert counted("retrieval_index_swaps_total", "outcome") == {"swapped": 0, "unchanged": 0, "rejected": 1}
    assert counted("inference_model_loads_total", "outcome") == {"served": 0, "refused": 1}
    refused = 'scoring_calls_total{method="RankAds", code="INVALID_ARGUMENT"}'
    assert counted(refused, "code") == {"INVALID_ARGUMENT": 1}


def test_no_alert_fires_over_a_healthy_stack(prometheus: Prometheus) -> None:
    assert prometheus.query('ALERTS{alertstate="firing"}') == []


def test_every_metric_is_shown_somewhere_and_every_shown_one_exists(prometheus: Prometheus) -> None:
    exported = set(prometheus.api("label/__name__/values"))
    queries = " ".join(query for file in EXPRESSIONS.values() for query in file.values())
    named = set(re.findall(r"\b(?:frugalads|process|python)_\w+", re.sub(r'"[^"]*"', "", queries)))
    patterns = re.findall(r'__name__=~"([^"]*)"', queries)
    assert named <= exported
    assert all(any(re.fullmatch(pattern, name) for name in exported) for pattern in patterns)
    shown = named | {name for name in exported for pattern in patterns if re.fullmatch(pattern, name)}
    families = {_family(name) for name in shown}
    forgotten = {name for name in exported if _family(name) not in families and not UNUSED.fullmatch(name)}
    assert not forgotten


def _family(name: str) -> str:
    """A histogram's name without what its series add to it."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_every_metric_is_named_by_its_unit(prometheus: Prometheus) -> None:
    exported = prometheus.api("label/__name__/values")
    told = {name: entries[0] for name, entries in prometheus.api("metadata").items()}
    assert all(entry["help"] for entry in told.values())
    ours = {name: entry["type"] for name, entry in told.items() if name.startswith("frugalads_")}
    assert len(ours) > 80
    for name, kind in ours.items():
        if kind == "counter":
            assert f"{name.removesuffix('_total')}_total" in exported
        else:
            assert name.rpartition("_")[2] in UNITS | COUNTED | (STATES if kind == "gauge" else set()), name


@pytest.mark.parametrize("name", SERVICES)
def test_promtool_finds_no_fault_in_a_page(stack: Stack, name: str) -> None:
    address = f"http://127.0.0.1:{stack.ports.of(f'{name} metrics')}/metrics"
    page: bytes = urllib.request.urlopen(address, timeout=5).read()
    promtool("check", "metrics", stdin=page.decode())
