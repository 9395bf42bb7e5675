"""Parses and evaluates altered model files: `python -m core.evaluate_altered FOLDER COUNT SEED`.

FOLDER holds the sound files. Run with NUMBA_DISABLE_JIT=1 the kernels are plain Python, where a read outside
an array raises and an endless loop can be interrupted. Each file has CPU_S seconds of processor time, and all
of them MEMORY_BYTES of address space beyond what the imports took. Writes a JSON document: `accepted`, the
raw scores of each accepted file by what was done to it; `rejected`, the number of clear errors; `faults`,
everything else.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from core.altered_models import altered_files

from services.core.trees import Forest, ForestError, parse_forest

CPU_S = 1.0
MEMORY_BYTES = 256 << 20
# Rows of the fixture's features that sound data does not hold.
PROBES = np.array(
    [
        [0.1, -0.2, 0.3, -0.4, 0.5],
        [np.nan] * 5,
        [np.inf] * 5,
        [-np.inf] * 5,
        [0.0, -0.0, 5e-324, -5e-324, 1e-35],
        [1e300, -1e300, 1e39, -1e39, 3.4e38],
        [np.nan, 1.0, np.nan, -1.0, 0.0],
    ]
)


class _Hang(BaseException):
    """A file took longer than it may."""


def _interrupt(*_: object) -> None:
    raise _Hang(f"more than {CPU_S:g} s")


def parsed(data: bytes) -> Forest | None:
    """The forest of a file, None when it was rejected with a clear error."""
    try:
        return parse_forest(data)
    except ForestError as error:
        if not str(error):
            raise AssertionError("an error without a text") from error
        return None


def probes(forest: Forest) -> npt.NDArray[np.float64]:
    """PROBES with as many features as the forest has."""
    return np.resize(PROBES, (len(PROBES), forest.feature_count))


def interpreted(forest: Forest) -> Forest:
    """The same for kernels that are plain Python: fields of records are attributes there by another type."""
    nodes, trees, columns, head = (array.view(np.recarray) for array in forest.arrays)
    return replace(forest, arrays=(nodes, trees, columns, head))


def main(folder: str, count: int, seed: int) -> dict[str, Any]:
    """What became of each altered file."""
    sound = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    for name, data in sound.items():
        if parsed(data) is None:
            raise AssertionError(f"{name} is sound and was rejected")
    taken_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken_bytes + MEMORY_BYTES,) * 2)
    signal.signal(signal.SIGPROF, _interrupt)
    accepted: dict[str, list[float]] = {}
    faults: list[str] = []
    rejected = 0
    for what, data in altered_files(sound, count, seed):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            forest = parsed(data)
            # The link, which is no walk, is left to machine code.
            scores = interpreted(forest).predict_raw(probes(forest)).tolist() if forest else None
        except (Exception, _Hang) as error:
            faults.append(f"{what}: {type(error).__name__}: {error}"[:300])
            continue
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if scores is None:
            rejected += 1
        else:
            accepted[what] = scores
    return {"accepted": accepted, "rejected": rejected, "faults": faults}


if __name__ == "__main__":
    np.seterr(all="ignore")
    json.dump(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
