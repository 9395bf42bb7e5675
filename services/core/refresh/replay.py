"""Training rows of a refresh model: a request log replayed with a cache that holds everything.

Problem. Only the log knows what serving a list would have lost: the list that was computed for every request.
So the log is replayed (C. Li et al., WWW 2018, section 4.3): the first request of a phrase caches its list,
and every later one gives a row, the features of a hit and what serving would lose. Then the list is refreshed
or served, by a schedule, so that rows show lists of every age.

Schedules.

    PUBLISHED  refresh where a clicked ad was missing, or at the 20th hit (the paper's)
    RANDOM     refresh every hit with a probability of the phrase's own, log-uniform in 1 / 100 .. 1

The paper's schedule looks at the label: a list that stands served for long has lost no click so far, so the
features tell of the label what no live decision can know. With labels as rare as clicks that is little. With
dense labels it is nearly everything, and a model trained so is of no use (DECISIONS.md). RANDOM looks at
nothing, and lists of all ages occur, of phrases that much is known of and of phrases that little is.

Labels of a row, US dollars: the value of the ads shown that the list lacks, which is dense; and the charges
of those among them that were clicked.

Complexity: O(ads listed) a request; 12 bytes for each ad that an entry can hold where lists are merged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.core.compiled import compiled
from services.core.merging import move_to_front
from services.core.refresh import features, predicted
from services.core.refresh.features import KEY, LEDGER, OURS, WWW18, Computed, Keys, Request

PUBLISHED_EVERY = 20
"""The hit at which the paper's schedule refreshes at the latest."""

LEAST_RATE = 0.01
"""Of the schedule RANDOM."""


class Traffic(NamedTuple):
    """A request log as arrays: n requests, m listed ads, as `loadtest.request_log.schema.Requests` says.

    value_usd: of an ad that was shown, estimated click probability at its position x price, else 0.
    offer_usd: bid x estimated click probability at the top.
    click_usd: the price where it was clicked, else 0.
    prior_clicks, prior_revenue_usd: of each phrase before the log.
    """

    time_ms: NDArray[np.int64]
    phrase: NDArray[np.int32]
    location: NDArray[np.int8]
    gender: NDArray[np.int8]
    age: NDArray[np.int8]
    device: NDArray[np.int8]
    cost: NDArray[np.float32]
    throttle_level: NDArray[np.float32]
    offsets: NDArray[np.int64]
    ads: NDArray[np.int32]
    value_usd: NDArray[np.float32]
    offer_usd: NDArray[np.float32]
    click_usd: NDArray[np.float32]
    prior_clicks: NDArray[np.int64]
    prior_revenue_usd: NDArray[np.float64]


class Rows(NamedTuple):
    """Training rows in the order of requests: features, labels, the request of each."""

    features: NDArray[np.float32]  # [rows, features]
    loss_usd: NDArray[np.float64]
    click_loss_usd: NDArray[np.float64]
    request: NDArray[np.int64]


def training_rows(
    traffic: Traffic, last: int, *, published: bool, by_clicks: bool, merge_ads: int, seed: int
) -> Rows:
    """The rows of the first `last` requests.

    published: the features WWW18, else OURS. by_clicks: the schedule PUBLISHED, else RANDOM. merge_ads:
    capacity of a merged list, 0 where a refresh replaces the list.
    """
    phrases, ads = int(traffic.phrase[:last].max(initial=-1)) + 1, int(traffic.ads.max(initial=-1)) + 1
    rows = Rows(
        np.empty((last, len(WWW18 if published else OURS)), np.float32),
        np.empty(last),
        np.empty(last),
        np.empty(last, np.int64),
    )
    cached = (np.zeros((phrases, merge_ads), np.int32), np.zeros((phrases, merge_ads), np.bool_))
    keys, ledger = np.zeros(phrases, KEY), np.zeros(1, LEDGER)
    random = np.random.default_rng(seed)
    rates = LEAST_RATE ** random.random(phrases)
    uniform = random.random(1 if by_clicks else last)
    count = _replay(
        traffic, last, published, by_clicks, keys, ledger, *cached, np.full(ads, -1), rates, uniform, rows
    )
    return Rows(
        rows.features[:count], rows.loss_usd[:count], rows.click_loss_usd[:count], rows.request[:count]
    )


@compiled
def request_of(traffic: Traffic, i: int) -> Request:
    """Request i as features see it."""
    return Request(
        int(traffic.time_ms[i]),
        int(traffic.location[i]),
        int(traffic.gender[i]),
        int(traffic.age[i]),
        int(traffic.device[i]),
        float(traffic.throttle_level[i]),
    )


@compiled
def learn_prior(keys: Keys, traffic: Traffic, phrase: int) -> None:
    """Before the first request of a phrase: the clicks of the days before the log."""
    if keys[phrase]["requests"] == 0:
        features.on_clicks(keys, phrase, traffic.prior_clicks[phrase], traffic.prior_revenue_usd[phrase])


@compiled
def _replay(
    traffic: Traffic,
    last: int,
    published: bool,
    by_clicks: bool,
    keys: Keys,
    ledger: Keys,
    lists: NDArray[np.int32],
    unused: NDArray[np.bool_],
    held_at: NDArray[np.int64],
    rates: NDArray[np.float64],
    uniform: NDArray[np.float64],
    rows: Rows,
) -> int:
    """Fills `rows`; how many there are. held_at: of each ad, the last request whose cached list held it."""
    capacity = lists.shape[1]
    scratch = np.empty(max(len(OURS), len(WWW18)))
    written_by = np.zeros(len(keys), np.int64)  # the request whose list is cached, where none is merged
    count = 0
    for i in range(last):
        phrase, request = traffic.phrase[i], request_of(traffic, i)
        begin, end = traffic.offsets[i], traffic.offsets[i + 1]
        is_hit = keys[phrase]["lists"] > 0
        learn_prior(keys, traffic, phrase)
        held = 0
        if is_hit and capacity > 0:
            held = keys[phrase]["list_ads"]
            for ad in lists[phrase, :held]:
                held_at[ad] = i
        elif is_hit:
            by = written_by[phrase]
            held = traffic.offsets[by + 1] - traffic.offsets[by]
            for ad in traffic.ads[traffic.offsets[by] : traffic.offsets[by + 1]]:
                held_at[ad] = i
        value_usd, offer_usd, loss_usd, click_usd, click_loss_usd = 0.0, 0.0, 0.0, 0.0, 0.0
        common, clicks = 0, 0
        for j in range(begin, end):
            value_usd += traffic.value_usd[j]
            offer_usd += traffic.offer_usd[j]
            click_usd += traffic.click_usd[j]
            clicks += traffic.click_usd[j] > 0
            if held_at[traffic.ads[j]] == i:
                common += 1
            else:
                loss_usd += traffic.value_usd[j]
                click_loss_usd += traffic.click_usd[j]
        is_served = False
        if is_hit:
            features.on_request(keys, phrase, request)
            if by_clicks:
                is_served = click_loss_usd == 0.0 and keys[phrase]["served"] + 1 < PUBLISHED_EVERY
            else:
                is_served = uniform[i] >= rates[phrase]
            if published:
                features.www18(keys, phrase, request, predicted.mean_cost(ledger), scratch)
            else:
                features.ours(keys, phrase, request, predicted.mean_cost(ledger), scratch)
            for column in range(rows.features.shape[1]):
                rows.features[count, column] = scratch[column]
            rows.loss_usd[count], rows.click_loss_usd[count] = loss_usd, click_loss_usd
            rows.request[count] = i
            count += 1
        if is_served:
            features.on_served(keys, phrase)
            predicted.note_request(ledger, keys[phrase]["value_usd"], keys[phrase]["cost"])
        else:
            fresh = traffic.ads[begin:end]
            kept = end - begin
            if capacity > 0:
                kept = move_to_front(lists[phrase], unused[phrase], held, fresh, fresh > 0, capacity)
            written_by[phrase] = i
            union = held + end - begin - common
            computed = Computed(
                kept,
                value_usd,
                offer_usd / max(1, end - begin),
                float(traffic.cost[i]),
                loss_usd if is_hit else np.nan,
                1.0 - common / max(1, union) if is_hit else np.nan,
            )
            predicted.learn(keys, phrase, request, computed, ledger)
        if clicks > 0:
            features.on_clicks(keys, phrase, clicks, click_usd)
    return count
