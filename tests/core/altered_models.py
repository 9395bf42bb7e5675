"""Model files that someone or something altered: damaged at random, and edited with intent.

Each alteration takes the bytes of a sound file and a source of randomness, and returns other bytes. Those of
`AIMED` hit what a careless parser trusts: counts, sizes, child links, numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

Alteration = Callable[[bytes, random.Random], bytes]

HOSTILE_NUMBERS = (
    *(b"-1", b"0", b"-0", b"1", b"2", b"255", b"65536", b"2147483647", b"-2147483648", b"4294967296"),
    *(b"9223372036854775807", b"18446744073709551616", b"9" * 400, b"1e999", b"-1e999", b"1e-999"),
    *(b"nan", b"NaN", b"-nan", b"inf", b"Infinity", b"-inf", b"0x10", b"1_0", b"1.5", b"", b"+", b"\xff"),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
# What is counted or linked, in both text formats and as keys of UBJ objects.
_KEYS = (
    *(b"num_leaves", b"num_cat", b"max_feature_idx", b"tree_sizes", b"num_class", b"num_tree_per_iteration"),
    *(b"left_child", b"right_child", b"split_feature", b"decision_type", b"leaf_value", b"threshold"),
    *(b"left_children", b"right_children", b"split_indices", b"split_conditions", b"default_left"),
    *(b"parents", b"base_weights", b"split_type", b"num_nodes", b"num_feature", b"num_trees", b"tree_info"),
    *(b"iteration_indptr", b"size_leaf_vector", b"num_deleted", b"num_parallel_tree", b"base_score"),
    *(b"objective", b"feature_names", b"version", b"name", b"shrinkage", b"is_linear", b"missing"),
)


def flipped(data: bytes, draw: random.Random) -> bytes:
    """One to eight bytes replaced."""
    altered = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        altered[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(altered)


def truncated(data: bytes, draw: random.Random) -> bytes:
    """The beginning only."""
    return data[: draw.randrange(len(data))]


def cut(data: bytes, draw: random.Random) -> bytes:
    """A stretch removed, duplicated or moved."""
    begin = draw.randrange(len(data))
    end = min(len(data), begin + draw.choice((1, 4, 16, 64, 256)))
    part, rest = data[begin:end], data[:begin] + data[end:]
    at = draw.randrange(len(rest) + 1)
    return draw.choice((rest, data[:end] + part + data[end:], rest[:at] + part + rest[at:]))


def lines_edited(data: bytes, draw: random.Random) -> bytes:
    """Lines, or parts between commas where there are no lines, swapped, removed or repeated."""
    mark = b"\n" if data.count(b"\n") > 10 else b","
    lines = data.split(mark)
    for _ in range(draw.randint(1, 3)):
        i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
        match draw.randrange(3):
            case 0:
                lines[i], lines[j] = lines[j], lines[i]
            case 1:
                lines.insert(i, lines[j])
            case _ if len(lines) > 1:
                del lines[i]
    return mark.join(lines)


def numbers_edited(data: bytes, draw: random.Random) -> bytes:
    """One to three numbers of a text file replaced by hostile ones, or one digit by another."""
    places = [found.span() for found in _NUMBER.finditer(data)]
    for begin, end in sorted(draw.sample(places, draw.randint(1, 3)), reverse=True):
        number = draw.choice((*HOSTILE_NUMBERS, data[begin : end - 1] + b"%d" % draw.randrange(10)))
        data = data[:begin] + number + data[end:]
    return data


def value_edited(data: bytes, draw: random.Random) -> bytes:
    """A number or byte near a key that counts or links: in UBJ these bytes are types, lengths and values."""
    keys = [found for key in _KEYS for found in re.finditer(re.escape(key), data)]
    at = draw.choice(keys).end()
    if b"\0" in data:
        altered = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            place = min(at + int(draw.expovariate(1 / 12)), len(data) - 1)
            altered[place] = draw.choice(
                (0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256), *b"[]{}$#iUIlLdDSHTFZ")
            )
        return bytes(altered)
    stretch = list(_NUMBER.finditer(data, at, at + 200))
    if not stretch:
        return data[:at] + data[at + 1 :]
    begin, end = draw.choice(stretch).span()
    return data[:begin] + draw.choice((*HOSTILE_NUMBERS, b"%d" % draw.randrange(12))) + data[end:]


def element_edited(data: bytes, draw: random.Random) -> bytes:
    """An element or the length of an array: a cycle, a link to nowhere, a NaN, more than there is."""
    if b"\0" not in data:
        return _text_element_edited(data, draw)
    arrays = list(re.finditer(rb"\[\$(.)#L(.{8})", data, re.DOTALL))
    found = draw.choice(arrays)
    altered = bytearray(data)
    length = int.from_bytes(found[2], "big")
    if draw.random() < 0.2 or not length:
        longer = draw.choice((length + 1, length * 2, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, 0))
        altered[found.start(2) : found.end(2)] = longer.to_bytes(8, "big")
        return bytes(altered)
    width = {b"l": 4, b"d": 4, b"U": 1}[found[1]]
    value = draw.choice(
        (
            *(draw.randrange(-2, length + 2) for _ in range(8)),
            *(0x7FC00000, 0x7F800000, -0x800000, 0x7F7FFFFF, -(1 << 31), (1 << 31) - 1, 1),
        )
    )
    at = found.end() + width * draw.randrange(length)
    altered[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
    return bytes(altered)


def _text_element_edited(data: bytes, draw: random.Random) -> bytes:
    pattern = rb"(?:left_child|right_child|split_feature|leaf_value|threshold|decision_type)=([^\n]+)"
    if data.startswith(b"{"):
        pattern = (
            rb'"(?:left_children|right_children|split_indices|split_conditions|default_left)":\[([^]]+)\]'
        )
    found = draw.choice(list(re.finditer(pattern, data)))
    mark = b"," if data.startswith(b"{") else b" "
    elements = found[1].split(mark)
    place = draw.randrange(len(elements))
    match draw.randrange(5):
        case 0:
            elements.append(elements[place])
        case 1:
            del elements[place]
        case 2:
            elements[place] = draw.choice(HOSTILE_NUMBERS)
        case _:
            elements[place] = b"%d" % draw.randrange(-len(elements) - 2, len(elements) + 2)
    return data[: found.start(1)] + mark.join(elements) + data[found.end(1) :]


DAMAGES: tuple[Alteration, ...] = (flipped, truncated, cut, lines_edited)
AIMED: tuple[Alteration, ...] = (numbers_edited, value_edited, element_edited, element_edited)


def altered_files(sound: dict[str, bytes], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`count` altered files with what was done to which, the same for the same arguments."""
    draw = random.Random(seed)
    made = 0
    while made < count:
        name = draw.choice(sorted(sound))
        usable = (*DAMAGES, *AIMED) if b"\0" not in sound[name] else (flipped, truncated, cut, *AIMED[1:])
        alteration = draw.choice(usable)
        data = alteration(sound[name], draw)
        if data != sound[name]:
            yield f"{made}: {name} {alteration.__name__}", data
            made += 1
