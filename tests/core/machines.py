"""State machines as test cases."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine


def case(machine: type[RuleBasedStateMachine], *, examples: int = 15, **attributes: str) -> type[TestCase]:
    """The test case of a machine with these class attributes: examples of 30 steps."""
    named = type("-".join(attributes.values()), (machine,), attributes)
    made: type[TestCase] = named.TestCase  # type: ignore[attr-defined]
    made.settings = settings(max_examples=examples, stateful_step_count=30, deadline=None)  # type: ignore[attr-defined]
    return made
