"""How a command begins inside a container, for the programs that start one; the standard library only."""

import os
import signal

from tinykube.kubelet.launch import KILL_SIGNAL, START_FAILED_CODE, Launch
from tinykube.kubelet.syscalls import die_with_parent

PASSED_ON = {signal.SIGTERM, KILL_SIGNAL}
"""The signals that those programs keep back until there is somebody to pass them on to."""


def begin(launch: Launch, *, standard_input: int | None) -> int:
    """The pid of the command, which runs and reads what is given; raises OSError with what cannot be run."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become_container(launch, standard_input)
            os.execvpe(launch.argv[0], launch.argv, dict(launch.env))  # noqa: S606 - what this is for
        except OSError as error:
            os.write(writer, str(error.errno).encode())
        os._exit(START_FAILED_CODE)
    os.close(writer)
    with open(reader, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        number = pipe.read().decode()
    if number:  # else exec has closed the other end
        raise OSError(int(number), os.strerror(int(number)), launch.argv[0])
    return child


def problem_of(error: OSError) -> str:
    """Why a command could not begin, in the words of container runtimes."""
    if not isinstance(error, FileNotFoundError):
        return f'exec: "{error.filename}": {error.strerror}'
    where = "no such file or directory" if "/" in error.filename else "executable file not found in $PATH"
    return f'exec: "{error.filename}": {where}'


def wait_for(main_child: int) -> int:
    """Reap every child until the main one has ended; its exit code."""
    while True:
        pid, status = os.wait()
        if pid == main_child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _become_container(launch: Launch, standard_input: int | None) -> None:
    """Be what the launch says, with nothing left to do but to run its command."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # what Python has changed
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    os.setgroups(launch.groups)
    os.setgid(launch.gid)
    os.setuid(launch.uid)
    die_with_parent(signal.SIGKILL)  # which another user's process would have to be told again
    os.chdir("/")
    os.dup2(os.open(os.devnull, os.O_RDONLY) if standard_input is None else standard_input, 0)
