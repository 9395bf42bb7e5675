"""What two spellings of one query share: the cache key.

A scored list depends on the phrase alone (SoCC'17 section 3.1: adding the user to the key doubles the keys
and, by WWW'18 section 5.1, does not help a refresh predictor), so the key is the phrase in a normal form:
compatibility composition (NFKC), full case folding, no control or invisible format characters, single spaces.
The normal form is a fixed point: normalising it again changes nothing. Versions of index and models are not
part of the key; they stand in the header of the list, which a refresh replaces.
"""

import hashlib
import unicodedata

FINGERPRINT_BYTES = 16

_DROPPED = frozenset({"Cc", "Cf", "Cs"})  # control, invisible format, lone surrogates


def normalise(text: str) -> str:
    """Key text of a query; empty when nothing visible is left.

    ASCII without control characters, nearly all traffic, takes the short way: for it NFKC is the identity.

    >>> normalise("  Laser\\tPRINTER  toner ")
    'laser printer toner'
    """
    if text.isascii() and text.isprintable():
        return " ".join(text.lower().split())
    spaced = " ".join(text.split())
    visible = "".join(c for c in spaced if unicodedata.category(c) not in _DROPPED)
    # Folding can undo composition and composition can yield letters that still fold, hence two rounds
    # (Unicode section 3.13, D146).
    folded = unicodedata.normalize("NFKC", visible)
    for _ in range(2):
        folded = unicodedata.normalize("NFKC", folded.casefold())
    return " ".join(folded.split())


def fingerprint(key_text: str) -> bytes:
    """Name of a key text: its 16-byte BLAKE2b digest, the same in every process and version."""
    return hashlib.blake2b(key_text.encode(), digest_size=FINGERPRINT_BYTES).digest()
