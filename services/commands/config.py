"""`frugalads config`: the annotated reference of every option."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads config`."""
    parser = subparsers.add_parser(
        "config",
        help="print every option with meaning, bounds and default",
        description="Prints the annotated reference of every option of every service, as a TOML file.",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the reference, or writes it; raises UserError when the file cannot be written."""
    from services.runtime.errors import UserError

    text = reference()
    if args.out is None:
        sys.stdout.write(text)
        return 0
    try:
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{args.out}: {error.strerror}") from error
    print(f"every option: {args.out}")
    return 0


def reference() -> str:
    """The reference of all four services."""
    from services.eviction.config import EvictionConfig
    from services.inference.config import InferenceConfig
    from services.retrieval.config import RetrievalConfig
    from services.runtime.reference import render
    from services.scoring.config import ScoringConfig

    return render(
        {
            "scoring": ScoringConfig,
            "retrieval": RetrievalConfig,
            "inference": InferenceConfig,
            "eviction": EvictionConfig,
        }
    )
