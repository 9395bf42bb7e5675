"""Sends the catalogue's ads and budgets to the scoring service.

Scoring owns the live state and keeps it over restarts, with the bids and pauses that users changed since. So
a catalogue is sent once: `catalogue.json` beside the state remembers which, with its ad ids, and it is sent
again only when the catalogue changed or scoring knows no ad at all. A changed catalogue also deletes the ads
that only the former one had. The file is written after the last batch, so a load that broke off is repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from frugalads.client import AsyncClient, Options
from frugalads.scoring.v1 import scoring_pb2
from services.catalogue.bundle import KIND, MAX_BYTES, read_catalogue
from services.catalogue.schema import Ad, daily_budgets
from services.runtime.bundles import open_bundle
from services.runtime.errors import UserError

MARK = "catalogue.json"
_BATCH = 500
_CALL_S = 30.0
_SHOWN_S = 10.0

_GENDERS = {"female": scoring_pb2.GENDER_FEMALE, "male": scoring_pb2.GENDER_MALE}
_AGE_BANDS = {
    "13-17": scoring_pb2.AGE_BAND_13_17,
    "18-24": scoring_pb2.AGE_BAND_18_24,
    "25-34": scoring_pb2.AGE_BAND_25_34,
    "35-49": scoring_pb2.AGE_BAND_35_49,
    "50-64": scoring_pb2.AGE_BAND_50_64,
    "65+": scoring_pb2.AGE_BAND_65_PLUS,
}
_DEVICES = {
    "desktop": scoring_pb2.DEVICE_DESKTOP,
    "mobile": scoring_pb2.DEVICE_MOBILE,
    "tablet": scoring_pb2.DEVICE_TABLET,
}


@dataclass(frozen=True)
class _Mark:
    """Which catalogue a state holds. The state is named by a hash: its URL may carry a password."""

    fingerprint: str
    state: str
    ad_ids: list[int]


async def send_catalogue(
    target: str,
    catalogue: Path,
    state_folder: Path,
    state_url: str,
    on_progress: Callable[[int, int], None],
) -> int:
    """Makes scoring at `target` know the ads of a catalogue bundle; returns how many it sent, 0 if known.

    Returns when scoring shows them. `on_progress` receives changes sent and changes in all. Raises UserError
    and BundleError.
    """
    fingerprint = open_bundle(catalogue, KIND, max_bytes=MAX_BYTES).fingerprint
    mark_file, state = state_folder / MARK, hashlib.sha256(state_url.encode()).hexdigest()
    mark = _read_mark(mark_file)
    if mark is not None and mark.state != state:
        mark = None
    async with AsyncClient(target, Options(timeout_s=_CALL_S)) as client:
        info = await client.info()
        if mark is not None and mark.fingerprint == fingerprint and info.ads > 0:
            return 0
        ads = await asyncio.to_thread(read_catalogue, catalogue)
        gone = sorted(set(mark.ad_ids if mark else ()) - {ad.ad_id for ad in ads})
        total = len(ads) + len(daily_budgets(ads)) + len(gone)
        sent = 0
        for request in _requests(
            ads, gone, min(_BATCH, info.limits.max_updates), info.limits.max_message_bytes
        ):
            await client.update_ads(
                ads=request.ads, advertisers=request.advertisers, delete_ad_ids=request.delete_ad_ids
            )
            sent += len(request.ads) + len(request.advertisers) + len(request.delete_ad_ids)
            on_progress(sent, total)
        await _until_shown(client, len(ads))
    ids = [ad.ad_id for ad in ads]
    _write_mark(mark_file, _Mark(fingerprint, state, ids))
    return len(ads)


def to_message(ad: Ad) -> scoring_pb2.Ad:
    """An ad of the catalogue as scoring takes it."""
    return scoring_pb2.Ad(
        ad_id=ad.ad_id,
        title=ad.title,
        description=ad.description,
        advertiser=ad.advertiser,
        bid_usd=ad.bid_usd,
        targeting=scoring_pb2.Targeting(
            locations=ad.locations,
            genders=[_GENDERS[name] for name in ad.genders],
            age_bands=[_AGE_BANDS[name] for name in ad.age_bands],
            devices=[_DEVICES[name] for name in ad.devices],
        ),
    )


def _requests(
    ads: Sequence[Ad], gone: Sequence[int], most: int, max_message_bytes: int
) -> Iterator[scoring_pb2.UpdateAdsRequest]:
    """The changes in requests of at most `most` changes and half of `max_message_bytes`."""
    budgets = list(daily_budgets(ads).items())
    for start in range(0, len(budgets), most):
        yield scoring_pb2.UpdateAdsRequest(
            advertisers=[
                scoring_pb2.Advertiser(advertiser=name, daily_budget_usd=budget)
                for name, budget in budgets[start : start + most]
            ]
        )
    request, size_bytes = scoring_pb2.UpdateAdsRequest(), 0
    for ad in ads:
        message = to_message(ad)
        size = message.ByteSize()
        if request.ads and (len(request.ads) >= most or size_bytes + size > max_message_bytes // 2):
            yield request
            request, size_bytes = scoring_pb2.UpdateAdsRequest(), 0
        request.ads.append(message)
        size_bytes += size
    if request.ads:
        yield request
    for start in range(0, len(gone), most):
        yield scoring_pb2.UpdateAdsRequest(delete_ad_ids=gone[start : start + most])


async def _until_shown(client: AsyncClient, count: int) -> None:
    try:
        async with asyncio.timeout(_SHOWN_S):
            while (await client.info()).ads < count:  # noqa: ASYNC110 - the event is in another process
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise UserError(f"scoring took {count} ads but does not show them after {_SHOWN_S:g} s") from error


def _read_mark(file: Path) -> _Mark | None:
    """The mark, or None when there is none that can be read: the catalogue is then sent again."""
    try:
        content = json.loads(file.read_bytes())
        return _Mark(str(content["fingerprint"]), str(content["state"]), [int(i) for i in content["ad_ids"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_mark(file: Path, mark: _Mark) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(vars(mark)), encoding="utf-8")
    temporary.replace(file)
