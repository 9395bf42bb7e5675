"""The examples of deploy/any-redis.md run as they stand, but for addresses."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from redis_process import RedisProcess
from scripted_server import ScriptedServer

PAGE = Path(__file__).parents[2] / "deploy" / "any-redis.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("example", "printed"),
    list(zip(EXAMPLES, ("b'<h1>home</h1>' b'<h1>home</h1>' 1\n", "100 1\n"), strict=True)),
    ids=["threads", "asyncio"],
)
def test_an_example(valkey_server: RedisProcess, server: ScriptedServer, example: str, printed: str) -> None:
    for written, real in (("redis://127.0.0.1:6379", valkey_server.url), ("127.0.0.1:7403", server.target)):
        assert written in example
        example = example.replace(written, real)
    output, names = io.StringIO(), {"__name__": "page"}
    with contextlib.redirect_stdout(output):
        exec(compile(example, "any-redis.md", "exec"), names)
    if "cache" in names:
        names["cache"].close()  # type: ignore[attr-defined]
    assert output.getvalue() == printed


def test_ten_lines_are_enough() -> None:
    assert len([line for line in EXAMPLES[0].splitlines() if line.strip()]) <= 10
