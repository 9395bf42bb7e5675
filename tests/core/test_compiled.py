from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.core.compiled import compiled

ROOT = Path(__file__).parents[2]
CALLEE = """
from services.core.compiled import compiled
FACTOR = {factor}
@compiled
def scaled(x):
    return {scale} * x
"""
CALLERS = [
    "from callee import FACTOR, scaled\n@compiled\ndef call(x):\n    return scaled(x) + FACTOR\n",
    "import callee\n@compiled\ndef call(x):\n    return callee.scaled(x) + callee.FACTOR\n",
]


def called(folder: Path) -> tuple[float, bool]:
    """What the caller gives for 1, in a process of its own, and whether its machine code was kept before."""
    program = "import caller; print(caller.call(1), sum(caller.call.stats.cache_hits.values()))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    result, hits = done.stdout.split()
    return float(result), int(hits) > 0


@pytest.mark.parametrize("caller", CALLERS, ids=["names", "attributes"])
def test_kept_machine_code_follows_the_kernels_and_constants_it_uses(tmp_path: Path, caller: str) -> None:
    (tmp_path / "caller.py").write_text(f"from services.core.compiled import compiled\n{caller}")
    made = []
    for scale, factor in ((2, 10), (2, 10), (3, 10), (3, 20)):
        (tmp_path / "callee.py").write_text(CALLEE.format(scale=scale, factor=factor))
        made.append(called(tmp_path))
    assert made == [(12, False), (12, True), (13, False), (23, False)]


def test_a_function_without_a_place_for_its_machine_code_is_compiled_all_the_same() -> None:
    made: dict[str, object] = {}
    exec(compile("def half(x):\n    return x / 2.0", "<made>", "exec"), made)
    half = compiled(made["half"])  # type: ignore[type-var]
    assert half(3.0) == 1.5  # type: ignore[operator]


def test_a_division_by_zero_is_infinite_as_in_numpy() -> None:
    def ratio(x: float, y: float) -> float:
        return x / y

    assert compiled(ratio)(1.0, 0.0) == math.inf
