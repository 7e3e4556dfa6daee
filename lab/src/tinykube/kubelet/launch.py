"""How the launcher must start one container.

The launcher is a program of its own, started for every container: this module and those that it imports use
only the standard library, so that it is there within milliseconds.
"""

import signal
from dataclasses import dataclass

# To the launcher: end all processes of the container at once. SIGTERM asks its main process to end.
KILL_SIGNAL = signal.SIGUSR1
START_FAILED_CODE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or directory of the machine, and where the container sees it.

    ``shares_mounts`` passes mounts below it on to the machine, and those of the machine to the container:
    it must be a shared mount then. ``for_all`` lets every user of the container come to it.
    """

    source: str
    target: str
    read_only: bool = False
    shares_mounts: bool = False
    for_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A container's main process and its surroundings.

    ``scratch`` is an existing directory of the machine over which the container's private memory file
    system is mounted, which takes everything it writes outside its binds. ``hidden`` is a directory whose
    mounts the container does not see. Binds are made in their order.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    scratch: str
    hidden: str
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    read_only_root: bool = False
    binds: tuple[Bind, ...] = ()
