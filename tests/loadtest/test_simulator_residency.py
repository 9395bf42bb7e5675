"""Which lists LRU holds, against an ordered dictionary; and who has earned when."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_logs import logs, random_log

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.keys import cache_keys, earning_before
from loadtest.simulator.residency import places, residency


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Keys, and with some of them another key that their insert deletes."""
    keys = draw(st.lists(st.integers(0, 9), max_size=100))
    deleted = draw(st.lists(st.integers(-1, 9), min_size=len(keys), max_size=len(keys)))
    return keys, [-1 if gone == key else gone for key, gone in zip(keys, deleted, strict=True)]


@given(requests(), st.integers(1, 12))
def test_places_are_those_of_an_lru(made: tuple[list[int], list[int]], entries: int) -> None:
    keys, deleted = made
    if not keys:
        return
    highest = max(keys)
    deleted = [
        min(gone, highest) if min(gone, highest) != key else -1
        for key, gone in zip(keys, deleted, strict=True)
    ]
    resident, place = places(np.array(keys, np.int32), np.array(deleted, np.int32), entries)
    cache: OrderedDict[int, int] = OrderedDict()
    for i, key in enumerate(keys):
        assert resident[i] == (key in cache)
        if key in cache:
            assert cache[key] == place[i]
        elif deleted[i] in cache:
            del cache[deleted[i]]
        elif len(cache) == entries:
            cache.popitem(last=False)
        cache[key] = int(place[i])
        cache.move_to_end(key)
        assert len(set(cache.values())) == len(cache) <= entries
        assert 0 <= place[i] < entries


def test_residency_is_a_matter_of_keys_alone() -> None:
    keys = np.array([1, 2, 1, 3, 2, 1], np.int32)
    assert residency(keys, 2).tolist() == [False, False, True, False, False, False]
    assert residency(keys, 3).tolist() == [False, False, True, False, True, True]
    assert residency(keys, 10**9).tolist() == [False, False, True, False, True, True]


def test_no_requests_are_no_hits() -> None:
    assert residency(np.zeros(0, np.int32), 5).tolist() == []


def test_a_cache_without_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="entries 0"):
        residency(np.zeros(3, np.int32), 0)


@given(logs())
def test_a_phrase_earns_from_the_request_after_its_first_charged_click(log: RequestLog) -> None:
    earning = set(np.flatnonzero(log.prior_clicks).tolist())
    before = earning_before(log)
    for i, phrase in enumerate(log.phrase.tolist()):
        assert before[i] == (phrase in earning)
        places_of = slice(log.offsets[i], log.offsets[i + 1])
        if (log.clicked[places_of] & (log.charge_usd[places_of] > 0)).any():
            earning.add(phrase)


def test_revenue_of_prior_days_earns_too() -> None:
    log = random_log(
        1, phrases=3, prior_clicks=np.zeros(3, np.int32), prior_revenue_usd=np.array([0, 0.5, 0])
    )
    first = [earning_before(log)[log.phrase == phrase][0] for phrase in range(3)]
    assert first == [False, True, False]


@given(logs())
def test_keys_of_each_scheme(log: RequestLog) -> None:
    earning = earning_before(log)
    contexts = list(zip(log.phrase, log.location, log.gender, log.age, strict=True))
    by_phrase = cache_keys(log, "phrase", earning)
    assert by_phrase.key.tolist() == log.phrase.tolist()
    assert set(by_phrase.deleted) <= {-1}
    personal = cache_keys(log, "all", earning).key.tolist()
    names = dict(zip(contexts, personal, strict=True))
    assert [names[context] for context in contexts] == personal
    assert len(set(personal)) == len(set(contexts))
    selective = cache_keys(log, "selective", earning)
    for i, phrase in enumerate(log.phrase.tolist()):
        wanted = (personal[i], phrase) if earning[i] else (phrase, -1)
        assert (selective.key[i], selective.deleted[i]) == wanted
