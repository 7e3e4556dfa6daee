"""Starts a container, or a further command in one: ``python -m tinykube.kubelet.launcher``.

``start``, with a socket as standard input: three processes. This one stays outside and passes signals on;
the first one of a new process namespace mounts, reaps and ends with everything in it; the third is the
container's command. The command is not the first process itself, since the kernel keeps signals without a
handler from that one: SIGTERM would not end a plain program. Each dies with its parent, so nothing outlives
a killed kubelet. The socket brings the launch and gets one line back: ``started``, or why it failed. The
exit code is the command's, 128 and the number for a signal; by then every process and mount of the container
is gone.

``enter LAUNCHER FILE``: LAUNCHER is the pid of the program that started the container, FILE the number of an
open file that has the launch, of which only what concerns the command is used. Standard input and outputs are
the command's. The exit code is the command's too, 127 when there is no such program, 126 when it cannot be
run, and 128 when the container is not running. When this program is killed the command is, too.
"""

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tinykube.kubelet import root_file_system
from tinykube.kubelet.launch import KILL_SIGNAL, START_FAILED_CODE, Launch
from tinykube.kubelet.syscalls import CLONE_NEWNS, CLONE_NEWPID, die_with_parent, join, unshare

_NOT_FOUND_CODE = 127
_NOT_RUN_CODE = 126
# Kept back until there is somebody to pass them on to.
_PASSED_ON = {signal.SIGTERM, KILL_SIGNAL}


def start() -> NoReturn:
    """Start the container that standard input describes, and end when it has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    report = os.dup(sys.stdin.fileno())
    parent = os.getppid()
    die_with_parent(signal.SIGKILL)
    launch: Launch = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the kubelet itself
    if os.getppid() != parent:
        os._exit(START_FAILED_CODE)  # it was gone before it could take this process along
    try:
        unshare(CLONE_NEWNS | CLONE_NEWPID)
    except OSError as error:
        _fail(report, f"cannot make namespaces: {error.strerror}")
    init = os.fork()
    if init == 0:
        _run_init(launch, report)
    os.close(report)
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(init, number))
    signal.signal(KILL_SIGNAL, lambda _number, _frame: os.kill(init, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    os._exit(_wait_for(init))


def enter(launcher: int, file: int) -> NoReturn:
    """Run a command in the container of this launcher, and end when it has ended."""
    die_with_parent(signal.SIGKILL)
    with open(file, "rb") as given:
        launch: Launch = pickle.load(given)  # noqa: S301 - from the kubelet itself
    try:
        join(_first_process(launcher), CLONE_NEWNS | CLONE_NEWPID)
    except (OSError, ValueError):
        _fail(2, "the container is not running any more")
    try:
        child = _begin(launch, standard_input=0)
    except OSError as error:
        code = _NOT_FOUND_CODE if isinstance(error, FileNotFoundError) else _NOT_RUN_CODE
        _fail(2, _problem_of(error), code)
    # Else nobody would see that the command has closed its own.
    os.closerange(0, 3)
    os._exit(_wait_for(child))


def _run_init(launch: Launch, report: int) -> NoReturn:
    """Be the first process of the namespace; the kernel ends all others in it when this one ends."""
    die_with_parent(signal.SIGKILL)
    try:
        root_file_system.enter(launch)
    except OSError as error:
        _fail(report, f"cannot mount {error.filename}: {error.strerror}")
    try:
        child = _begin(launch, standard_input=os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        _fail(report, _problem_of(error))
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    os.write(report, b"started\n")
    os.close(report)
    os._exit(_wait_for(child))


def _first_process(launcher: int) -> int:
    """A file descriptor for the first process in the container; raises OSError or ValueError."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    found = int(children.read_text(encoding="ascii"))
    process = os.pidfd_open(found)
    if int(children.read_text(encoding="ascii")) != found:  # another process might have got its number
        raise ProcessLookupError
    return process


def _begin(launch: Launch, *, standard_input: int) -> int:
    """The pid of the command, which runs and reads what is given; raises OSError with what cannot be run."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become_container(launch, standard_input)
            os.execvpe(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - what this is for
        except OSError as error:
            os.write(writer, str(error.errno).encode())
        os._exit(START_FAILED_CODE)
    os.close(writer)
    with open(reader, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        number = pipe.read().decode()
    if number:  # else exec has closed the other end
        raise OSError(int(number), os.strerror(int(number)), launch.argv[0])
    return child


def _become_container(launch: Launch, standard_input: int) -> None:
    """Be what the launch says, with nothing left to do but to run its command."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # what Python has changed
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    os.setgroups(launch.groups)
    os.setgid(launch.gid)
    os.setuid(launch.uid)
    die_with_parent(signal.SIGKILL)  # which another user's process would need again
    os.chdir("/")
    os.dup2(standard_input, 0)


def _wait_for(main_child: int) -> int:
    """Reap every child until the main one has ended; its exit code."""
    while True:
        pid, status = os.wait()
        if pid == main_child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _problem_of(error: OSError) -> str:
    """Why a command could not begin, in the words of container runtimes."""
    if not isinstance(error, FileNotFoundError):
        return f'exec: "{error.filename}": {error.strerror}'
    where = "no such file or directory" if "/" in error.filename else "executable file not found in $PATH"
    return f'exec: "{error.filename}": {where}'


def _fail(report: int, problem: str, code: int = START_FAILED_CODE) -> NoReturn:
    os.write(report, f"{problem.replace(chr(10), ' ')}\n".encode(errors="replace"))
    os._exit(code)


if __name__ == "__main__":
    os.umask(0o022)
    if sys.argv[1] == "start":
        start()
    enter(*map(int, sys.argv[2:]))
