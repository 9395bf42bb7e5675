import itertools

from services.core.personalisation import PHRASE_BYTES, is_personal, personal, phrase_of
from services.core.query import FINGERPRINT_BYTES, fingerprint

LASER, TONER = fingerprint("laser"), fingerprint("toner")


def test_the_key_names_the_context_of_nobody_of_earning_phrases_or_of_everybody() -> None:
    decided = [
        is_personal(scheme, earning) for scheme in ("phrase", "selective", "all") for earning in (0, 1)
    ]
    assert decided == [False, False, 0, 1, True, True]


def test_every_part_of_the_context_makes_another_key() -> None:
    contexts = itertools.product((LASER, TONER), ("", "US-CA", "US-C"), (0, 1), (0, 1))
    keys = [personal(*context) for context in contexts]
    assert len(set(keys) | {LASER, TONER}) == len(keys) + 2
    assert {len(key) for key in keys} == {FINGERPRINT_BYTES}
    assert personal(LASER, "US-CA", 1, 2) == personal(LASER, "US-CA", 1, 2)
    assert personal(LASER, "US-CA", 1, 2) != personal(LASER, "US-CA", 2, 1)


def test_a_personal_key_still_tells_its_phrase() -> None:
    assert phrase_of(personal(LASER, "US-CA", 1, 2)) == phrase_of(LASER) == LASER[:PHRASE_BYTES]
    assert phrase_of(personal(TONER, "US-CA", 1, 2)) != phrase_of(LASER)
