"""`frugalads catalogue`: import of a user's catalogue, and the sample that comes in the box."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.catalogue.importing import ImportSummary

DEFAULT_OUT = Path(".frugalads/catalogue")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads catalogue import` and `frugalads catalogue sample`."""
    parser = subparsers.add_parser("catalogue", help="import an ad catalogue, or write a sample one")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    take = actions.add_parser("import", help="check a JSONL, CSV or Parquet file and make it the catalogue")
    take.add_argument("file", type=Path, metavar="FILE", help=".jsonl, .csv (both also .gz) or .parquet")
    take.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="default %(default)s")
    take.set_defaults(run=run_import)

    sample = actions.add_parser(
        "sample", help="write a sample catalogue as JSONL, the same for the same seed"
    )
    sample.add_argument("--ads", type=int, default=6000, metavar="N", help="default %(default)s")
    sample.add_argument("--seed", type=int, default=1, metavar="S", help="default %(default)s")
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
    return 0


def describe(summary: ImportSummary) -> str:
    """The summary of an import, a line for each thing its user should know."""
    lines = [
        f"{summary.ads:,} ads of {summary.advertisers:,} advertisers "
        f"({summary.advertisers_with_budget:,} with a daily budget) in {summary.categories:,} categories"
    ]
    if summary.modelled_bids:
        share = summary.modelled_bids / summary.ads
        lines.append(
            f"WARNING: {summary.modelled_bids:,} bids ({share:.0%}) are MODELLED, not yours: "
            "those rows have no bid_usd. Revenue figures rest on the model."
        )
    if summary.cut_titles:
        lines.append(f"{summary.cut_titles:,} titles were cut to 300 characters")
    if summary.cut_descriptions:
        lines.append(f"{summary.cut_descriptions:,} descriptions were cut to 2000 characters")
    if summary.ignored_columns:
        names = summary.ignored_columns
        more = f" and {len(names) - 12:,} more" if len(names) > 12 else ""
        lines.append(f"ignored columns: {', '.join(names[:12])}{more}")
    return "\n".join(lines)


def run_sample(args: argparse.Namespace) -> int:
    """Writes the sample catalogue."""
    from loadtest.sample import write_sample

    write_sample(args.out, args.ads, args.seed)
    print(f"{args.ads:,} ads (seed {args.seed}): {args.out}")
    return 0
