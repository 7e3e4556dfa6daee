"""Starts one container: ``python -m kube_efs.local.kubelet.launcher``, with a socket as standard input.

Three processes: this one, which stays outside and passes signals on; the first one of a new process
namespace, which mounts, reaps and ends with everything in it; and the container's command. The command is
not the first process itself, since the kernel keeps signals without a handler from that one: SIGTERM would
not end a plain program. Each dies with its parent, so nothing outlives a killed kubelet.

The socket brings the launch and gets one line back: ``started``, or ``failed`` and the reason. The exit
code is the command's, 128 and the number for a signal; by then every process and mount of it is gone.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from kube_efs.local.kubelet import root_file_system
from kube_efs.local.kubelet.launch import KILL_SIGNAL, START_FAILED_CODE, Launch, parse_launch
from kube_efs.local.kubelet.syscalls import CLONE_NEWNS, CLONE_NEWPID, die_with_parent, unshare

# Kept back until there is somebody to pass them on to.
_PASSED_ON = {signal.SIGTERM, KILL_SIGNAL}


def main() -> NoReturn:
    """Start what standard input says, and end when it has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    os.umask(0o022)
    report = os.dup(sys.stdin.fileno())
    parent = os.getppid()
    die_with_parent(signal.SIGKILL)
    launch = parse_launch(sys.stdin.buffer.read())
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
    os._exit(_wait(init))


def _run_init(launch: Launch, report: int) -> NoReturn:
    """Be the first process of the namespace; the kernel ends all others in it when this one ends."""
    die_with_parent(signal.SIGKILL)
    try:
        root_file_system.enter(launch)
    except OSError as error:
        _fail(report, f"cannot mount {error.filename}: {error.strerror}")
    try:
        child = _start(launch)
    except FileNotFoundError as error:
        where = "no such file or directory" if "/" in error.filename else "executable file not found in $PATH"
        _fail(report, f'exec: "{error.filename}": {where}')
    except OSError as error:
        _fail(report, f'exec: "{error.filename}": {error.strerror}')
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _say(report, "started")
    os._exit(_wait(child))


def _start(launch: Launch) -> int:
    """The pid of the command, which is running by now; raises OSError when it cannot be run."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        what = launch.working_dir
        try:
            _become_container(launch)
            what = launch.argv[0]
            os.execvpe(launch.argv[0], launch.argv, dict(launch.env))  # noqa: S606 - what this is for
        except OSError as error:
            os.write(writer, f"{error.errno}:{what}".encode(errors="replace"))
        os._exit(START_FAILED_CODE)
    os.close(writer)
    with open(reader, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        number, _, what = pipe.read().decode().partition(":")
    if number:  # else exec has closed the other end
        raise OSError(int(number), os.strerror(int(number)), what)
    return child


def _become_container(launch: Launch) -> None:
    """Be what the launch says, with nothing left to do but to run its command."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # what Python has changed
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    Path(launch.working_dir).mkdir(parents=True, exist_ok=True)
    os.setgroups(launch.groups)
    os.setgid(launch.gid)
    os.setuid(launch.uid)
    os.chdir(launch.working_dir)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _wait(main_child: int) -> int:
    """Reap every child until the main one has ended; its exit code."""
    while True:
        pid, status = os.wait()
        if pid == main_child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _fail(report: int, problem: str) -> NoReturn:
    _say(report, f"failed {problem.replace(chr(10), ' ')}")
    os._exit(START_FAILED_CODE)


def _say(report: int, line: str) -> None:
    os.write(report, f"{line}\n".encode())
    os.close(report)


if __name__ == "__main__":
    main()
