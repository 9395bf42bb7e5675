"""What is known of a phrase and its cached list when a hit is judged, and the feature rows made from it.

Problem. A model is to say what revenue is lost by serving a cached list, before anything is computed. What it
may look at: the request, the list that is cached, and what past computations of the phrase have shown. All of
that is one row of `KEY`, moved by three events: `on_request` with every request, `on_served` after a hit that
reused the list, `on_computed` with every list that was computed, be it after a miss or by a refresh.

What a refresh measures. The fresh list is auctioned: each ad it shows has a value, click probability at its
position x price of a click. The value of the shown ads that the cached list lacks is the loss that serving it
would have cost, in expectation. So the loss of every refresh is known exactly, clicks or no clicks; a row
keeps the running mean of it, apart for users whose context the list had been computed for and for others,
because most change of a list comes from who asks (SoCC'17, section 3.6).

Two sets of features:

    OURS    what computed lists and contexts tell; no click and no outside estimate is needed
    WWW18   those of table 1 of C. Li et al. (WWW 2018) that a request log has: 20 of 29, as a log has one
            location instead of five, for the user and for the list, and no query category

Units. Times are milliseconds, money US dollars. Costs are in any one unit, that of `LEDGER`; as features
they are divided by the mean cost of a request, so that a model trained where cost counts candidates can serve
where it is measured in microseconds.

Invariants: means are running means over at most `MEMORY` events (then exponential with weight 1 / MEMORY); a
statistic without an event is NaN as a feature. Complexity: O(1) an event, 8 contexts are looked through; a
row is 272 bytes. Nothing is drawn and no clock is read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.core.compiled import compiled

MEMORY = 64
"""Events that a running mean reaches back."""

CONTEXTS = 8
"""Contexts (location, gender, age band) of the last computations that a row remembers."""

KEY = np.dtype(
    [
        # the phrase
        ("requests", np.int64),
        ("first_ms", np.int64),  # time of the first request
        ("clicks", np.int64),
        ("revenue_usd", np.float64),  # of the clicks
        # lists computed for it: running means
        ("lists", np.int64),
        ("value_usd", np.float64),  # expected revenue of a list
        ("cost", np.float64),
        ("gaps", np.int64),  # lists computed while one was cached
        ("gap_ms", np.float64),  # between them
        ("gap_requests", np.float64),
        ("change_per_ms", np.float64),  # 1 - |A and B| / |A or B| of old and fresh list, per gap
        ("change_per_request", np.float64),
        ("known_losses", np.int64),  # of refreshes for a context among the last computed ones
        ("known_loss_usd", np.float64),
        ("other_losses", np.int64),  # of refreshes for any other
        ("other_loss_usd", np.float64),
        # the cached list
        ("written_ms", np.int64),
        ("served", np.int64),  # hits since then that reused it
        ("list_ads", np.int64),
        ("list_value_usd", np.float64),
        ("list_cpc_usd", np.float64),  # mean bid x click probability of its ads
        ("list_cost", np.float64),
        ("location", np.int64),  # for whom it was computed
        ("gender", np.int64),
        ("age", np.int64),
        ("device", np.int64),
        ("contexts", np.int64, (CONTEXTS,)),  # of the last computations, the last one first; 0 for none
    ]
)
"""State of one phrase and its cached list."""

LEDGER = np.dtype(
    [
        ("requests", np.float64),
        ("revenue_usd", np.float64),  # expected
        ("cost", np.float64),  # of computing a list for each of them
        ("predicted_usd", np.float64),  # loss predicted where a list would have been served
        ("measured_usd", np.float64),  # and the loss that the refresh found
    ]
)
"""Sums over the requests so far of a whole cache; one row. Old requests fade, see `predicted.py`."""

Keys = NDArray[np.void]
Floats = NDArray[np.float64]


class Request(NamedTuple):
    """Who asks, and when. Numbers name places, genders, age bands and devices; 0 is unknown."""

    time_ms: int
    location: int
    gender: int
    age: int
    device: int
    throttle_level: float  # a fast estimate of the request's revenue (WWW'18, table 1); NaN unknown


class Computed(NamedTuple):
    """A list that was computed for a request, and how it compares with the one that was cached."""

    ads: int  # in the cached list from now on
    value_usd: float  # expected revenue of the auction over the fresh list
    cpc_usd: float  # mean bid x click probability of its ads
    cost: float
    loss_usd: float  # value of the shown ads that the list before lacks; NaN where none was cached
    change: float  # 1 - |A and B| / |A or B| of the two lists; NaN likewise


KNOWN_LOSS, OTHER_LOSS = 0.2, 0.5
"""Of a list's value, what a refresh is taken to find lost where none has been seen; weighs as one refresh."""

OURS = (
    "expected_loss_usd",  # mean of refreshes for such a context, with the prior of KNOWN_LOSS or OTHER_LOSS
    "known_loss_usd",  # mean of refreshes for a context that was among the last ones
    "other_loss_usd",  # and of the others
    "losses",  # refreshes behind expected_loss_usd
    "value_usd",  # mean of the phrase's lists
    "list_value_usd",
    "list_cpc_usd",
    "list_ads",
    "context_place",  # computations since one for this context, CONTEXTS where there was none lately
    "same_location",  # as the user that the list was computed for
    "same_gender",
    "same_age",
    "same_device",
    "list_age_ms",
    "list_served",  # hits since the list was written
    "list_relative_cost",  # in terms of the mean cost of a request
    "relative_cost",  # mean of the phrase's lists, likewise
    "requests",  # of the phrase so far
    "request_gap_ms",  # mean time between them
    "change_per_request",
)

WWW18 = (
    "throttle_level",
    "location",
    "gender",
    "age",
    "device",
    "list_cpc_usd",  # AvgCPC
    "list_relative_cost",  # Cost
    "list_location",  # CLocation, and so on
    "list_gender",
    "list_age",
    "list_device",
    "list_age_ms",  # LastRefDur
    "list_served",  # LastRefFreq
    "revenue_per_request_usd",  # AvgRev
    "click_period_ms",
    "click_requests",  # ClickFreq
    "refresh_period_ms",
    "refresh_requests",  # RefFreq
    "change_per_ms",  # AvgLossDur
    "change_per_request",  # AvgLossFreq
)


@compiled
def on_request(keys: Keys, row: int, request: Request) -> None:
    """A request of the phrase has come."""
    key = keys[row]
    if key["requests"] == 0:
        key["first_ms"] = request.time_ms
    key["requests"] += 1


@compiled
def on_served(keys: Keys, row: int) -> None:
    """The cached list was served."""
    keys[row]["served"] += 1


@compiled
def on_clicks(keys: Keys, row: int, clicks: int, revenue_usd: float) -> None:
    """Ads of the phrase were clicked."""
    keys[row]["clicks"] += clicks
    keys[row]["revenue_usd"] += revenue_usd


@compiled
def _weight(events: int) -> float:
    """Weight in a running mean of the newest of so many events."""
    return 1.0 / min(events, MEMORY)


@compiled
def _context(request: Request) -> int:
    return 1 + (request.location * 256 + request.gender) * 256 + request.age


@compiled
def _place(keys: Keys, row: int, context: int) -> int:
    """How many computations ago, from 0, the context was computed for; CONTEXTS: not lately."""
    contexts = keys[row]["contexts"]
    for place in range(CONTEXTS):
        if contexts[place] == context:
            return place
    return CONTEXTS


@compiled
def on_computed(keys: Keys, row: int, request: Request, computed: Computed) -> None:
    """A list was computed for a request of the phrase, and is cached."""
    key = keys[row]
    context = _context(request)
    place = _place(keys, row, context)
    key["lists"] += 1
    weight = _weight(key["lists"])
    key["value_usd"] += weight * (computed.value_usd - key["value_usd"])
    key["cost"] += weight * (computed.cost - key["cost"])
    if computed.loss_usd == computed.loss_usd:
        if place < CONTEXTS:
            key["known_losses"] += 1
            key["known_loss_usd"] += _weight(key["known_losses"]) * (
                computed.loss_usd - key["known_loss_usd"]
            )
        else:
            key["other_losses"] += 1
            key["other_loss_usd"] += _weight(key["other_losses"]) * (
                computed.loss_usd - key["other_loss_usd"]
            )
        gap_ms = max(1.0, float(request.time_ms - key["written_ms"]))
        gap_requests = key["served"] + 1.0
        key["gaps"] += 1
        weight = _weight(key["gaps"])
        key["gap_ms"] += weight * (gap_ms - key["gap_ms"])
        key["gap_requests"] += weight * (gap_requests - key["gap_requests"])
        key["change_per_ms"] += weight * (computed.change / gap_ms - key["change_per_ms"])
        key["change_per_request"] += weight * (computed.change / gap_requests - key["change_per_request"])
    else:  # what was cached before is gone
        key["contexts"][:] = 0
        place = CONTEXTS
    for at in range(min(place, CONTEXTS - 1), 0, -1):
        key["contexts"][at] = key["contexts"][at - 1]
    key["contexts"][0] = context
    key["written_ms"] = request.time_ms
    key["served"] = 0
    key["list_ads"] = computed.ads
    key["list_value_usd"] = computed.value_usd
    key["list_cpc_usd"] = computed.cpc_usd
    key["list_cost"] = computed.cost
    key["location"] = request.location
    key["gender"] = request.gender
    key["age"] = request.age
    key["device"] = request.device


@compiled
def ours(keys: Keys, row: int, request: Request, mean_cost: float, out: Floats) -> None:
    """The features OURS of a hit into `out`, after `on_request`. mean_cost: of a request, in cost units."""
    key = keys[row]
    place = _place(keys, row, _context(request))
    known, other = key["known_losses"], key["other_losses"]
    count, loss_usd = (known, key["known_loss_usd"]) if place < CONTEXTS else (other, key["other_loss_usd"])
    share = KNOWN_LOSS if place < CONTEXTS else OTHER_LOSS
    out[0] = (count * loss_usd + share * key["value_usd"]) / (count + 1.0)
    out[1] = key["known_loss_usd"] if known > 0 else np.nan
    out[2] = key["other_loss_usd"] if other > 0 else np.nan
    out[3] = count
    out[4] = key["value_usd"]
    out[5] = key["list_value_usd"]
    out[6] = key["list_cpc_usd"]
    out[7] = key["list_ads"]
    out[8] = place
    out[9] = request.location == key["location"]
    out[10] = request.gender == key["gender"]
    out[11] = request.age == key["age"]
    out[12] = request.device == key["device"]
    out[13] = request.time_ms - key["written_ms"]
    out[14] = key["served"]
    out[15] = key["list_cost"] / mean_cost
    out[16] = key["cost"] / mean_cost
    out[17] = key["requests"]
    out[18] = (request.time_ms - key["first_ms"]) / max(1, key["requests"] - 1)
    out[19] = key["change_per_request"] if key["gaps"] > 0 else np.nan


@compiled
def www18(keys: Keys, row: int, request: Request, mean_cost: float, out: Floats) -> None:
    """The features WWW18 of a hit into `out`, as `ours`."""
    key = keys[row]
    elapsed_ms = request.time_ms - key["first_ms"]
    clicks, gaps = key["clicks"], key["gaps"]
    out[0] = request.throttle_level
    out[1] = request.location
    out[2] = request.gender
    out[3] = request.age
    out[4] = request.device
    out[5] = key["list_cpc_usd"]
    out[6] = key["list_cost"] / mean_cost
    out[7] = key["location"]
    out[8] = key["gender"]
    out[9] = key["age"]
    out[10] = key["device"]
    out[11] = request.time_ms - key["written_ms"]
    out[12] = key["served"]
    out[13] = key["revenue_usd"] / key["requests"]
    out[14] = elapsed_ms / clicks if clicks > 0 else np.nan
    out[15] = key["requests"] / clicks if clicks > 0 else np.nan
    out[16] = key["gap_ms"] if gaps > 0 else np.nan
    out[17] = key["gap_requests"] if gaps > 0 else np.nan
    out[18] = key["change_per_ms"] if gaps > 0 else np.nan
    out[19] = key["change_per_request"] if gaps > 0 else np.nan
