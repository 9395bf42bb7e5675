"""The ads list of a request: what a scorer that is random, personal and ageing lists for a phrase.

Problem. SoCC'17 (section 3.6) says why lists change (several learning algorithms in parallel with randomness,
differences between users, ads and budgets that come and go) and figure 6 how much. Every cause is a term:

    appeal = a fit + b user(phrase, ad, context) + c age(phrase, ad, redraw)
    score  = appeal + d algorithm(phrase, ad, algorithm) + e noise(request, ad)

with independent standard normal terms and weights of the phrase's own (`noise.py`). The list is the ads of
the pool with the highest scores among those on offer (`changes.py`), `list_ads` of them, more or less.

Appeal is what the user sees: the true click probability at the top is the phrase's scale times the quantile
of Beta(2.71, 25.43) (Lahaie & Pennock, EC 2007) at the rank of the appeal among listed ads (`noise.py`). User
and age move the truth; algorithm and noise do not. The scorer's estimate is the truth times a log-normal
error of 30 %, one an ad and algorithm, and the list is in the order of the estimate.

Age redraws each ad's term at a rate of the phrase's own (log-normal, median 5 a day). Its share of the noise
is the profile's `age_share`: .15, because the similarity on hits in SoCC'17 hardly differs between serving an
entry for ever (43 %) and for one hit (48 %), so most change is immediate.

Complexity: pool x requests; 256 candidates take some 10 us.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.batch import Batch
from loadtest.request_log.generator.changes import AdDay
from loadtest.request_log.generator.noise import Z_LIMIT, Z_STEPS, Noise
from loadtest.request_log.generator.phrases import Traits
from loadtest.request_log.generator.pools import Pools
from loadtest.request_log.generator.profiles import Profile
from loadtest.request_log.generator.randomness import (
    AGEING,
    ALGORITHM,
    CONTEXT,
    ERROR,
    LENGTH,
    PHASE,
    ROUND_ERROR,
    TRICKLE,
    at,
    normal,
    stream,
)
from loadtest.request_log.schema import DAY_MS
from services.core.compiled import compiled

ALGORITHM_SHARES = np.cumsum([0.6, 0.2, 0.2])
LENGTH_NOISE = 0.3
MOST_PROBABLE = 0.9

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lists:
    """Lists of n requests: `counts[i]` ads of request i, one list after the other."""

    counts: Ints
    ads: NDArray[np.int32]
    estimate: NDArray[np.float32]  # of the click probability at the top
    truth: NDArray[np.float32]


def make_lists(
    profile: Profile,
    seed: int,
    batch: Batch,
    traits: Traits,
    pools: Pools,
    noise: Noise,
    relevance: Floats,
    scale: Floats,
    day: AdDay,
    cost: NDArray[np.float32],
) -> Lists:
    """The lists of requests; `scale` is the click probability of each phrase's ads of mean relevance."""
    counts, ads, estimate, truth = _lists(
        seed, batch.first, batch.phrase, batch.time_ms, batch.context, cost, traits.id, traits.list_ads,
        traits.age_rate, scale, noise.relevance, noise.fit, noise.user, noise.age, noise.algorithm,
        noise.request, pools.row, pools.ads, pools.fit, day.start_ms, day.stop_ms, day.out_ms, day.passes,
        relevance, profile.estimate_error,
    )  # fmt: skip
    return Lists(counts, ads, estimate, truth)


@compiled
def _lists(
    seed: int, first_request: int, row: Ints, time_ms: Ints, context: Ints, cost: NDArray[np.float32],
    ids: Ints, list_ads: Ints, age_rate: Floats, scale: Floats, relevance_row: Ints, of_fit: Floats,
    of_user: Floats, of_age: Floats, of_algorithm: Floats, of_request: Floats, pool_row: Ints,
    pool_ads: NDArray[np.int32], pool_fit: NDArray[np.float32], start_ms: Ints, stop_ms: Ints, out_ms: Ints,
    passes: Floats, relevance: Floats, error: float,
) -> tuple[Ints, NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
    size = pool_ads.shape[1]
    counts = np.zeros(len(row), np.int64)
    room = 0
    lengths = np.zeros(len(row), np.int64)
    length_noise = stream(seed, LENGTH, 0)
    for i in range(len(row)):
        if cost[i] > 0:
            spread = LENGTH_NOISE * of_request[row[i]]
            factor = math.exp(spread * normal(length_noise, first_request + i))
            lengths[i] = max(1, min(round(list_ads[row[i]] * factor), size))
            room += lengths[i]
    ads = np.empty(room, np.int32)
    estimate = np.empty(room, np.float32)
    truth = np.empty(room, np.float32)
    score = np.empty(size + 1)
    appeal = np.empty(size + 1)
    chosen = np.empty(size + 1, np.int32)
    algorithms = stream(seed, ALGORITHM, 0)
    filled = 0
    for i in range(len(row)):
        wanted = lengths[i]
        if wanted == 0:
            continue
        k = row[i]
        p = pool_row[k]
        pick = at(algorithms, first_request + i)
        algorithm = 0
        while pick >= ALGORITHM_SHARES[algorithm] and algorithm < len(ALGORITHM_SHARES) - 1:
            algorithm += 1
        users = stream(seed, CONTEXT, ids[k] * 4096 + context[i])
        ages = stream(seed, AGEING, ids[k])
        phases = stream(seed, PHASE, ids[k])
        errors = stream(seed, ERROR, ids[k] * 8 + algorithm)
        rounds = stream(seed, ROUND_ERROR, first_request + i)
        passing = stream(seed, TRICKLE, first_request + i)
        redraws = time_ms[i] / DAY_MS * age_rate[k] + 1000.0
        held = 0
        for j in range(size):
            ad = pool_ads[p, j]
            t = time_ms[i]
            # on offer: alive, and in budget or let through
            if t < start_ms[ad] or t >= stop_ms[ad]:
                continue
            if t >= out_ms[ad] and at(passing, ad) >= passes[ad]:
                continue
            # appeal: fit, user, age
            seen = of_fit[k] * pool_fit[p, j]
            if of_user[k] > 0.0:
                seen += of_user[k] * normal(users, ad)
            if of_age[k] > 0.0:
                seen += of_age[k] * normal(ages, ad * 65536 + int(redraws + at(phases, ad)))
            # score: appeal, algorithm, noise
            listed = seen
            if of_algorithm[k] > 0.0:
                listed += of_algorithm[k] * normal(errors, ad)
            if of_request[k] > 0.0:
                listed += of_request[k] * normal(rounds, ad)
            if held == wanted and listed <= score[held - 1]:
                continue
            place = held if held < wanted else held - 1  # keep the best, in order of score
            while place > 0 and score[place - 1] < listed:
                score[place] = score[place - 1]
                appeal[place] = appeal[place - 1]
                chosen[place] = chosen[place - 1]
                place -= 1
            score[place], appeal[place], chosen[place] = listed, seen, ad
            if held < wanted:
                held += 1
        first = filled
        for j in range(held):  # truth and estimate of the listed ads, in order of the estimate
            z = (min(max(appeal[j], -Z_LIMIT), Z_LIMIT) + Z_LIMIT) * ((Z_STEPS - 1) / (2.0 * Z_LIMIT))
            below = min(int(z), Z_STEPS - 2)
            low, high = relevance[relevance_row[k], below], relevance[relevance_row[k], below + 1]
            true = low + (z - below) * (high - low)
            true = min(scale[k] * true, MOST_PROBABLE)
            guess = np.float32(
                min(true * math.exp(error * normal(errors, chosen[j]) - 0.5 * error * error), MOST_PROBABLE)
            )
            place = filled
            while place > first and estimate[place - 1] < guess:
                estimate[place] = estimate[place - 1]
                truth[place] = truth[place - 1]
                ads[place] = ads[place - 1]
                place -= 1
            estimate[place], truth[place], ads[place] = guess, true, chosen[j]
            filled += 1
        counts[i] = held
    return counts, ads[:filled], estimate[:filled], truth[:filled]
