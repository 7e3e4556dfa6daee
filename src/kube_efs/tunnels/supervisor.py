"""The first process of the agent's container: it starts the agent, and starts it again when it crashes.

When the first process of a container ends, everything in it is killed, stunnel too. So the agent is a child
of this, which does next to nothing and so has next to nothing to crash of; it also reaps what others leave.
"""

import os
import signal
import time
from typing import Final

import structlog

from kube_efs.tunnels.backoff import RestartBackoff

log = structlog.get_logger()

_TOLD_TO_END: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_WATCHED: Final = _TOLD_TO_END | {signal.SIGCHLD}
# An agent that fails sooner has never worked: its settings are wrong, and the kubelet is to show that.
_FIRST_LIFE_SECONDS: Final = 10.0


def supervise(command: list[str]) -> int:
    """Keep the command running until SIGTERM or SIGINT, which are forwarded to it; gives its exit status.

    One that ends with status 0, or by itself in its first seconds, is not started again.
    """
    # Blocked, so that they wait for sigwait; a child starts without that.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    began, delay = time.monotonic(), RestartBackoff()
    while True:
        started = time.monotonic()
        told, status = _run(command)
        is_first = time.monotonic() - began < _FIRST_LIFE_SECONDS and status > 0
        if told or status == 0 or is_first:
            return status if status >= 0 else 128 - status
        delay = delay.after_life_of(time.monotonic() - started)
        log.warning("tunnel-agent-crashed", status=status, again_seconds=delay.seconds)
        # A wish to end in this pause ends it.
        if signal.sigtimedwait(_TOLD_TO_END, delay.seconds):
            return 0


def _run(command: list[str]) -> tuple[bool, int]:
    """One life of the command: whether it was stopped, and its status, negative for a signal."""
    child = os.posix_spawnp(command[0], command, os.environ, setsigmask=())
    told, status = False, None
    while status is None:
        number = signal.sigwait(_WATCHED)
        if number in _TOLD_TO_END:
            told = True
            os.kill(child, number)
        # One SIGCHLD may stand for many children.
        status = _reap(child)
    return told, status


def _reap(child: int) -> int | None:
    """Bury all that have ended; gives the status of the child if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == child:
            found = os.waitstatus_to_exitcode(status)
        if pid == 0:
            return found
