"""Web queries with nothing to buy, made up: how-tos, places, facts, words, weather.

They stand for the part of a web search stream that no ad fits. The head is short and navigational; the tail
is filled from templates (`data/sample/web_queries.toml`). Popular ones come first; a seed varies the tail.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterator
from pathlib import Path

from loadtest.sample_draws import Draws

FILE = Path(__file__).parent / "data" / "sample" / "web_queries.toml"


def web_queries(seed: int) -> Iterator[str]:
    """Made-up web queries without end, popular ones first; later ones may repeat earlier ones."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    yield from document["head"].split("; ")
    lists = {key: text.split("; ") for key, text in document["words"].items()}
    templates = [(text, _fields(text)) for text in document["templates"]]
    draws = Draws(seed)
    while True:
        template, fields = draws.pick(templates)
        yield template.format(**{field: _word(draws, lists, field) for field in fields})


def _fields(template: str) -> list[str]:
    return [field for _, field, _, _ in string.Formatter().parse(template) if field]


def _word(draws: Draws, lists: dict[str, list[str]], field: str) -> str:
    match field:
        case "year":
            return str(1820 + draws.below(205))
        case "number":
            return str(2 + draws.below(9998))
        case "digits":
            return str(4 + draws.below(9))
        case _:
            return draws.pick(lists[field])
