"""The first process of the agent's container: it starts the agent, and restarts it when it crashes.

When the first process of a container ends, the kernel kills all others, stunnel included, and every mount of
the node waits. The agent is therefore a child of this process, which does almost nothing and has almost no
reason to crash. It also reaps the processes whose parents have ended.
"""

import os
import signal
import time
from typing import Final

from kube_efs.tunnels.backoff import RestartBackoff

_END_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_SIGNALS: Final = _END_SIGNALS | {signal.SIGCHLD}
# An agent that fails earlier has never worked: its settings are wrong, and the kubelet must show this.
_FIRST_LIFE_SECONDS: Final = 10.0


def supervise(command: list[str]) -> int:
    """Run the command until SIGTERM or SIGINT, which it forwards; returns the exit status of the command.

    A command that ends with status 0, or fails in its first seconds, is not restarted.
    """
    # Blocked signals stay pending until sigwait. The child starts with an empty mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    began, delay = time.monotonic(), RestartBackoff()
    while True:
        started = time.monotonic()
        stopped, status = _run(command)
        is_first = time.monotonic() - began < _FIRST_LIFE_SECONDS and status > 0
        if stopped or status == 0 or is_first:
            return status if status >= 0 else 128 - status
        delay = delay.after_life_of(time.monotonic() - started)
        _report_crash(status, delay.seconds)
        # SIGTERM during this pause ends it.
        if signal.sigtimedwait(_END_SIGNALS, delay.seconds):
            return 0


def _report_crash(status: int, again_seconds: float) -> None:
    # This process runs as long as its container, so it loads the log only if it needs it.
    from kube_efs.telemetry.loading import load_logging  # noqa: PLC0415

    load_logging()
    import structlog  # noqa: PLC0415

    from kube_efs.telemetry.logging import configure  # noqa: PLC0415

    configure("INFO")
    structlog.get_logger(__name__).warning("tunnel-agent-crashed", status=status, again_seconds=again_seconds)


def _run(command: list[str]) -> tuple[bool, int]:
    """Run the command once; returns whether it was stopped, and its status, negative for a signal."""
    child = os.posix_spawnp(command[0], command, os.environ, setsigmask=())
    stopped, status = False, None
    while status is None:
        number = signal.sigwait(_SIGNALS)
        if number in _END_SIGNALS:
            stopped = True
            os.kill(child, number)
        # One SIGCHLD may stand for many children.
        status = _reap(child)
    return stopped, status


def _reap(child: int) -> int | None:
    """Reap all ended processes; returns the status of the child if it is among them."""
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
