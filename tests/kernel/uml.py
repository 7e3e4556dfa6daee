"""User Mode Linux guests: a separate kernel for scenarios, with this machine's root directory, read-only."""

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel.results import Result, read_results

from kube_efs.tunnels.data_plane import DataPlaneName

KERNEL = "linux.uml"
_PROJECT = Path(__file__).parents[2]
_BOOT = Path(__file__).with_name("boot")
_XSTATE = Path(__file__).with_name("host") / "xstate.c"
_CPUS = Path("/proc/cpuinfo")
_MEMORY = "mem=2G"
_LONGEST_TAIL = 4000
_BUILD_SECONDS = 60.0
_NEEDED = (KERNEL, "modprobe", "mount.nfs4", "stunnel", "ganesha.nfsd", "prometheus")
_FOLDERS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def what_is_missing() -> str:
    """The reason why this machine cannot run guests; empty if it can."""
    missing = [program for program in _NEEDED if shutil.which(program, path=_FOLDERS) is None]
    if missing:
        return f"{', '.join(missing)} cannot be found; scripts/install-programs kernel installs them"
    return "" if os.geteuid() == 0 else "the NFS server needs root"


def kernel_environment() -> dict[str, str]:
    """The variables of the process that is a guest's kernel; builds what it needs on processors with AMX."""
    if " amx_tile " not in _CPUS.read_text():
        return dict(os.environ)
    return {**os.environ, "LD_PRELOAD": str(build_xstate(_PROJECT / ".cache" / "kernel"))}


def build_xstate(folder: Path) -> Path:
    """The library of ``host/xstate.c`` in a directory; guests that start at the same time may build it."""
    library = folder / f"xstate-{hashlib.sha256(_XSTATE.read_bytes()).hexdigest()[:12]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Threads build at the same time, too: each has a directory of its own, not a name made of its pid.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            built = Path(own, library.name)
            command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(built), str(_XSTATE)]
            subprocess.run(command, check=True, timeout=_BUILD_SECONDS)
            built.replace(library)
    return library


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A guest with scenarios of a module on nodes with a data plane; ``folder`` gets all its output.

    ``environment`` are variables of its processes, whose values have no spaces.
    """

    module: str
    scenarios: tuple[str, ...]
    folder: Path
    data_plane: DataPlaneName = DataPlaneName.STUNNEL
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *, seconds: float) -> dict[str, Result]:
        """The results of all scenarios, after the guest and its processes have ended."""
        self.folder.mkdir(parents=True)
        with (self.folder / "console.log").open("wb") as console:
            process = subprocess.Popen(
                self._command(),
                env=kernel_environment(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # a guest's processes are the host's, too
            )
            try:
                process.wait(seconds)
                ending = f"ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                ending = f"had to be ended after {seconds:g} s"
            finally:
                _kill_group(process)
        found = read_results(self.folder / "results.jsonl")
        return {name: found.get(name) or self._nothing(name, ending) for name in self.scenarios}

    def log(self, scenario: str) -> str:
        """The end of the logs of a scenario and of the guest."""
        files = [*sorted(self.folder.glob(f"{scenario}/*")), *sorted(self.folder.glob("*.log"))]
        return "\n".join(f"--- {file}\n{_tail(file)}" for file in files if file.is_file())

    def _command(self) -> list[str]:
        kernel = ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", _MEMORY, f"init={_BOOT}"]
        console = ["con=null", "con0=fd:0,fd:1", "quiet"]
        arguments = [str(_PROJECT), str(self.folder), self.module, ",".join(self.scenarios), self.data_plane]
        # The kernel gives what it does not know itself to its first process.
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return [KERNEL, *kernel, *console, *variables, "--", *arguments]

    @staticmethod
    def _nothing(name: str, ending: str) -> Result:
        return Result(scenario=name, seconds=0.0, error=f"The guest {ending} and did not report a result.")


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(file: Path) -> str:
    return file.read_bytes()[-_LONGEST_TAIL:].decode(errors="replace")
