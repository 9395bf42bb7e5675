"""What requests may contain. Every violation names field, value and limit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from frugalads.scoring.v1 import scoring_pb2
from services.core.auction import Viewer
from services.core.query import normalise
from services.runtime.errors import InvalidArgument
from services.scoring import click_token
from services.scoring.click_token import Shown
from services.scoring.replica import to_micros
from services.scoring.state import Update

MAX_LOCATION_CHARS = 64
MAX_CLICK_ID_CHARS = 128
MAX_TITLE_CHARS = 300
MAX_DESCRIPTION_CHARS = 2000
MAX_ADVERTISER_CHARS = 100
MAX_BID_USD = 1000.0
MAX_BUDGET_USD = 1e9
MAX_TARGETED_VALUES = 1000
MAX_INT64 = (1 << 63) - 1

_GENDERS = frozenset(scoring_pb2.Gender.values())
_AGE_BANDS = frozenset(scoring_pb2.AgeBand.values())
_DEVICES = frozenset(scoring_pb2.Device.values())
_ANYONE = Viewer()


def key_text(request: scoring_pb2.RankAdsRequest, max_query_chars: int, max_slots: int) -> str:
    """The cache key text of a valid request. Raises InvalidArgument."""
    query = request.query.strip()
    if not 0 < len(query) <= max_query_chars:
        raise InvalidArgument("query", request.query, f"1..{max_query_chars} characters after trimming")
    if not 1 <= request.slots <= max_slots:
        raise InvalidArgument("slots", request.slots, f"in 1..{max_slots}")
    text = normalise(query)
    if not text:
        raise InvalidArgument("query", request.query, "a text with visible characters")
    return text


def viewer(request: scoring_pb2.RankAdsRequest) -> Viewer:
    """The user of a request. Raises InvalidArgument."""
    if not request.HasField("user"):
        return _ANYONE
    user = request.user
    _text("user.location", user.location, 0, MAX_LOCATION_CHARS)
    _one_of("user.gender", user.gender, _GENDERS)
    _one_of("user.age_band", user.age_band, _AGE_BANDS)
    _one_of("user.device", user.device, _DEVICES)
    return Viewer(user.location, user.gender, user.age_band, user.device)


def clicks(
    request: scoring_pb2.RecordClicksRequest, max_clicks: int, secret: bytes, now_ms: int
) -> list[tuple[str, Shown]]:
    """Click ids and what their tokens prove. Raises InvalidArgument."""
    _count("clicks", len(request.clicks), max_clicks)
    checked = []
    for i, click in enumerate(request.clicks):
        _text(f"clicks[{i}].click_id", click.click_id, 1, MAX_CLICK_ID_CHARS)
        try:
            shown = click_token.verify(secret, click.click_token, now_ms)
        except click_token.InvalidToken as error:
            raise InvalidArgument(
                f"clicks[{i}].click_token", f"{len(click.click_token)} bytes", str(error)
            ) from error
        checked.append((click.click_id, shown))
    return checked


def updates(request: scoring_pb2.UpdateAdsRequest, max_updates: int) -> list[Update]:
    """The changes in the order in which they apply: ads, changes, deletions, accounts.

    Raises InvalidArgument.
    """
    count = len(request.ads) + len(request.changes) + len(request.delete_ad_ids) + len(request.advertisers)
    _count("changes in all", count, max_updates)
    _distinct("ads", "ad_id", (ad.ad_id for ad in request.ads))
    _distinct("advertisers", "advertiser", (account.advertiser for account in request.advertisers))
    return [
        *(_ad(f"ads[{i}]", ad) for i, ad in enumerate(request.ads)),
        *(_change(f"changes[{i}]", change) for i, change in enumerate(request.changes)),
        *(
            Update("delete", _ad_id(f"delete_ad_ids[{i}]", ad_id))
            for i, ad_id in enumerate(request.delete_ad_ids)
        ),
        *(_advertiser(f"advertisers[{i}]", account) for i, account in enumerate(request.advertisers)),
    ]


def _ad(field: str, ad: scoring_pb2.Ad) -> Update:
    ad_id = _ad_id(f"{field}.ad_id", ad.ad_id)
    _text(f"{field}.title", ad.title, 1, MAX_TITLE_CHARS)
    _text(f"{field}.description", ad.description, 0, MAX_DESCRIPTION_CHARS)
    _text(f"{field}.advertiser", ad.advertiser, 1, MAX_ADVERTISER_CHARS)
    bid_micros = _bid(f"{field}.bid_usd", ad.bid_usd)
    _targeting(f"{field}.targeting", ad.targeting)
    return Update("ad", ad_id, ad.SerializeToString(), bid_micros, int(ad.paused))


def _change(field: str, change: scoring_pb2.AdChange) -> Update:
    return Update(
        "change",
        _ad_id(f"{field}.ad_id", change.ad_id),
        bid_micros=_bid(f"{field}.bid_usd", change.bid_usd) if change.HasField("bid_usd") else "",
        paused=int(change.paused) if change.HasField("paused") else "",
    )


def _advertiser(field: str, account: scoring_pb2.Advertiser) -> Update:
    _text(f"{field}.advertiser", account.advertiser, 1, MAX_ADVERTISER_CHARS)
    budget = account.daily_budget_usd
    if account.HasField("daily_budget_usd") and not (math.isfinite(budget) and 0 <= budget <= MAX_BUDGET_USD):
        raise InvalidArgument(f"{field}.daily_budget_usd", budget, f"in 0..{MAX_BUDGET_USD:.0f}")
    return Update("advertiser", account.advertiser, account.SerializeToString())


def _targeting(field: str, targeting: scoring_pb2.Targeting) -> None:
    for name, values in (
        ("locations", targeting.locations),
        ("genders", targeting.genders),
        ("age_bands", targeting.age_bands),
        ("devices", targeting.devices),
    ):
        if len(values) > MAX_TARGETED_VALUES:
            raise InvalidArgument(
                f"{field}.{name}", f"{len(values)} values", f"at most {MAX_TARGETED_VALUES} values"
            )
    for i, location in enumerate(targeting.locations):
        _text(f"{field}.locations[{i}]", location, 1, MAX_LOCATION_CHARS)
    for i, gender in enumerate(targeting.genders):
        _one_of(f"{field}.genders[{i}]", gender, _GENDERS - {0})
    for i, age_band in enumerate(targeting.age_bands):
        _one_of(f"{field}.age_bands[{i}]", age_band, _AGE_BANDS - {0})
    for i, device in enumerate(targeting.devices):
        _one_of(f"{field}.devices[{i}]", device, _DEVICES - {0})


def _ad_id(field: str, ad_id: int) -> int:
    if ad_id < 1:
        raise InvalidArgument(field, ad_id, f"in 1..{MAX_INT64}")
    return ad_id


def _bid(field: str, usd: float) -> int:
    if not (math.isfinite(usd) and 0 < usd <= MAX_BID_USD) or to_micros(usd) < 1:
        raise InvalidArgument(field, usd, f"in 0.000001..{MAX_BID_USD:.0f}")
    return to_micros(usd)


def _text(field: str, value: str, low: int, high: int) -> None:
    if not low <= len(value) <= high:
        raise InvalidArgument(field, value, f"{low}..{high} characters")


def _count(field: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise InvalidArgument(field, count, f"in 1..{limit}")


def _one_of(field: str, value: int, known: Collection[int]) -> None:
    if value not in known:
        raise InvalidArgument(field, value, f"one of {', '.join(str(k) for k in sorted(known))}")


def _distinct(field: str, name: str, values: Iterable[int | str]) -> None:
    seen = set()
    for i, value in enumerate(values):
        if value in seen:
            raise InvalidArgument(f"{field}[{i}].{name}", value, "distinct within the call")
        seen.add(value)
