import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.bundles import MANIFEST
from services.runtime.errors import UserError
from services.stack.local import LocalStack
from services.stack.ports import HOST, Ports, free_base
from services.stack.work_folder import BUNDLES


@pytest.fixture
def stack(tmp_path: Path) -> LocalStack:
    """A stack whose bundles are present, as far as their manifests."""
    for name in BUNDLES:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / MANIFEST).write_text("{}")
    return LocalStack(tmp_path, Ports(free_base(22_000)))


def test_embedded_servers_start_before_those_that_need_them(stack: LocalStack) -> None:
    children = {child.name: child for child in stack.children()}
    assert list(children) == ["cache", "state", "retrieval", "inference", "eviction", "scoring"]
    assert children["scoring"].after == ("cache", "state")
    assert children["eviction"].after == ("cache",)
    assert children["retrieval"].after == children["inference"].after == ()
    base = stack.ports.base
    env = children["scoring"].env
    assert env["FRUGALADS_SCORING_PORT"] == str(base)
    assert env["FRUGALADS_SCORING_CACHE_URL"] == f"redis://{HOST}:{base + 30}/0"
    assert env["FRUGALADS_SCORING_STATE_URL"] == f"redis://{HOST}:{base + 31}/0"
    assert env["FRUGALADS_SCORING_RETRIEVAL_TARGET"] == f"{HOST}:{base + 1}"
    assert env["FRUGALADS_SCORING_INFERENCE_TARGET"] == f"{HOST}:{base + 2}"
    assert env["FRUGALADS_SCORING_EVICTION_TARGET"] == f"{HOST}:{base + 3}"
    assert children["eviction"].env["FRUGALADS_EVICTION_REDIS_URL"] == f"redis://{HOST}:{base + 30}/0"
    assert children["retrieval"].env["FRUGALADS_RETRIEVAL_ADMIN_PORT"] == str(base + 11)


def test_every_key_is_one_that_the_service_knows(stack: LocalStack) -> None:
    from services.eviction.config import EvictionConfig
    from services.inference.config import InferenceConfig
    from services.retrieval.config import RetrievalConfig
    from services.runtime.config import ServerConfig, load
    from services.scoring.config import ScoringConfig

    tables: dict[str, type[ServerConfig]] = {
        "scoring": ScoringConfig,
        "retrieval": RetrievalConfig,
        "inference": InferenceConfig,
        "eviction": EvictionConfig,
    }
    for child in stack.children():
        if child.name in tables:
            config = load(tables[child.name], child.name, child.env, None)
            assert config.port == stack.ports.of(child.name)


def test_given_urls_replace_the_embedded_servers(stack: LocalStack) -> None:
    outside = LocalStack(stack.data, stack.ports, 64, "redis://c:1/0", "redis://s:2/0")
    children = {child.name: child for child in outside.children()}
    assert list(children) == ["retrieval", "inference", "eviction", "scoring"]
    assert children["scoring"].after == children["eviction"].after == ()
    assert children["scoring"].env["FRUGALADS_SCORING_STATE_URL"] == "redis://s:2/0"
    assert children["eviction"].env["FRUGALADS_EVICTION_REDIS_URL"] == "redis://c:1/0"


@pytest.mark.parametrize("missing", BUNDLES)
def test_a_missing_bundle_is_named_with_its_command(stack: LocalStack, missing: str) -> None:
    (stack.data / missing / MANIFEST).unlink()
    with pytest.raises(
        UserError, match=rf"{missing} is missing; make it with: frugalads .* --out .*{missing}"
    ):
        stack.children()


def test_an_index_of_another_catalogue_is_refused(stack: LocalStack) -> None:
    """The new ads had no vectors: every answer was empty, and the stack looked healthy."""

    def manifest(name: str, content: dict[str, object]) -> None:
        (stack.data / name / MANIFEST).write_text(json.dumps(content))

    manifest("catalogue", {"fingerprint": "new"})
    for meta in ({"catalogue": "old"}, {}):
        manifest("index", {"meta": meta})
        with pytest.raises(
            UserError, match=r"index was built from another catalogue; run: frugalads index build .* --out "
        ):
            stack.children()
    manifest("index", {"meta": {"catalogue": "new"}})
    assert stack.children()


def test_an_occupied_port_is_found_before_anything_is_written(stack: LocalStack) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind((HOST, stack.ports.of("inference admin")))
        server.listen()
        with pytest.raises(UserError, match=rf"{stack.ports.of('inference admin')} \(inference admin\)"):
            stack.children()
    assert not stack.run_folder.exists()


def test_the_secret_lasts_and_is_private(stack: LocalStack) -> None:
    def secret() -> str:
        return next(c for c in stack.children() if c.name == "scoring").env["FRUGALADS_SCORING_CLICK_SECRET"]

    first = secret()
    assert len(first) == 64
    assert secret() == first
    file = stack.data / "secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(UserError, match="others may read this secret; run: chmod 600"):
        stack.children()
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(UserError, match="shorter than 16 characters"):
        stack.children()


def test_two_stacks_cannot_share_a_work_folder(stack: LocalStack) -> None:
    hold = (
        "import sys; from pathlib import Path; from services.stack.local import LocalStack\n"
        "with LocalStack(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(stack.data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=rf"already runs from .* \(process {other.pid}\)"), stack.locked():
        pass
    other.communicate("", timeout=20)
    with stack.locked():
        pass


@pytest.mark.parametrize("cache_mb", [0, 7, 2 << 20])
def test_a_cache_size_out_of_bounds_is_refused(tmp_path: Path, cache_mb: int) -> None:
    with pytest.raises(UserError, match=rf"--cache-mb: {cache_mb} is not in 8\.\.1048576"):
        LocalStack(tmp_path, cache_mb=cache_mb)
