"""Runs a further command in a container: ``python -m tinykube.kubelet.entering LAUNCHER FILE``.

LAUNCHER is the pid of the program that started the container, FILE the number of an open file that has the
launch, of which only what concerns the command is used. Standard input and outputs are the command's. The
exit code is the command's too, 127 when there is no such program, 126 when it cannot be run, and 128 when
the container is not running. When this program is killed the command is, too.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tinykube.kubelet.beginning import begin, problem_of, wait_for
from tinykube.kubelet.launch import START_FAILED_CODE, parse_launch
from tinykube.kubelet.syscalls import CLONE_NEWNS, CLONE_NEWPID, die_with_parent, join

_NOT_FOUND_CODE = 127
_NOT_RUN_CODE = 126


def main() -> NoReturn:
    """Run it, and end when it has ended."""
    die_with_parent(signal.SIGKILL)
    launcher, file = (int(argument) for argument in sys.argv[1:])
    with open(file, "rb") as given:  # noqa: PTH123 - a file descriptor
        launch = parse_launch(given.read())
    os.umask(0o022)
    try:
        join(_first_process(launcher), CLONE_NEWNS | CLONE_NEWPID)
    except (OSError, ValueError):
        _fail(START_FAILED_CODE, "the container is not running any more")
    try:
        child = begin(launch, standard_input=0)
    except FileNotFoundError as error:
        _fail(_NOT_FOUND_CODE, problem_of(error))
    except OSError as error:
        _fail(_NOT_RUN_CODE, problem_of(error))
    # Else nobody would see that the command has closed its own.
    os.closerange(0, 3)
    os._exit(wait_for(child))


def _first_process(launcher: int) -> int:
    """A file descriptor for the first process in the container; raises OSError or ValueError."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    found = int(children.read_text(encoding="ascii"))
    process = os.pidfd_open(found)
    if int(children.read_text(encoding="ascii")) != found:  # another process might have got its number
        raise ProcessLookupError
    return process


def _fail(code: int, problem: str) -> NoReturn:
    os.write(2, f"{problem}\n".encode(errors="replace"))
    os._exit(code)


if __name__ == "__main__":
    main()
