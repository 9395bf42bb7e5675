"""Personalised cache keys: SoCC'17 section 4.2, Algorithm 2.

Problem. Two users who ask the same phrase get different lists; a key that names the user's context too
(location, gender, age) serves each their own, but there are twice as many keys and far fewer hits. Only a few
phrases earn, so selective personalisation pays that price for them alone. With R the phrases that ever earned
(in the days before, and since then live):

    1  for a phrase outside R the key is the phrase
    2  for a phrase in R the key is the phrase with location, gender and age
    3  when a list is inserted under a key of line 2, the list under the phrase alone is deleted

What is approximate live: line 3 is left to the eviction, since nothing asks for that list again; and R is
what the service knows of clicks. The name of a personalised key begins with that of its phrase, so whoever
has a key can tell whether its phrase earns.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeVar

from services.core.query import FINGERPRINT_BYTES

Scheme = Literal["phrase", "selective", "all"]
"""Whose context is part of the key: nobody's, that of earning phrases, everybody's."""

PHRASE_BYTES = FINGERPRINT_BYTES // 2

_Flags = TypeVar("_Flags")


def is_personal(scheme: str, earning: _Flags) -> _Flags | bool:
    """Whether the key names the user's context (lines 1 and 2).

    scheme: a Scheme. earning: whether the phrase is in R, one bool or an array of them.
    """
    return earning if scheme == "selective" else scheme == "all"


def phrase_of(fingerprint: bytes) -> bytes:
    """The part of a key's fingerprint that names its phrase, whether or not the key is personal."""
    return fingerprint[:PHRASE_BYTES]


def personal(fingerprint: bytes, location: str, gender: int, age: int) -> bytes:
    """The fingerprint of a phrase with a user's context: its phrase part, then a digest of all of it."""
    context = f"{location}\0{gender}\0{age}".encode()
    digest = hashlib.blake2b(context, key=fingerprint, digest_size=FINGERPRINT_BYTES - PHRASE_BYTES)
    return phrase_of(fingerprint) + digest.digest()
