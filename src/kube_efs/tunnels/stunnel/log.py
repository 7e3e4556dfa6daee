"""stunnel's log: following it, and what it says about a configuration and each service's connections.

A line is ``2026.11.21 08:02:05 LOG5[17]: text``: level (syslog's numbers) and connection. Before stunnel
has read its configuration it is ``[!] text``. The agent reads both, since the log is also stunnel's
standard error.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kube_efs.tunnels.data_plane import ServiceFacts
from kube_efs.tunnels.files import limit_log
from kube_efs.tunnels.stunnel.configuration import section_at

_LINE = re.compile(r"(?:\S+ \S+ LOG(?P<level>\d)\[(?P<thread>[\w-]+)\]: |\[(?P<sign>.)\] )(?P<text>.*)")
_LEVEL_OF_SIGN = {"!": 3, ":": 4, ".": 5}
_DEBUG = 7
_MOST_CONNECTIONS = 10_000
_ACCEPTED = re.compile(r"Service \[(?P<service>[^\]]+)\] accepted connection from ")
_CONNECTED = re.compile(r"s_connect: connected (?P<address>\S+):\d+$")
_PEER = re.compile(r"Certificate accepted at depth=0: (?P<peer>.*)")
_CIPHER = re.compile(r"(?P<version>TLSv[\d.]+) ciphersuite: (?P<cipher>\S+)")
_ENDED = re.compile(r"Connection (closed|reset)\b.*: \d+ byte")
_WARNING = 4
_READING = "Reading configuration from file "
_FAILED = "Configuration failed"
_BOUND = re.compile(r"Service \[(?P<service>[^\]]+)\] \(FD=\d+\) bound to ")
_NOT_BOUND = re.compile(r"Binding service \[(?P<service>[^\]]+)\] failed")
_AT_LINE = re.compile(r".*?:(?P<line>\d+): \"")
_IN_SERVICE = re.compile(r"Service \[(?P<service>[^\]]+)\]: ")
_ERROR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line taken apart; ``thread`` is the connection's number, ``ui`` for stunnel itself."""

    level: int
    thread: str
    text: str


def parse_line(line: str) -> LogLine | None:
    """The parts of a line; None when it is none of stunnel's."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    level = int(found["level"]) if found["level"] else _LEVEL_OF_SIGN.get(found["sign"], _DEBUG)
    return LogLine(level=level, thread=found["thread"] or "ui", text=found["text"])


class LogFollower:
    """Reads what is new in a log that is appended to, and cuts it when it has grown."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._rest = b""
        self._offset = self._size()

    def read(self) -> tuple[LogLine, ...]:
        """The complete lines since the last call; lines from before the creation are left out."""
        size = self._size()
        if size < self._offset:
            self._offset, self._rest = 0, b""
        if size == self._offset:
            return ()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            found = file.read()
        self._offset += len(found)
        *lines, self._rest = (self._rest + found).split(b"\n")
        parsed = (parse_line(line.decode("utf-8", "replace")) for line in lines)
        return tuple(line for line in parsed if line is not None)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def cut(self) -> None:
        """Move a log that was too long at the last reading to a second file."""
        if self._offset > self._size_bytes and limit_log(self._path, self._size_bytes):
            self._offset, self._rest = 0, b""


@dataclass(frozen=True, slots=True)
class Loaded:
    """All services listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloadable:
    """stunnel refused the file: its own text, and the section that it names as ``culprit``, if any."""

    reason: str
    culprit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbindable:
    """stunnel could not bind a service's port. In this state it listens on no port."""

    culprit: str


Outcome = Loaded | Unloadable | Unbindable


@dataclass(slots=True)
class LoadMonitor:
    """Reads the log of one start or reload; ``outcome`` is None until it is clear.

    stunnel logs that it reads the file. Then it logs either errors and "Configuration failed", or a line for
    each port that it has bound. "Configuration successful" comes before the ports and therefore proves
    nothing: only a line for every service does. An error that names a section or a line of the file comes
    before the line that ends the load, so errors are kept until then. Lines before the first one belong to an
    earlier load.

    ``configuration`` is the text that was written, ``sections`` the services in it.
    """

    configuration: str
    sections: Collection[str]
    outcome: Outcome | None = None
    _bound: set[str] = field(default_factory=set)
    _errors: list[str] = field(default_factory=list)

    def read(self, lines: Iterable[LogLine]) -> None:
        """Read further lines; those after the outcome are ignored."""
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
        return Unloadable(reason="; ".join(self._errors) or "stunnel ended without a message")

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


_NO_FACTS = ServiceFacts()


@dataclass(slots=True)
class _Connection:
    service: str
    address: str = ""
    peer: str = ""
    problem: str = ""


class ConnectionLog:
    """Remembers from the logs of all stunnels how each service's connections went."""

    def __init__(self) -> None:
        # Each stunnel numbers its threads from 0.
        self._connections: dict[tuple[Path, str], _Connection] = {}
        self._facts: dict[str, ServiceFacts] = {}

    def facts(self, service: str) -> ServiceFacts:
        """What is known about the service; all empty when it has had no connection."""
        return self._facts.get(service, _NO_FACTS)

    def keep_only(self, services: Collection[str]) -> None:
        """Remove the facts about all other services."""
        for name in self._facts.keys() - services:
            del self._facts[name]

    def feed(self, path: Path, lines: Iterable[LogLine]) -> None:
        """Read further lines of the log at this path, in their order."""
        for line in lines:
            thread = path, line.thread
            if accepted := _ACCEPTED.match(line.text):
                self._add(thread, _Connection(service=accepted["service"]))
            elif connection := self._connections.get(thread):
                self._follow(line, connection)
                if _ENDED.match(line.text):
                    del self._connections[thread]

    def _add(self, thread: tuple[Path, str], connection: _Connection) -> None:
        self._connections[thread] = connection
        if len(self._connections) > _MOST_CONNECTIONS:
            del self._connections[next(iter(self._connections))]

    def _follow(self, line: LogLine, connection: _Connection) -> None:
        if found := _CONNECTED.match(line.text):
            connection.address, connection.problem = found["address"], ""
        elif found := _PEER.match(line.text):
            connection.peer = found["peer"]
        elif found := _CIPHER.match(line.text):
            self._succeeded(connection, found["version"], found["cipher"])
        elif _ENDED.match(line.text):
            self._ended(connection)
        elif line.level <= _WARNING:
            connection.problem = _explain(line.text, connection.problem)

    def _succeeded(self, connection: _Connection, version: str, cipher: str) -> None:
        self._facts[connection.service] = ServiceFacts(
            address=connection.address, tls_version=version, cipher=cipher, peer=connection.peer
        )
        connection.problem = ""

    def _ended(self, connection: _Connection) -> None:
        if connection.problem:
            known = self.facts(connection.service)
            self._facts[connection.service] = replace(known, reason=connection.problem)


_WRONG_NAME = "the server's certificate is for another name"
_UNTRUSTED = "the server's certificate is not trusted"
# stunnel's text, and what to say about it: `known` is what earlier lines of the connection said.
_EXPLANATIONS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = (
    (
        re.compile(r"s_connect: connect (\S+):\d+: (.*?)(?: \(\d+\))?$"),
        lambda found, known: _also(known, f"{found[1]}: {found[2].lower()}"),
    ),
    (
        re.compile(r"s_connect: s_poll_wait (\S+):\d+: TIMEOUTconnect exceeded"),
        lambda found, known: _also(known, f"{found[1]}: no connection in time"),
    ),
    (re.compile(r"CERT: Subject checks failed$"), lambda _found, _known: _WRONG_NAME),
    (re.compile(r"CERT: Pre-verification error: (.*)"), lambda found, _known: f"{_UNTRUSTED}: {found[1]}"),
    (
        re.compile(r"Rejected by CERT at depth=\d+: (.*)"),
        lambda found, known: (
            f"{known} ({found[1]})" if known.startswith((_WRONG_NAME, _UNTRUSTED)) else known
        ),
    ),
    (
        re.compile(r".*TIMEOUTbusy exceeded"),
        lambda _found, known: known or "the server does not answer the TLS handshake",
    ),
    (
        re.compile(r"SSL_connect: (?:.*:)?([^:]+)$"),
        lambda found, known: known or f"TLS failed: {found[1].strip()}",
    ),
)


def _also(known: str, problem: str) -> str:
    if not known:
        return problem
    return known if problem in known else f"{known}; {problem}"


def _explain(text: str, known: str) -> str:
    """The problem as text; a line without new information does not change it."""
    for pattern, explanation in _EXPLANATIONS:
        if found := pattern.match(text):
            return explanation(found, known)
    return known
