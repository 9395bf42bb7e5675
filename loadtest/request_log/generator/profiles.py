"""The constants of a generated log, each with where it comes from.

`published`: read in, or fitted to, a published figure. `modelled`: ours; a test holds what follows from it to
a published number where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.runtime.errors import UserError

DAY_REQUESTS = 1_245_184  # of the Scarab trace, taken as one day
PRIOR_DAYS = 3


@dataclass(frozen=True)
class Profile:
    """What a log is made with. The defaults are the calibrated ones; `age_share` is for sensitivity runs."""

    requests_per_day: int = DAY_REQUESTS

    # Keys. Modelled: the phrases behind the drawn stream, so that one comes 4-6 times a day, and how many
    # phrases share a slot that a trace meets once, so that 70 % of them have no history of three days.
    # Published (AdWords): sd and AR(1) of the change of a keyword's log volume from day to day.
    universe: int = 450_000
    single_stand_ins: int = 9
    demand_sd: float = 0.56
    demand_persistence: float = 0.81

    # Users. Modelled: concentration of a phrase asked once a day, and its growth with popularity; held to
    # figure 3 of SoCC'17.
    context_concentration: float = 1.5
    context_growth: float = 0.33

    # Candidates. Rule of the key mapping: the share of web queries. Modelled: how many of the frequent ones
    # find ads (half of that at `web_finds_from` requests a day); requests without candidates: slots of a
    # frequent phrase (half at `empty_slot_from` a day), users of a phrase, single requests; held to figures 5
    # and 6.
    web_share: float = 0.4
    web_finds: float = 0.87
    web_finds_from: float = 10.0
    empty_slot: float = 0.21
    empty_slot_from: float = 10.0
    empty_context: float = 0.115
    empty_request: float = 0.03

    # Cost. Published: SoCC'17, figure 5.
    cost_log_mean: float = 7.23
    cost_log_sd: float = 1.21
    cost_cut: float = 10_100.0

    # Lists. Modelled, held to figure 6 of SoCC'17: the ads that compete for a list; Beta law of the share of
    # a list that survives, and the phrases with stable lists. (Without causes of change of their own, figure
    # 6 is met by Beta(.536, .797) and 17.4 % stable ones; with them the law must be wider.)
    pool_ads: int = 256
    retained_a: float = 0.37
    retained_b: float = 0.75
    stable_share: float = 0.26

    # Noise of scores. Modelled, held to figure 6 (personalised keys): rare phrases whose lists change at once
    # with the user only (half as many at `personal_below` requests a day); of the immediate noise of the
    # others, the share of the user, and of what is left, the share of algorithms. Share of age: see
    # `lists.py`.
    age_share: float = 0.15
    age_per_day: float = 5.0
    personal_phrases: float = 0.33
    personal_below: float = 1000.0
    context_share: float = 0.70
    algorithm_share: float = 0.15

    # Clicks. Published: requests with click revenue (SoCC'17, figure 4); Beta(1.18, 35.9) of keywords
    # (AdWords); relevance (Lahaie & Pennock, EC 2007). Modelled, held to the shares of phrases and requests
    # that earn: rare phrases are clicked less, and so are those so frequent that they mostly seek one site.
    click_share: float = 0.0276
    ctr_shape: float = 1.18
    rare_below: float = 6.0
    rare_slope: float = 2.0
    frequent_above: float = 30.0
    frequent_slope: float = 0.35
    relevance_a: float = 2.71
    relevance_b: float = 25.43

    # Value. Rule: the copula of text and fit. Published (Lahaie & Pennock): Spearman correlation .4 of value
    # and relevance. Modelled: bids differ by phrase within a category, held to figure 4; the scorer's log
    # error; the listed ads that take part in an auction (`auction.py`).
    text_copula: float = 0.7
    value_copula: float = 0.416
    phrase_value_sd: float = 0.62
    estimate_error: float = 0.3
    takes_part: float = 0.5

    def __post_init__(self) -> None:
        for name in ("age_share", "context_share", "algorithm_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name}: {getattr(self, name)} is outside 0..1")
        if not 1 <= self.requests_per_day <= DAY_REQUESTS:
            raise UserError(f"requests_per_day: {self.requests_per_day} is outside 1..{DAY_REQUESTS}")


PROFILES = {"bing": Profile(), "ci": Profile(requests_per_day=355_426)}
