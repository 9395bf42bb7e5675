"""`frugalads catalogue`: import of a user's catalogue, sending it to scoring, and the sample in the box."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from services.commands.arguments import seed

if TYPE_CHECKING:
    from services.catalogue.importing import ImportSummary

DEFAULT_OUT = Path(".frugalads/catalogue")
DEFAULT_MEMORY = Path(".frugalads/state")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads catalogue import`, `send` and `sample`."""
    parser = subparsers.add_parser("catalogue", help="import an ad catalogue, send it, or write a sample")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    take = actions.add_parser("import", help="check a JSONL, CSV or Parquet file and make it the catalogue")
    take.add_argument("file", type=Path, metavar="FILE", help=".jsonl, .csv (both also .gz) or .parquet")
    take.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="default %(default)s")
    take.set_defaults(run=run_import)

    send = actions.add_parser(
        "send", help="make a running scoring service know the catalogue; does nothing when it does"
    )
    send.add_argument("--target", default="127.0.0.1:7400", metavar="HOST:PORT", help="default %(default)s")
    send.add_argument(
        "--catalogue", type=Path, default=DEFAULT_OUT, metavar="DIR", help="default %(default)s"
    )
    send.add_argument(
        "--memory",
        type=Path,
        default=DEFAULT_MEMORY,
        metavar="DIR",
        help="remembers what was sent, default %(default)s",
    )
    send.set_defaults(run=run_send)

    sample = actions.add_parser(
        "sample", help="write a sample catalogue as JSONL, the same for the same seed"
    )
    sample.add_argument("--ads", type=int, default=6000, metavar="N", help="default %(default)s")
    sample.add_argument("--seed", type=seed, default=1, metavar="S", help="default %(default)s")
    sample.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    sample.set_defaults(run=run_sample)


def run_import(args: argparse.Namespace) -> int:
    """Imports a file with a progress bar, and prints what came of it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from services.catalogue.importing import import_catalogue

    columns = (TextColumn("importing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("import")
        summary = import_catalogue(
            args.file, args.out, lambda done, total: bar.update(task, completed=done, total=total)
        )
    print(describe(summary))
    print(f"catalogue: {args.out}")
    print("next: frugalads index build" + ("" if args.out == DEFAULT_OUT else f" --catalogue {args.out}"))
    return 0


def describe(summary: ImportSummary) -> str:
    """The summary of an import, a line for each thing its user should know."""
    from services.catalogue.bids import DEFAULT_RESERVE_USD

    lines = [
        f"{_counted(summary.ads, 'ad')} of {_counted(summary.advertisers, 'advertiser')} "
        f"({summary.advertisers_with_budget:,} with a daily budget) "
        f"in {_counted(summary.categories, 'category', 'categories')}"
    ]
    if summary.modelled_bids:
        share = summary.modelled_bids / summary.ads
        lines.append(
            f"WARNING: {_counted(summary.modelled_bids, 'bid')} ({share:.0%}) "
            f"{'is' if summary.modelled_bids == 1 else 'are'} MODELLED, not yours: "
            "those rows have no bid_usd. Revenue figures rest on the model."
        )
    if summary.bids_below_reserve:
        lines.append(
            f"{_counted(summary.bids_below_reserve, 'bid is', 'bids are')} below ${DEFAULT_RESERVE_USD:.2f}, "
            "the default reserve of scoring, and will not be shown"
        )
    if summary.cut_titles:
        lines.append(f"{_counted(summary.cut_titles, 'title was', 'titles were')} cut to 300 characters")
    if summary.cut_descriptions:
        cut = _counted(summary.cut_descriptions, "description was", "descriptions were")
        lines.append(f"{cut} cut to 2000 characters")
    if summary.ignored_columns:
        names = summary.ignored_columns
        more = f" and {len(names) - 12:,} more" if len(names) > 12 else ""
        lines.append(f"ignored columns: {', '.join(names[:12])}{more}")
    return "\n".join(lines)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def run_send(args: argparse.Namespace) -> int:
    """Sends the catalogue where it is new or changed; raises UserError when scoring does not take it."""
    import asyncio

    from frugalads.client import FrugalAdsError
    from services.commands.query import explained
    from services.runtime.errors import UserError
    from services.stack.ads import send_catalogue

    try:
        sent = asyncio.run(
            send_catalogue(args.target, args.catalogue, args.memory, args.target, lambda done, total: None)
        )
    except FrugalAdsError as error:
        raise UserError(explained(error, args.target)) from error
    print(f"{_counted(sent, 'ad')} sent to {args.target}" if sent else f"{args.target} knows this catalogue")
    return 0


def run_sample(args: argparse.Namespace) -> int:
    """Writes the sample catalogue."""
    from loadtest.sample import write_sample

    write_sample(args.out, args.ads, args.seed)
    print(f"{_counted(args.ads, 'ad')} (seed {args.seed}): {args.out}")
    return 0
