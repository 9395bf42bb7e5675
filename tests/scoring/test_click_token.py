import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scoring.click_token import MAX_AGE_MS, MAX_SKEW_MS, InvalidToken, Shown, issue, verify

SECRET = b"a secret of the tests"
NOW_MS = 1_790_000_000_000
SHOWN = Shown(b"a" * 16, 42, 123_456, NOW_MS, b"f" * 8, "Bürobedarf Weiß")


@given(
    st.builds(
        Shown,
        st.binary(min_size=16, max_size=16),
        st.integers(1, 2**63 - 1),
        st.integers(1, 1_000_000_000),
        st.integers(NOW_MS - MAX_AGE_MS, NOW_MS + MAX_SKEW_MS),
        st.binary(min_size=8, max_size=8),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100),
    )
)
def test_what_is_signed_is_read_back(shown: Shown) -> None:
    assert verify(SECRET, issue(SECRET, shown), NOW_MS) == shown


@given(st.data())
def test_any_changed_byte_is_refused(data: st.DataObject) -> None:
    token = bytearray(issue(SECRET, SHOWN))
    at = data.draw(st.integers(0, len(token) - 1))
    token[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidToken, match="unchanged"):
        verify(SECRET, bytes(token), NOW_MS)


@given(st.binary(max_size=600))
def test_foreign_bytes_are_refused(token: bytes) -> None:
    with pytest.raises(InvalidToken):
        verify(SECRET, token, NOW_MS)


def test_another_secret_does_not_verify() -> None:
    with pytest.raises(InvalidToken, match="unchanged"):
        verify(b"another secret of them", issue(SECRET, SHOWN), NOW_MS)


def test_age_and_skew_are_bounded() -> None:
    token = issue(SECRET, SHOWN)
    assert verify(SECRET, token, NOW_MS + MAX_AGE_MS) == SHOWN
    with pytest.raises(InvalidToken, match="24 hours"):
        verify(SECRET, token, NOW_MS + MAX_AGE_MS + 1)
    assert verify(SECRET, token, NOW_MS - MAX_SKEW_MS) == SHOWN
    with pytest.raises(InvalidToken, match="past"):
        verify(SECRET, token, NOW_MS - MAX_SKEW_MS - 1)
