"""Types of command-line arguments that several commands take."""

from __future__ import annotations

import argparse


def seed(text: str) -> int:
    """A whole number, 0 or more, that random draws start from; numpy takes no other."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1..18 digits")
    return int(text)
