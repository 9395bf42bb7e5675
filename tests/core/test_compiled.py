from __future__ import annotations

import math

from services.core.compiled import compiled


def test_a_function_without_a_place_for_its_machine_code_is_compiled_all_the_same() -> None:
    made: dict[str, object] = {}
    exec(compile("def half(x):\n    return x / 2.0", "<made>", "exec"), made)
    half = compiled(made["half"])  # type: ignore[type-var]
    assert half(3.0) == 1.5  # type: ignore[operator]


def test_a_division_by_zero_is_infinite_as_in_numpy() -> None:
    def ratio(x: float, y: float) -> float:
        return x / y

    assert compiled(ratio)(1.0, 0.0) == math.inf
