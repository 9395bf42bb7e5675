"""Every alert fires on its fault, says what it should, waits as long as it should, and is quiet otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_process import ALERTS, alerts, promtool

RULES = alerts()
STEP_S = 5
MINUTES = 15  # how long the series of a case last
SAMPLES = MINUTES * 60 // STEP_S

JOB = 'job="scoring", instance="one"'


def constant(value: float) -> str:
    return f"{value}x{SAMPLES}"


def rising(step: float) -> str:
    """A counter that rises by `step` in 5 seconds."""
    return f"0+{step}x{SAMPLES}"


def calls(code: str, method: str = "RankAds") -> str:
    return f'frugalads_scoring_calls_total{{{JOB}, method="{method}", code="{code}"}}'


def buckets(name: str, fast: float, slow: float, labels: str = "") -> dict[str, str]:
    """A histogram: `fast` observations in 5 seconds up to 50 ms, `slow` ones of 0.2 to 0.5 s."""
    counts = {"0.05": fast, "0.1": fast, "0.2": fast, "0.5": fast + slow, "+Inf": fast + slow}
    return {f'{name}{{{JOB}{labels}, le="{le}"}}': rising(count) for le, count in counts.items()}


class Case(NamedTuple):
    """Series of the fault and of its absence; labels and summary of the alert that the fault raises."""

    fault: dict[str, str]
    quiet: dict[str, str]
    labels: dict[str, str]
    summary: str


ONE = {"job": "scoring", "instance": "one"}
LATENCY = "frugalads_scoring_call_seconds_bucket"
QUEUE = "frugalads_inference_queue_seconds_bucket"
ANSWERS = f'frugalads_scoring_answers_total{{{JOB}, cache_state="hit"}}'
ADLESS = f"frugalads_scoring_adless_answers_total{{{JOB}}}"
STALE = f'frugalads_scoring_degraded_answers_total{{{JOB}, reason="stale_ads"}}'
CORRUPT = f'frugalads_scoring_corrupt_entries_total{{{JOB}, reason="crc"}}'
DROPPED, SENT = (f"frugalads_scoring_events_{what}_total{{{JOB}}}" for what in ("dropped", "sent"))
CHANGES = f"frugalads_retrieval_delta_changes{{{JOB}}}"
MOST_CHANGES = f"frugalads_retrieval_max_delta_changes{{{JOB}}}"
BACKSTOP = f"frugalads_eviction_backstop_evicted_total{{{JOB}}}"
EVICTED = f"frugalads_eviction_evicted_total{{{JOB}}}"
REPAIRED = f"frugalads_eviction_repaired_total{{{JOB}}}"
REBUILDS = f'frugalads_eviction_rebuilds_total{{{JOB}, reason="redis_restarted"}}'
AT_START = f'frugalads_eviction_rebuilds_total{{{JOB}, reason="start"}}'
DEPENDENCY = f'frugalads_scoring_dependency_up{{{JOB}, dependency="cache"}}'

CASES = {
    "ServiceDown": Case(
        {f"up{{{JOB}}}": constant(0)},
        {f"up{{{JOB}}}": constant(1)},
        ONE,
        "scoring at one cannot be scraped",
    ),
    "ServiceNotReady": Case(
        {f"frugalads_scoring_ready{{{JOB}}}": constant(0)},
        {f"frugalads_scoring_ready{{{JOB}}}": constant(1)},
        ONE,
        "scoring at one runs but is not ready",
    ),
    "DependencyDown": Case(
        {DEPENDENCY: constant(0)},
        {DEPENDENCY: constant(1)},
        {**ONE, "dependency": "cache"},
        "cache does not answer scoring",
    ),
    "InternalErrors": Case(
        {calls("INTERNAL", "GetInfo"): rising(1)},
        {calls("INTERNAL", "GetInfo"): constant(7), calls("INVALID_ARGUMENT", "GetInfo"): rising(9)},
        {"job": "scoring", "method": "GetInfo"},
        "GetInfo of scoring fails with INTERNAL",
    ),
    "CallsRefused": Case(
        {calls("RESOURCE_EXHAUSTED"): rising(2), calls("OK"): rising(98)},
        {calls("RESOURCE_EXHAUSTED"): rising(1), calls("OK"): rising(149)},
        {"job": "scoring"},
        "scoring refuses 2% of its calls",
    ),
    "AnswersFailing": Case(
        {calls("UNAVAILABLE"): rising(1), calls("DEADLINE_EXCEEDED"): rising(1), calls("OK"): rising(98)},
        {calls("UNAVAILABLE"): rising(1), calls("OK"): rising(149), calls("INVALID_ARGUMENT"): rising(9)},
        {},
        "2% of the queries get no ads because of a failure",
    ),
    "AnswersSlow": Case(
        buckets(LATENCY, 98, 2, ', method="RankAds"'),
        buckets(LATENCY, 995, 5, ', method="RankAds"'),
        {},
        "one query in a hundred takes 350ms or more",
    ),
    "AnswersDegraded": Case(
        {STALE: rising(6), ANSWERS: rising(100)},
        {STALE: rising(4), ANSWERS: rising(100)},
        {"reason": "stale_ads"},
        "6% of the answers are degraded: stale_ads",
    ),
    "AnswersEmpty": Case(
        {ADLESS: rising(3), ANSWERS: rising(4)},
        {ADLESS: rising(1), ANSWERS: rising(4)},
        {},
        "75% of the answers show no ad",
    ),
    "ClicksRefused": Case(
        {calls("UNAVAILABLE", "RecordClicks"): rising(5)},
        {calls("INVALID_ARGUMENT", "RecordClicks"): rising(5), calls("UNAVAILABLE"): rising(5)},
        {},
        "1 click reports a second are refused",
    ),
    "LiveAdsStale": Case(
        {f"frugalads_scoring_replica_age_seconds{{{JOB}}}": constant(4)},
        {f"frugalads_scoring_replica_age_seconds{{{JOB}}}": constant(0.9)},
        ONE,
        "one knows bids, budgets and pauses as of 4s ago",
    ),
    "CachedListsCorrupt": Case(
        {CORRUPT: rising(1)},
        {CORRUPT: constant(3)},
        {"reason": "crc"},
        "cached values were not the list asked for: crc",
    ),
    "CacheEventsLost": Case(
        {DROPPED: rising(20), SENT: rising(80)},
        {DROPPED: rising(5), SENT: rising(95)},
        {},
        "20% of the cache events do not reach the sidecar",
    ),
    "IndexDeltaNearlyFull": Case(
        {CHANGES: constant(95), MOST_CHANGES: constant(100)},
        {CHANGES: constant(85), MOST_CHANGES: constant(100)},
        ONE,
        "95% of the room for index changes is taken",
    ),
    "EncoderBehind": Case(
        buckets(QUEUE, 80, 20),
        buckets(QUEUE, 95, 5),
        {"instance": "one"},
        "one call in ten waits 350ms for the encoder of one",
    ),
    "RedisEvictsItself": Case(
        {BACKSTOP: rising(2), EVICTED: rising(98)},
        {BACKSTOP: rising(1), EVICTED: rising(199)},
        {},
        "Redis chose 2% of the evicted entries",
    ),
    "EvictionsPaused": Case(
        {f"frugalads_eviction_paused{{{JOB}}}": constant(1)},
        {f"frugalads_eviction_paused{{{JOB}}}": constant(0)},
        ONE,
        "one has paused: evictions free less than a quarter of what they should",
    ),
    "KeysWithoutExpiry": Case(
        {REPAIRED: rising(1)},
        {REPAIRED: constant(3)},
        ONE,
        "120 keys of the cache had no expiry",
    ),
    "OrderRebuiltOften": Case(
        {REBUILDS: f"0+1x3 3x{SAMPLES - 4}", AT_START: constant(1)},
        {REBUILDS: f"0 1x{SAMPLES - 1}", AT_START: rising(1)},
        {},
        "the eviction order was learnt anew 3 times in an hour",
    ),
}  # fmt: skip


def hold_s(name: str) -> int:
    """The `for` of an alert."""
    text = RULES[name].get("for", "0s")
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def scenario(name: str, series: dict[str, str], at_s: int, raised: list[Case]) -> dict[str, Any]:
    """A test for promtool: what one alert raises at a time, given the series."""
    rule = RULES[name]
    expected = [
        {
            "exp_labels": {**case.labels, **rule["labels"]},
            "exp_annotations": {**rule["annotations"], "summary": case.summary},
        }
        for case in raised
    ]
    return {
        "interval": f"{STEP_S}s",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{at_s}s", "alertname": name, "exp_alerts": expected}],
    }


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_on_its_fault_after_its_wait_and_never_without(name: str, tmp_path: Path) -> None:
    case, end_s, wait_s = CASES[name], MINUTES * 60, hold_s(name)
    scenarios = [scenario(name, case.fault, end_s, [case]), scenario(name, case.quiet, end_s, [])]
    if wait_s:
        scenarios.append(scenario(name, case.fault, wait_s - STEP_S, []))
    file = tmp_path / "scenarios.yml"
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": f"{STEP_S}s", "tests": scenarios}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    promtool("test", "rules", file)


def test_every_alert_has_a_case_and_says_what_to_do() -> None:
    assert set(CASES) == set(RULES)
    for name, rule in RULES.items():
        assert rule["labels"]["severity"] in ("page", "ticket"), name
        assert set(rule["annotations"]) == {"summary", "description"}, name
        assert "{{" not in rule["annotations"]["description"], name
        assert rule["annotations"]["description"].endswith("."), name
