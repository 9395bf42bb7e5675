"""Faults of an imported file, collected so that a user mends many at once."""

from __future__ import annotations

import json
from dataclasses import dataclass

from services.runtime.errors import UserError, shown

MAX_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with one row; `field` is empty where the row as a whole is wrong."""

    row: int
    field: str
    problem: str

    def __str__(self) -> str:
        where = f"row {self.row}, field {self.field}" if self.field else f"row {self.row}"
        return f"{where}: {self.problem}"


def shown_json(value: object) -> str:
    """A value as an error shows it, with the words of JSON for what Python calls None, True and False."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return shown(value)


class FieldError(Exception):
    """A value that its column does not admit; the text says why."""


class Faults:
    """Up to 20 faults of one file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Keeps a fault; raises UserError with all of them at the 20th."""
        self._faults.append(fault)
        if len(self._faults) >= MAX_FAULTS:
            self._fail("the first 20 faults, reading stopped there")

    def __len__(self) -> int:
        return len(self._faults)

    def check(self) -> None:
        """Raises UserError listing the faults, if there are any."""
        if self._faults:
            self._fail("1 fault" if len(self._faults) == 1 else f"{len(self._faults)} faults")

    def _fail(self, title: str) -> None:
        lines = "\n".join(f"  {fault}" for fault in self._faults)
        raise UserError(f"{self._name}: nothing imported, {title}:\n{lines}")
