"""Findings: what is wrong, the evidence for it, and what to do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kube_efs.doctor.facts import Facts
from kube_efs.doctor.shell import Command


class Severity(StrEnum):
    """How much a finding matters. Only what is broken makes the command fail."""

    BROKEN = "broken"
    RISK = "risk"
    UNCHECKED = "unchecked"
    INFORMATION = "information"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingKind:
    """A kind of finding; ``id`` stays the same in all versions, ``meaning`` is that of the documentation."""

    id: str
    severity: Severity
    meaning: str


@dataclass(frozen=True, slots=True, order=True)
class FindingSubject:
    """The object of a finding: its kind in Kubernetes or AWS, and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A deviation from the desired state.

    ``remedy`` says in words what to do, ``commands`` are what to type for that, or to see more.
    ``file_system`` is set if only that file system of the subject, such as a node, is affected.
    """

    kind: FindingKind
    subject: FindingSubject
    problem: str
    remedy: str
    evidence: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    file_system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A check, with every kind of finding that it can give."""

    check: Callable[[Facts], Iterator[Finding]]
    kinds: tuple[FindingKind, ...]


def broken(id_: str, meaning: str) -> FindingKind:
    """A kind of finding: something does not work."""
    return FindingKind(id=id_, severity=Severity.BROKEN, meaning=meaning)


def risk(id_: str, meaning: str) -> FindingKind:
    """A kind of finding: something works less well, or stops working if something else fails."""
    return FindingKind(id=id_, severity=Severity.RISK, meaning=meaning)


def unchecked(id_: str, meaning: str) -> FindingKind:
    """A kind of finding: the doctor could not check something."""
    return FindingKind(id=id_, severity=Severity.UNCHECKED, meaning=meaning)


def information(id_: str, meaning: str) -> FindingKind:
    """A kind of finding: something that an administrator may want to know, and nothing is wrong."""
    return FindingKind(id=id_, severity=Severity.INFORMATION, meaning=meaning)
