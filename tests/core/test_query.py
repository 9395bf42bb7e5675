import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core import query
from services.core.query import FINGERPRINT_BYTES, fingerprint, normalise


@pytest.mark.parametrize(
    ("text", "key_text"),
    [
        ("laser printer toner", "laser printer toner"),
        ("  Laser\t PRINTER\n toner  ", "laser printer toner"),
        ("ﬁlter ＡＢＣ", "filter abc"),
        ("STRASSE straße", "strasse strasse"),
        ("caf\u0065\u0301", "caf\u00e9"),
        ("a\x00b\x1bc", "abc"),
        ("ze\u200bro\ufeff width", "zero width"),
        ("non\u00a0breaking\u3000space", "non breaking space"),
        ("\u200b\x00 ", ""),
        ("", ""),
    ],
)
def test_spellings_of_one_query_share_a_key(text: str, key_text: str) -> None:
    assert normalise(text) == key_text


@given(st.text())
def test_the_normal_form_is_a_fixed_point(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert once == once.strip()
    assert "  " not in once


@given(st.text(alphabet=st.characters(max_codepoint=0x7E, min_codepoint=0x20)))
def test_the_short_way_for_ascii_gives_the_general_result(text: str) -> None:
    assert normalise(text) == normalise(text + "\u200b")


@given(st.text())
def test_case_and_outer_space_do_not_matter(text: str) -> None:
    assert normalise(f"  {normalise(text).upper()} ") == normalise(normalise(text).upper())


def test_fingerprints_are_stable_across_processes_and_versions() -> None:
    assert fingerprint("laser printer toner").hex() == "b279336a51354b5701a3f0f43f0f6a4a"
    assert len(fingerprint("")) == FINGERPRINT_BYTES
    assert fingerprint("a b") != fingerprint("ab")


def test_examples() -> None:
    assert doctest.testmod(query).failed == 0
