"""`frugalads simulate`: refresh policies replayed on request logs."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.runtime.errors import UserError

if TYPE_CHECKING:
    from loadtest.simulator.comparison import Row
    from services.runtime.bundles import Bundle

WARMUP = 0.25
MAX_WARMUP = 0.99
MAX_ENTRIES = 100_000_000
MAX_SEEDS = 100


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "simulate",
        help="replay request logs under refresh policies",
        description="Replays request logs against an LRU cache of scored ad lists under refresh policies, and"
        " prints what each saves, loses and earns, beside the papers' tables.",
    )
    parser.add_argument(
        "logs",
        type=Path,
        nargs="+",
        metavar="LOG",
        help="a folder of frugalads log generate or import; several of one stream, generated with other"
        " seeds, give intervals over demand, lists and users",
    )
    parser.add_argument(
        "--policies",
        default="all",
        metavar="A,B",
        help="names; all (the default) stands for the published ones and the bounds, learned for those that"
        " train a model on the warm-up first: let that be a day or more",
    )
    parser.add_argument(
        "--entries",
        type=int,
        metavar="N",
        help="lists that the cache holds; default 15.5 %% of a log's distinct phrases",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="K",
        help="replay each log with K draws of its users' clicks, the first being its own (default 1)",
    )
    parser.add_argument(
        "--warmup",
        type=float,
        default=WARMUP,
        metavar="SHARE",
        help="of each log, not counted (default 0.25)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write header and rows as one document")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replays, prints the tables and writes the files; raises UserError."""
    from loadtest.progress import progress
    from loadtest.report import run_header
    from loadtest.request_log.storage import open_log
    from loadtest.simulator.comparison import chosen, steps
    from loadtest.simulator.report import render

    policies = chosen(args.policies)
    _check(args)
    logs = [_described(path, open_log(path)) for path in args.logs]
    if len({(log["stream"], log["seed"]) for log in logs}) < len(logs):
        raise UserError("LOG: two of the logs have the same stream and seed")
    with progress("replaying", len(logs) * steps(policies, args.seeds)) as show:
        done = itertools.count(1)
        rows = [row for log in logs for row in _rows(args, log, policies, lambda: show(next(done)))]
    options = {"logs": logs, "policies": policies, "entries": args.entries, "seeds": args.seeds}
    header = run_header(options | {"warmup": args.warmup}, logs[0]["seed"])
    _write(args, rows, header)
    print(render(rows))
    for option in ("json", "html"):
        if (file := getattr(args, option)) is not None:
            print(f"{option}: {file}")
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.entries is not None and not 1 <= args.entries <= MAX_ENTRIES:
        raise UserError(f"--entries: {args.entries} is outside 1..{MAX_ENTRIES}")
    if not 1 <= args.seeds <= MAX_SEEDS:
        raise UserError(f"--seeds: {args.seeds} is outside 1..{MAX_SEEDS}")
    if not 0 <= args.warmup <= MAX_WARMUP:
        raise UserError(f"--warmup: {args.warmup} is outside 0..{MAX_WARMUP}")
    for option in ("json", "html"):
        file = getattr(args, option)
        if file is not None and file.is_dir():
            raise UserError(f"--{option}: {file} is a folder")


def _described(path: Path, bundle: Bundle) -> dict[str, Any]:
    """What the header says of a log: an imported one is a stream of its own."""
    stream, seed = bundle.meta.get("stream", path.resolve().name), bundle.meta.get("seed", 0)
    return {"folder": str(path), "fingerprint": bundle.fingerprint, "stream": stream, "seed": seed}


def _rows(
    args: argparse.Namespace,
    described: Mapping[str, Any],
    policies: Sequence[str],
    on_step: Callable[[], None],
) -> list[Row]:
    """The rows of one log."""
    from loadtest.request_log.storage import read_log
    from loadtest.simulator.comparison import NamedLog, compare, default_entries

    log = read_log(Path(described["folder"]))
    entries = args.entries or default_entries(log)
    first = int(args.warmup * len(log.phrase))
    named = NamedLog(log, described["stream"], described["seed"])
    return list(compare(named, policies, entries, args.seeds, first, on_step))


def _write(args: argparse.Namespace, rows: Sequence[Row], header: Mapping[str, object]) -> None:
    from loadtest.files import written_whole

    if args.json is not None:
        with written_whole(args.json) as stream:
            json.dump({"header": header, "rows": rows}, stream, indent=1, allow_nan=False)
    if args.html is not None:
        from loadtest.simulator.page import page

        with written_whole(args.html) as stream:
            stream.write(page(rows, header))
