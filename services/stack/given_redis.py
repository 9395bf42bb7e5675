"""Checks of the Redis servers that a user gives for the two roles, before anything is started on them.

The state holds money, so a server that may drop or evict what it acknowledged is refused. The cache must be
another server: its evictions, by design, would reach the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from services.runtime.errors import UserError

STATE_SETTINGS = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_ANSWER_S = 2.0


def check_redis_urls(cache_url: str | None, state_url: str | None, warn: Callable[[str], None]) -> None:
    """Raises UserError, naming the option, when a given server cannot play its role.

    `warn` is called with a line where a server does not let itself be checked. No message shows a URL: it may
    carry a password.
    """
    with contextlib.ExitStack() as stack:
        clients = {
            option: stack.enter_context(_connected(option, url))
            for option, url in (("--cache-url", cache_url), ("--state-url", state_url))
            if url is not None
        }
        if "--state-url" in clients:
            _check_settings(clients["--state-url"], warn)
        runs = [run for run in map(_run_id, clients.values()) if run is not None]
        if len(runs) == 2 and runs[0] == runs[1]:
            raise UserError("--state-url: the same server as --cache-url; the roles need two servers")


def _connected(option: str, url: str) -> Redis:
    try:
        client = Redis.from_url(
            url,
            socket_timeout=_ANSWER_S,
            socket_connect_timeout=_ANSWER_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        client.ping()
    except (ValueError, TypeError) as error:
        raise UserError(f"{option}: not the URL of a Redis, such as redis://127.0.0.1:6379/0") from error
    except RedisError as error:
        raise UserError(f"{option}: no answer to PING: {error}") from error
    return client


def _check_settings(client: Redis, warn: Callable[[str], None]) -> None:
    wanted = ", ".join(f"{name} {value}" for name, value in STATE_SETTINGS.items())
    try:
        found = client.config_get(*STATE_SETTINGS)
    except ResponseError:
        warn(f"--state-url: this server refuses CONFIG GET; make sure that it has {wanted}")
        return
    except RedisError as error:
        raise UserError(f"--state-url: no answer to CONFIG GET: {error}") from error
    wrong = [
        f"{name} is {found.get(name, 'unknown')}, set it to {value}"
        for name, value in STATE_SETTINGS.items()
        if found.get(name) != value
    ]
    if wrong:
        raise UserError(f"--state-url: this server could lose what it has acknowledged: {'; '.join(wrong)}")


def _run_id(client: Redis) -> str | None:
    with contextlib.suppress(RedisError):
        return str(client.info("server")["run_id"])
    return None
