"""`frugalads evict`: the eviction sidecar for a Redis of your own."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "evict",
        help="keep the eviction order of a Redis",
        description="Runs the eviction sidecar on a Redis 7.0 or newer, or Valkey, that has maxmemory set."
        " Clients report to its Report stream; entries that nobody reports are found, and worth what"
        " their class or a field of them says. Other options: FRUGALADS_EVICTION_<KEY> or --config.",
    )
    parser.add_argument(
        "--redis", metavar="URL", help="the cache to manage (default redis://127.0.0.1:6379/0)"
    )
    parser.add_argument("--prefix", help="manage the keys under this prefix (default frugalads:list:)")
    parser.add_argument("--order", help="ours (default), gdsf, gdwheel or greedydual")
    parser.add_argument(
        "--classes",
        metavar="LIST",
        help="keys by what follows the prefix that are never evicted or worth at least so many microseconds,"
        " such as 'vip:=pin, map:=50000'",
    )
    parser.add_argument(
        "--cost-field", metavar="NAME", help="field of hashes that holds their cost in microseconds"
    )
    parser.add_argument("--port", type=int, help="port of the gRPC service (default: a free one, logged)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with a table [eviction]")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT; raises UserError when it cannot start."""
    from services.eviction.config import EvictionConfig
    from services.eviction.server import build
    from services.runtime.config import load
    from services.runtime.server import serve

    environ = dict(os.environ)
    given = {
        "REDIS_URL": args.redis,
        "KEY_PREFIX": args.prefix,
        "ORDER": args.order,
        "KEY_CLASSES": args.classes,
        "COST_FIELD": args.cost_field,
        "PORT": args.port,
    }
    for key, value in given.items():
        if value is not None:
            environ[f"FRUGALADS_EVICTION_{key}"] = str(value)
    return serve("eviction", load(EvictionConfig, "eviction", environ, args.config), build)
