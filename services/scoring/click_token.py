"""The signed proof that an ad was shown at a price; what RecordClicks charges by.

A token says everything that charging needs, so a click on an ad that has been deleted since is still charged
to the right account, at the price of the auction it won. Layout, little endian:

    u8 version 1 | 16s answer id | i64 ad id | u32 price, micro-dollars | i64 issued at, Unix milliseconds
    | 8s phrase part of the query fingerprint | advertiser, UTF-8 | 16s signature

The signature is HMAC-SHA256 of all before it, truncated to 128 bits as RFC 2104 section 5 permits. The answer
id is drawn anew for every answer, never taken from the caller: (answer id, ad id) is what a second charge is
recognised by, and a caller that repeats its request id must not lose revenue.
"""

import hmac
import struct
from typing import NamedTuple

MAX_AGE_MS = 24 * 3600 * 1000
MAX_SKEW_MS = 60_000

_BODY = struct.Struct("<B16sqIq8s")
_VERSION = 1
_MAC_BYTES = 16
_MAX_BYTES = _BODY.size + 400 + _MAC_BYTES


class InvalidToken(Exception):
    """A token that cannot be charged; the text completes "click_token must be ..."."""


class Shown(NamedTuple):
    """What a token says: one ad in one answer, and what a click on it costs."""

    answer_id: bytes
    ad_id: int
    price_micros: int
    issued_at_ms: int
    fingerprint_head: bytes
    advertiser: str


def issue(secret: bytes, shown: Shown) -> bytes:
    """The token of a shown ad; 61 bytes and the advertiser's name."""
    answer_id, ad_id, price_micros, issued_at_ms, head, advertiser = shown
    body = _BODY.pack(_VERSION, answer_id, ad_id, price_micros, issued_at_ms, head) + advertiser.encode()
    return body + hmac.digest(secret, body, "sha256")[:_MAC_BYTES]


def verify(secret: bytes, token: bytes, now_ms: int) -> Shown:
    """What a token says, once its signature (in constant time), age and clock skew hold.

    Raises InvalidToken.
    """
    if not _BODY.size + _MAC_BYTES < len(token) <= _MAX_BYTES:
        raise InvalidToken("a click token of RankAds, unchanged")
    body, mac = token[:-_MAC_BYTES], token[-_MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(secret, body, "sha256")[:_MAC_BYTES], mac):
        raise InvalidToken("a click token of RankAds, unchanged")
    version, answer_id, ad_id, price_micros, issued_at_ms, head = _BODY.unpack_from(body)
    if version != _VERSION:
        raise InvalidToken(f"of version {_VERSION}")
    if now_ms - issued_at_ms > MAX_AGE_MS:
        raise InvalidToken("at most 24 hours old")
    if issued_at_ms - now_ms > MAX_SKEW_MS:
        raise InvalidToken("issued in the past")
    return Shown(answer_id, ad_id, price_micros, issued_at_ms, head, body[_BODY.size :].decode())
