"""Who asks: location, gender, age band and device of a request.

Every phrase has its own mix of users. The joint context (location, gender, age) of a phrase's requests
follows a Dirichlet distribution around the mix of all users: few contexts for a phrase, others for the next.
Drawn by stick breaking (Sethuraman 1994), so nothing is stored: atom j of a phrase is a context drawn from
the base mix, and takes Beta(1, concentration) of what the atoms before it left.

Modelled: the base mix. The concentration is held to figure 3 of SoCC'17: adding location, gender and age to
the key doubles the number of keys and takes a third off the share of the top 1 %.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.randomness import ATOM, DEVICE, PICK, STICK, at, stream
from services.core.compiled import compiled

REGIONS = 120
LOCATION_SHARES = np.cumsum(1.0 / (np.arange(REGIONS) + 30.0))
LOCATION_SHARES /= LOCATION_SHARES[-1]
GENDER_SHARES = np.cumsum([0.48, 0.52])
AGE_SHARES = np.cumsum([0.06, 0.15, 0.23, 0.28, 0.18, 0.10])
DEVICE_SHARES = np.cumsum([0.62, 0.33, 0.05])
CONTEXTS = len(LOCATION_SHARES) * len(GENDER_SHARES) * len(AGE_SHARES)
MAX_STICKS = 64

Codes = NDArray[np.int8]


def contexts(
    seed: int, first_request: int, phrases: NDArray[np.int64], concentration: NDArray[np.float64]
) -> tuple[Codes, Codes, Codes, Codes, NDArray[np.int64]]:
    """Location, gender, age, device (codes from 1) and joint context number of requests in order."""
    joint, device = _draw(seed, first_request, phrases, concentration)
    ages, genders = len(AGE_SHARES), len(GENDER_SHARES)
    location, gender, age = joint // (ages * genders) + 1, joint // ages % genders + 1, joint % ages + 1
    return location.astype(np.int8), gender.astype(np.int8), age.astype(np.int8), device, joint


@compiled
def _draw(
    seed: int, first_request: int, phrases: NDArray[np.int64], concentration: NDArray[np.float64]
) -> tuple[NDArray[np.int64], Codes]:
    joint = np.empty(len(phrases), np.int64)
    device = np.empty(len(phrases), np.int8)
    picks = stream(seed, PICK, 0)
    devices = stream(seed, DEVICE, 0)
    for i in range(len(phrases)):
        atoms = stream(seed, ATOM, phrases[i])
        sticks = stream(seed, STICK, phrases[i])
        left = 1.0 - at(picks, first_request + i)  # walk the sticks until they cover the draw
        tail = 1.0
        atom = 0
        while atom < MAX_STICKS:
            tail *= (1.0 - at(sticks, atom)) ** (1.0 / concentration[i])
            if tail < left:
                break
            atom += 1
        if atom == MAX_STICKS:  # beyond, every request has an atom of its own
            atom += first_request + i
        joint[i] = _code(LOCATION_SHARES, at(atoms, 3 * atom))
        joint[i] = joint[i] * len(GENDER_SHARES) + _code(GENDER_SHARES, at(atoms, 3 * atom + 1))
        joint[i] = joint[i] * len(AGE_SHARES) + _code(AGE_SHARES, at(atoms, 3 * atom + 2))
        device[i] = 1 + _code(DEVICE_SHARES, at(devices, first_request + i))
    return joint, device


@compiled
def _code(ends: NDArray[np.float64], u: float) -> int:
    code = 0
    while code < len(ends) - 1 and u >= ends[code]:
        code += 1
    return code
