"""Starts one container: ``python -m tinykube.kubelet.launcher``, with a socket as standard input.

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
from typing import NoReturn

from tinykube.kubelet import root_file_system
from tinykube.kubelet.beginning import PASSED_ON, begin, problem_of, wait_for
from tinykube.kubelet.launch import KILL_SIGNAL, START_FAILED_CODE, Launch, parse_launch
from tinykube.kubelet.syscalls import CLONE_NEWNS, CLONE_NEWPID, die_with_parent, unshare


def main() -> NoReturn:
    """Start what standard input says, and end when it has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    os._exit(wait_for(init))


def _run_init(launch: Launch, report: int) -> NoReturn:
    """Be the first process of the namespace; the kernel ends all others in it when this one ends."""
    die_with_parent(signal.SIGKILL)
    try:
        root_file_system.enter(launch)
    except OSError as error:
        _fail(report, f"cannot mount {error.filename}: {error.strerror}")
    try:
        child = begin(launch, standard_input=None)
    except OSError as error:
        _fail(report, problem_of(error))
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    _say(report, "started")
    os._exit(wait_for(child))


def _fail(report: int, problem: str) -> NoReturn:
    _say(report, f"failed {problem.replace(chr(10), ' ')}")
    os._exit(START_FAILED_CODE)


def _say(report: int, line: str) -> None:
    os.write(report, f"{line}\n".encode())
    os.close(report)


if __name__ == "__main__":
    main()
