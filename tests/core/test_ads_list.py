import itertools
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.ads_list import MAX_ADS, AdsList, CorruptEntry, Versions, decode, encode, merge
from services.core.query import fingerprint

KEY = fingerprint("laser printer toner")
VERSIONS = Versions("index-1", "encoder-1", "scorer-1")


def ads_list(ids: list[int], versions: Versions = VERSIONS, written_at_ms: int = 1) -> AdsList:
    return AdsList(tuple(ids), tuple(1 / 2 ** (i % 10) for i in ids), written_at_ms, 1500, versions)


text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
lists = st.builds(
    lambda pairs, at, cost, versions, degraded: AdsList(
        tuple(pairs), tuple(pairs.values()), at, cost, versions, degraded
    ),
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.floats(0, 1, width=32), max_size=80),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.builds(Versions, text, text, text),
    st.booleans(),
)


@given(lists)
def test_what_is_written_is_read_back(entry: AdsList) -> None:
    assert decode(encode(entry, KEY), KEY) == entry


def test_an_empty_list_is_a_list() -> None:
    assert decode(encode(ads_list([]), KEY), KEY).ad_ids == ()


@given(lists, st.data())
def test_any_changed_byte_is_noticed(entry: AdsList, data: st.DataObject) -> None:
    value = bytearray(encode(entry, KEY))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptEntry):
        decode(bytes(value), KEY)


@given(lists, st.data())
def test_a_cut_or_extended_value_is_noticed(entry: AdsList, data: st.DataObject) -> None:
    value = encode(entry, KEY)
    with pytest.raises(CorruptEntry):
        decode(value[: data.draw(st.integers(0, len(value) - 1))], KEY)
    with pytest.raises(CorruptEntry):
        decode(value + data.draw(st.binary(min_size=1, max_size=40)), KEY)


@given(st.binary(max_size=400))
def test_foreign_bytes_raise_nothing_but_corrupt_entry(value: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode(value, KEY)


def reseal(value: bytes) -> bytes:
    """The value with a checksum that fits again."""
    return value[:44] + struct.pack("<I", zlib.crc32(value[48:], zlib.crc32(value[:44]))) + value[48:]


@pytest.mark.parametrize(
    ("offset", "patch", "reason"),
    [
        (0, b"FADX", "format"),
        (4, b"\x02", "format"),
        (6, b"\xff\xff", "length"),
        (8, b"\0" * 16, "fingerprint"),
        (40, b"\xff\xff\xff\xff", "length"),
        (40, b"\x00\x00\x00\x00", "length"),
        (48, b"\xff\xfe", "versions"),
        (48, b"\0\0\0", "versions"),
    ],
)
def test_the_reason_is_named_even_when_the_checksum_fits(offset: int, patch: bytes, reason: str) -> None:
    value = encode(ads_list([1, 2, 3]), KEY)
    with pytest.raises(CorruptEntry) as caught:
        decode(reseal(value[:offset] + patch + value[offset + len(patch) :]), KEY)
    assert caught.value.reason == reason


def test_the_value_of_another_key_is_never_served() -> None:
    with pytest.raises(CorruptEntry, match="another key"):
        decode(encode(ads_list([1]), fingerprint("other")), KEY)


@pytest.mark.parametrize(
    "entry",
    [
        AdsList((1, 1), (0.5, 0.5), 0, 0, VERSIONS),
        AdsList((1,), (), 0, 0, VERSIONS),
        AdsList((1,), (1.5,), 0, 0, VERSIONS),
        AdsList((1,), (float("nan"),), 0, 0, VERSIONS),
        AdsList(tuple(range(MAX_ADS + 1)), (0.5,) * (MAX_ADS + 1), 0, 0, VERSIONS),
        AdsList((1,), (0.5,), 0, 0, Versions("a\0b")),
        AdsList((1,), (0.5,), 0, 0, Versions("a" * 256)),
    ],
)
def test_a_broken_list_is_not_written(entry: AdsList) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(entry, KEY)


def test_a_key_without_a_whole_fingerprint_is_not_written() -> None:
    with pytest.raises(ValueError, match="15 bytes"):
        encode(ads_list([1]), KEY[:15])


def test_merging_moves_the_fresh_list_to_the_front_and_drops_the_tail() -> None:
    merged = merge(ads_list([1, 2, 3, 4]), ads_list([9, 3, 8], written_at_ms=2), 5)
    assert merged.ad_ids == (9, 3, 8, 1, 2)
    assert merged.written_at_ms == 2


def test_probabilities_of_the_fresh_list_win() -> None:
    cached = AdsList((1, 2), (0.9, 0.8), 1, 10, VERSIONS)
    fresh = AdsList((2,), (0.1,), 2, 20, VERSIONS, retrieval_degraded=True)
    assert merge(cached, fresh, 8) == AdsList((2, 1), (0.1, 0.9), 2, 20, VERSIONS, retrieval_degraded=True)


def test_lists_of_unequal_models_are_not_mixed() -> None:
    cached = ads_list([1, 2])
    for versions in (
        Versions("index-1", "encoder-1", "scorer-2"),
        Versions("index-1", "encoder-2", "scorer-1"),
    ):
        assert merge(cached, ads_list([3], versions), 8).ad_ids == (3,)
    assert merge(cached, ads_list([3], Versions("index-2", "encoder-1", "scorer-1")), 8).ad_ids == (3, 1, 2)


def test_without_a_cached_list_the_fresh_one_is_cut_at_capacity() -> None:
    assert merge(None, ads_list([1, 2, 3]), 2).ad_ids == (1, 2)


@given(lists, lists, st.integers(1, 100))
def test_merged_lists_hold_their_invariants(cached: AdsList, fresh: AdsList, capacity: int) -> None:
    fresh = AdsList(fresh.ad_ids, fresh.click_probabilities, 2, 3, cached.versions)
    merged = merge(cached, fresh, capacity)
    wanted = [*fresh.ad_ids, *(i for i in cached.ad_ids if i not in set(fresh.ad_ids))][:capacity]
    assert list(merged.ad_ids) == wanted
    assert decode(encode(merged, KEY), KEY) == merged
    probabilities = dict(
        itertools.chain(
            zip(cached.ad_ids, cached.click_probabilities, strict=True),
            zip(fresh.ad_ids, fresh.click_probabilities, strict=True),
        )
    )
    assert merged.click_probabilities == tuple(probabilities[i] for i in wanted)
