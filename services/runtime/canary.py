"""The throw-away process that parses a bundle first.

Usage: `python -m services.runtime.canary TARGET FOLDER SECONDS`.

It limits its own CPU time and address space, writes no core file, and exits 0 only when TARGET(FOLDER)
returned. It is started by `bundles.parse_in_child` alone.
"""

from __future__ import annotations

import importlib
import resource
import sys
from pathlib import Path

MAX_ADDRESS_SPACE_BYTES = 32 << 30


def main(argv: list[str]) -> int:
    """Runs the loader named in `argv`; an error is its last line on standard error."""
    target, folder, seconds = argv
    cpu_s = max(1, int(seconds)) * 4
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    module, _, function = target.partition(":")
    try:
        getattr(importlib.import_module(module), function)(Path(folder))
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
