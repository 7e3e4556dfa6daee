"""Whether stunnel took its configuration, read from its log."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from kube_efs.tunnels.stunnel.configuration import section_at
from kube_efs.tunnels.stunnel.log import LogLine

_READING = "Reading configuration from file "
_FAILED = "Configuration failed"
_BOUND = re.compile(r"Service \[(?P<service>[^\]]+)\] \(FD=\d+\) bound to ")
_NOT_BOUND = re.compile(r"Binding service \[(?P<service>[^\]]+)\] failed")
_AT_LINE = re.compile(r".*?:(?P<line>\d+): \"")
_IN_SERVICE = re.compile(r"Service \[(?P<service>[^\]]+)\]: ")
_ERROR = 3


@dataclass(frozen=True, slots=True)
class Loaded:
    """All services listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloadable:
    """stunnel refused the file, in its own words; ``culprit`` is the section it is about, if it says so."""

    reason: str
    culprit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbindable:
    """A service's port could not be had. In this state stunnel listens on none of them."""

    culprit: str


Outcome = Loaded | Unloadable | Unbindable


@dataclass(slots=True)
class Judge:
    """Reads the log of one start or reload; ``outcome`` is None until it is clear.

    ``configuration`` is the text that was written, ``sections`` the services in it.
    """

    configuration: str
    sections: Collection[str]
    outcome: Outcome | None = None
    _bound: set[str] = field(default_factory=set)
    _errors: list[str] = field(default_factory=list)

    def read(self, lines: Iterable[LogLine]) -> None:
        """Take in further lines; what comes after the outcome is of no interest."""
        for line in lines:
            if self.outcome is None:
                self._read(line)

    def _read(self, line: LogLine) -> None:
        if line.text.startswith(_READING):
            self._bound.clear()
            self._errors.clear()
        elif found := _BOUND.match(line.text):
            self._bound.add(found["service"])
            self.outcome = Loaded() if self._bound >= set(self.sections) else None
        elif found := _NOT_BOUND.match(line.text):
            self.outcome = Unbindable(culprit=found["service"])
        elif line.text == _FAILED:
            self.outcome = self._unloadable()
        elif line.level <= _ERROR and line.thread == "ui":
            self._errors.append(line.text)

    def ended(self) -> Unloadable:
        """The outcome when stunnel has ended without one."""
        return Unloadable(reason="; ".join(self._errors) or "stunnel ended without a word")

    def _unloadable(self) -> Unloadable:
        culprits = (self._culprit(error) for error in self._errors)
        culprit = next((name for name in culprits if name is not None), None)
        return Unloadable(reason="; ".join(self._errors) or _FAILED, culprit=culprit)

    def _culprit(self, error: str) -> str | None:
        if found := _IN_SERVICE.match(error):
            return found["service"]
        if found := _AT_LINE.match(error):
            return section_at(self.configuration, int(found["line"]))
        return None
