import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_process import RedisProcess, free_port, running

from services.runtime.errors import UserError
from services.stack.given_redis import check_redis_urls

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with running("valkey", tmp_path_factory.mktemp("durable"), DURABLE) as server:
        yield server


def refusal(cache_url: str | None, state_url: str | None) -> str:
    with pytest.raises(UserError) as caught:
        check_redis_urls(cache_url, state_url, pytest.fail)
    return str(caught.value)


def test_two_fit_servers_pass(durable: RedisProcess, tmp_path: Path) -> None:
    with running("valkey", tmp_path) as cache:
        check_redis_urls(cache.url, durable.url, pytest.fail)
    check_redis_urls(None, None, pytest.fail)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:6379", "http://127.0.0.1/", "redis://h:port/0", "redis://h/0?x=1"]
)
def test_what_is_no_url_is_named_by_its_option(url: str) -> None:
    assert refusal(url, None) == "--cache-url: not the URL of a Redis, such as redis://127.0.0.1:6379/0"
    assert refusal(None, url).startswith("--state-url: not the URL of a Redis")


def test_a_server_that_is_not_there_or_silent_is_named_without_its_password() -> None:
    said = refusal(None, f"redis://user:hunter2@127.0.0.1:{free_port()}/0")
    assert said.startswith("--state-url: no answer to PING: ")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = refusal(f"redis://:hunter2@127.0.0.1:{silent.getsockname()[1]}/0", None)
    assert slow.startswith("--cache-url: no answer to PING: ")
    assert "hunter2" not in said + slow


def test_a_state_that_could_lose_money_is_refused_with_what_to_set(tmp_path: Path) -> None:
    with running("valkey", tmp_path, ("--maxmemory-policy", "allkeys-lru")) as server:
        said = refusal(None, server.url)
    assert "appendonly is no, set it to yes" in said
    assert "appendfsync is everysec, set it to always" in said
    assert "maxmemory-policy is allkeys-lru, set it to noeviction" in said


def test_one_server_cannot_play_both_roles(durable: RedisProcess) -> None:
    other_database = durable.url.removesuffix("/0") + "/1"
    assert "the same server as --cache-url" in refusal(other_database, durable.url)


def test_where_config_is_refused_a_warning_says_what_to_make_sure_of(tmp_path: Path) -> None:
    warnings: list[str] = []
    with running("valkey", tmp_path, (*DURABLE, "--rename-command", "CONFIG", "")) as server:
        check_redis_urls(None, server.url, warnings.append)
    (warning,) = warnings
    assert "refuses CONFIG GET" in warning
    assert "appendonly yes, appendfsync always, maxmemory-policy noeviction" in warning
