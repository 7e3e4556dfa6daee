"""The results of a run, and the file that they are kept in."""

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import msgspec
import psutil
from bench.figures import Curve, Figure

LATEST: Final = Path(__file__).parent / "results" / "latest.json"
_GIBIBYTE: Final = 1024**3
_VERSIONS: Final = re.compile(r"^(?:stunnel|.*unning +with OpenSSL) [\d.]+", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the figures were measured on, without its name; ``stunnel`` with its OpenSSL."""

    cores: int
    memory_gib: float
    architecture: str
    kernel: str
    python: str
    system: str = ""
    stunnel: str = ""

    @classmethod
    def this(cls) -> Self:
        """This machine."""
        return cls(
            cores=os.cpu_count() or 0,
            memory_gib=round(psutil.virtual_memory().total / _GIBIBYTE, 1),
            architecture=platform.machine(),
            kernel=platform.release(),
            python=platform.python_version(),
            system=platform.freedesktop_os_release().get("PRETTY_NAME", ""),
            stunnel=_stunnel(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a row; ``failure`` says why there are not all of its figures.

    ``load`` is the load average of the minute before, which shows what else the machine had to do.
    """

    figures: tuple[Figure, ...]
    failure: str
    seconds: float
    load: float
    ended: str
    machine: Machine
    curves: tuple[Curve, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What is known of each row, by its name; ``total_seconds`` is what the last run of all of them took."""

    rows: Mapping[str, Outcome]
    total_seconds: float | None = None

    def updated(self, rows: Mapping[str, Outcome]) -> "Results":
        """These, with newer ones instead of older ones."""
        return Results(rows={**self.rows, **rows}, total_seconds=self.total_seconds)


class Clock:
    """What an outcome reports of its circumstances, from the moment that this was made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._load = os.getloadavg()[0]

    def outcome(self, measured: Sequence[Figure | Curve], failure: str) -> Outcome:
        """The outcome of a row that has just ended."""
        return Outcome(
            figures=tuple(one for one in measured if isinstance(one, Figure)),
            curves=tuple(one for one in measured if isinstance(one, Curve)),
            failure=failure,
            seconds=round(time.monotonic() - self._begun, 1),
            load=round(self._load, 1),
            ended=datetime.now(UTC).isoformat(timespec="minutes"),
            machine=Machine.this(),
        )


def _stunnel() -> str:
    """The versions of the machine's stunnel and of its OpenSSL; empty without stunnel."""
    try:
        done = subprocess.run(
            ("stunnel", "-version"), capture_output=True, text=True, timeout=10, check=False
        )
    except OSError:
        return ""
    return " with ".join(" ".join(line.split()[-2:]) for line in _VERSIONS.findall(done.stderr))


def read_results(path: Path = LATEST) -> Results:
    """The results in the file; none when there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results(rows={})


def write_results(results: Results, path: Path = LATEST) -> None:
    """Replace the file."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
