"""Ties a child process to its parent, then becomes the real program.

Run as `python -I -S leash.py PARENT_PID PROGRAM [ARGUMENT...]`. The kernel kills the process when the
supervisor ends, however that happens (`prctl(2)`, PR_SET_PDEATHSIG; the setting survives `execve`). A small
program does this rather than `preexec_fn`, which is unsafe in a process that runs gRPC threads.

Elsewhere than on Linux the tie does not exist: children that outlive a killed supervisor keep their ports,
and the next start names those ports.
"""

import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def main() -> None:
    """Ties this process to its parent and replaces it by the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != parent:  # the parent ended before the tie was made
            sys.exit("the supervisor has ended")
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
