"""Columns of a user's file: which names are known, and how a row becomes an ad."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from services.catalogue.bids import DEFAULT_RESERVE_USD, modelled_bid_usd
from services.catalogue.faults import FieldError, shown_json
from services.catalogue.schema import (
    AGE_BANDS,
    DEVICES,
    GENDERS,
    MAX_AD_ID,
    MAX_ADVERTISER_CHARS,
    MAX_AMOUNT_USD,
    MAX_BID_USD,
    MAX_CATEGORY_CHARS,
    MAX_DESCRIPTION_CHARS,
    MAX_LOCATION_CHARS,
    MAX_LOCATIONS,
    MAX_TITLE_CHARS,
    MIN_AMOUNT_USD,
    Ad,
)

Row = Mapping[str, object]
FieldFault = tuple[str, str]
T = TypeVar("T")
Parser = Callable[[object, str], T]

ALIASES: dict[str, tuple[str, ...]] = {
    "ad_id": ("ad_id", "id"),
    "title": ("title",),
    "description": ("description", "short_description"),
    "advertiser": ("advertiser", "supplier", "merchant"),
    "category": ("category", "product_type", "attrs.product_type", "attrs.type"),
    "bid_usd": ("bid_usd",),
    "product_price_usd": ("product_price_usd", "price_cents"),
    "locations": ("locations",),
    "genders": ("genders",),
    "age_bands": ("age_bands",),
    "devices": ("devices",),
    "daily_budget_usd": ("daily_budget_usd",),
}
REQUIRED = ("ad_id", "title", "advertiser")
# Top-level names that are read; of `attrs` only two members are.
KNOWN = frozenset(name.split(".")[0] for names in ALIASES.values() for name in names) | frozenset(
    name for names in ALIASES.values() for name in names
)

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_INTEGER = re.compile(r"\d{1,19}", re.ASCII)
_SEPARATOR = re.compile(r"[,;\s]")


@dataclass
class Tally:
    """What an import did to rows beyond reading them."""

    modelled_bids: int = 0
    bids_below_reserve: int = 0
    cut_titles: int = 0
    cut_descriptions: int = 0


def _text(value: object, column: str) -> str:
    if not isinstance(value, str):
        raise FieldError(f"{shown_json(value)} is not text")
    control = _CONTROL.search(value)
    if control:
        raise FieldError(f"{shown_json(value)} holds the control character U+{ord(control.group()):04X}")
    return " ".join(value.split())


def _name(limit: int) -> Parser[str]:
    def parse(value: object, column: str) -> str:
        text = _text(value, column)
        if len(text) > limit:
            raise FieldError(f"{shown_json(text)} has {len(text)} characters, the limit is {limit}")
        return text

    return parse


def _ad_id(value: object, column: str) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "; keep SKUs in another column" if isinstance(value, str) else ""
        raise FieldError(f"{shown_json(value)} is not an integer{hint}")
    if not 1 <= value <= MAX_AD_ID:
        raise FieldError(f"{shown_json(value)} is outside 1..{MAX_AD_ID}")
    return value


def _number(value: object) -> float:
    if isinstance(value, str):
        number = float(value) if _NUMBER.fullmatch(value.strip()) else math.nan
    elif isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        number = math.nan
    if math.isnan(number):
        raise FieldError(f"{shown_json(value)} is not a number")
    return number


def _amount(limit: float) -> Parser[float]:
    def parse(value: object, column: str) -> float:
        number = _number(value)
        if not MIN_AMOUNT_USD <= number <= limit:
            raise FieldError(f"{shown_json(value)} is outside {MIN_AMOUNT_USD:f}..{limit:.0f} US dollars")
        return number

    return parse


def _price(value: object, column: str) -> float:
    number = _number(value) / (100 if column == "price_cents" else 1)
    if not 0 <= number <= MAX_AMOUNT_USD:
        raise FieldError(f"{shown_json(value)} is outside 0..{MAX_AMOUNT_USD:.0f} US dollars")
    return number


def _strings(value: object, column: str) -> tuple[str, ...]:
    """A list of text, or text with `|` between the values, as CSV files have it; repeats are dropped."""
    items = value.split("|") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise FieldError(f"{shown_json(value)} is neither a list nor text with | between the values")
    return tuple(dict.fromkeys(text for text in (_text(item, column) for item in items) if text))


def _locations(value: object, column: str) -> tuple[str, ...]:
    locations = _strings(value, column)
    if len(locations) > MAX_LOCATIONS:
        raise FieldError(f"{len(locations)} values, the limit is {MAX_LOCATIONS}")
    for location in locations:
        if _SEPARATOR.search(location):
            raise FieldError(f"{shown_json(location)} is no region code; use | between values, or a list")
        if len(location) > MAX_LOCATION_CHARS:
            raise FieldError(f"{shown_json(location)} has more than {MAX_LOCATION_CHARS} characters")
    return tuple(dict.fromkeys(location.upper() for location in locations))


def _choices(choices: tuple[str, ...]) -> Parser[tuple[str, ...]]:
    def parse(value: object, column: str) -> tuple[str, ...]:
        values = _strings(value, column)
        for item in values:
            if item not in choices:
                raise FieldError(f"{shown_json(item)} is none of {', '.join(choices)}")
        return values

    return parse


_PARSERS: dict[str, Parser[Any]] = {
    "ad_id": _ad_id,
    "title": _text,
    "description": _text,
    "advertiser": _name(MAX_ADVERTISER_CHARS),
    "category": _name(MAX_CATEGORY_CHARS),
    "bid_usd": _amount(MAX_BID_USD),
    "product_price_usd": _price,
    "locations": _locations,
    "genders": _choices(GENDERS),
    "age_bands": _choices(AGE_BANDS),
    "devices": _choices(DEVICES),
    "daily_budget_usd": _amount(MAX_AMOUNT_USD),
}


def _cell(row: Row, column: str) -> object:
    """The value of a column; of `attrs.type` either a column of that name or a member of `attrs`."""
    value = row.get(column)
    if value is None and "." in column:
        outer, _, inner = column.partition(".")
        members = row.get(outer)
        value = members.get(inner) if isinstance(members, dict) else None
    return value


def _fields(row: Row, errors: list[FieldFault]) -> dict[str, Any]:
    """The fields of a row that hold something, parsed; the first alias that holds something counts."""
    fields: dict[str, Any] = {}
    for name, aliases in ALIASES.items():
        for column in aliases:
            value = _cell(row, column)
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
            try:
                fields[name] = _PARSERS[name](value, column)
            except FieldError as error:
                errors.append((column, str(error)))
            break
        else:
            if name in REQUIRED:
                errors.append((" or ".join(aliases), "is missing"))
    return fields


def parse_ad(row: Row, tally: Tally) -> Ad | list[FieldFault]:
    """The ad of a row, or every (column, problem) that keeps the row from being one."""
    errors: list[FieldFault] = []
    fields = _fields(row, errors)
    if errors:
        return errors
    if len(fields["title"]) > MAX_TITLE_CHARS:
        fields["title"] = fields["title"][:MAX_TITLE_CHARS].rstrip()
        tally.cut_titles += 1
    if len(fields.get("description", "")) > MAX_DESCRIPTION_CHARS:
        fields["description"] = fields["description"][:MAX_DESCRIPTION_CHARS].rstrip()
        tally.cut_descriptions += 1
    if "bid_usd" not in fields:
        fields["bid_usd"] = modelled_bid_usd(
            fields["ad_id"], fields.get("category", ""), fields["advertiser"]
        )
        tally.modelled_bids += 1
    tally.bids_below_reserve += fields["bid_usd"] < DEFAULT_RESERVE_USD
    return Ad(**fields)
