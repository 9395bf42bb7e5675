"""A new model or index: its lists take over at a pace, and what is cached goes on serving."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from redis_process import RedisProcess
from scoring_stand_ins import until, urls, world

from frugalads.scoring.v1 import scoring_pb2
from services.core.ads_list import Versions
from services.scoring.succession import Succession

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED
OLD, NEW = Versions("index", "encoder", "scorer-1"), Versions("index", "encoder", "scorer-2")


@given(st.integers(1, 20), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_no_second_sees_more_refreshes_than_allowed(per_s: int, pauses: list[float]) -> None:
    now = 0.0
    succession = Succession(per_s, lambda: now)
    succession.newest = NEW
    taken = []
    for pause in pauses:
        now += pause
        assert not succession.is_due(NEW)
        if succession.is_due(OLD):
            taken.append(now)
    assert taken
    for began in taken:
        assert sum(began <= at < began + 1 - 1e-9 for at in taken) <= per_s


def test_nothing_is_outdated_before_a_list_was_computed_or_with_no_pace() -> None:
    assert not Succession(5).is_due(OLD)
    unpaced = Succession(0)
    unpaced.newest = NEW
    assert not unpaced.is_due(OLD)


def test_a_new_scorer_does_not_flush_the_cache(valkey_server: RedisProcess) -> None:
    queries = [f"query {i}" for i in range(30)]

    async def scenario() -> None:
        async with world(*urls(valkey_server), refresh_every=1000, outdated_refreshes_per_s=1) as made:
            for query in queries:
                await made.rank(query)
            made.inference.scorer = "scorer-2"
            assert (await made.rank("not cached")).versions.scorer == "scorer-2"
            began_s = asyncio.get_running_loop().time()
            answers = [await made.rank(query) for query in queries]
            elapsed_s = asyncio.get_running_loop().time() - began_s
            states = Counter(answer.cache_state for answer in answers)
            assert set(states) == {HIT, REFRESHED}
            assert states[REFRESHED] <= 1 + elapsed_s
            assert {a.versions.scorer for a in answers if a.cache_state == HIT} == {"scorer-1"}

            async def took_over() -> bool:
                return bool((await made.rank(queries[0])).versions.scorer == "scorer-2")

            await until(took_over)

    asyncio.run(scenario())
