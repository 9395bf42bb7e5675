"""`frugalads query`: the ads for one query, for people."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frugalads.scoring.v1.scoring_pb2 import RankAdsResponse

GENDERS = ("female", "male")
AGE_BANDS = ("13-17", "18-24", "25-34", "35-49", "50-64", "65+")
DEVICES = ("desktop", "mobile", "tablet")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads query`."""
    parser = subparsers.add_parser("query", help="ask a running stack for ads")
    parser.add_argument("query", metavar="TEXT", help='what a user typed, such as "laser printer toner"')
    parser.add_argument("--target", default="127.0.0.1:7400", metavar="HOST:PORT", help="scoring service")
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="ad positions to fill")
    parser.add_argument("--location", default="", metavar="CODE", help="region of the user, such as US-CA")
    parser.add_argument("--gender", choices=GENDERS, help="gender of the user")
    parser.add_argument("--age-band", choices=AGE_BANDS, help="age of the user, years")
    parser.add_argument("--device", choices=DEVICES, help="device of the user")
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Asks once and prints the answer; raises UserError when there is none."""
    import time

    from google.protobuf.json_format import MessageToJson

    from frugalads.client import Client, FrugalAdsError
    from frugalads.scoring.v1 import scoring_pb2
    from services.runtime.errors import UserError

    user = scoring_pb2.User(location=args.location)
    if args.gender:
        user.gender = scoring_pb2.Gender.Value(f"GENDER_{args.gender.upper()}")
    if args.age_band:
        band = args.age_band.replace("-", "_").replace("65+", "65_PLUS")
        user.age_band = scoring_pb2.AgeBand.Value(f"AGE_BAND_{band}")
    if args.device:
        user.device = scoring_pb2.Device.Value(f"DEVICE_{args.device.upper()}")
    try:
        with Client(args.target) as client:
            client.info()  # connects, so that the round trip below is that of the query alone
            started_s = time.perf_counter()
            answer = client.rank_ads(args.query, user=user, slots=args.slots)
            round_trip_ms = (time.perf_counter() - started_s) * 1e3
    except FrugalAdsError as error:
        raise UserError(explained(error, args.target)) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    if args.json:
        print(
            MessageToJson(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        )
    else:
        print(render(args.query, answer))
        print(f"round trip {round_trip_ms:.1f} ms")
    return 0


def explained(error: Exception, target: str) -> str:
    """What a failed call means for the person who typed the command."""
    from frugalads.client import FrugalAdsError, UnavailableError

    assert isinstance(error, FrugalAdsError)
    if isinstance(error, UnavailableError) and not error.reason:
        return (
            f"nothing answers at {target}: start the services with `frugalads up`, or give another --target"
        )
    return f"{target}: {error}"


def render(query: str, answer: RankAdsResponse) -> str:
    """An answer as a table of its ads, and the lines that tell where it came from."""
    from frugalads.scoring.v1 import scoring_pb2
    from services.stack.tables import shortened, text_table

    rows = [
        (
            str(position),
            shortened(ad.title, 56),
            shortened(ad.advertiser, 24),
            f"{ad.click_probability:.4f}",
            f"{ad.bid_usd:.2f}",
            f"{ad.price_usd:.2f}",
        )
        for position, ad in enumerate(answer.ads, start=1)
    ]
    columns = ("#", "title", "advertiser", "p(click)", "bid $", "price $")
    state = scoring_pb2.CacheState.Name(answer.cache_state).removeprefix("CACHE_STATE_")
    degraded = [
        scoring_pb2.DegradedReason.Name(reason).removeprefix("DEGRADED_REASON_")
        for reason in answer.degraded_reasons
    ]
    times = answer.timings
    phases = {
        "cache": times.cache_us,
        "embed": times.embed_us,
        "retrieve": times.retrieve_us,
        "score": times.score_us,
        "auction": times.auction_us,
        "total": times.total_us,
    }
    versions = answer.versions
    loss = f", predicted loss ${answer.predicted_loss_usd:.4f}" if answer.predicted_loss_usd else ""
    return "\n".join(
        [
            query,
            text_table(columns, rows, left=(1, 2)) if rows else "no ad fits this query",
            "",
            f"cache     {state}, list {answer.list_age_ms / 1000:.1f} s old{loss}",
            f"degraded  {', '.join(degraded) or 'no'}",
            f"versions  index {versions.index[:12]}, encoder {versions.encoder[:12]}, "
            f"scorer {versions.scorer[:12]}",
            "time, ms  " + "  ".join(f"{name} {us / 1000:.1f}" for name, us in phases.items()),
            f"request   {answer.request_id}",
        ]
    )
