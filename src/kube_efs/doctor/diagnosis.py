"""Computes findings from facts. The same facts always give the same findings in the same order."""

from collections import Counter
from collections.abc import Mapping

from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, Severity
from kube_efs.doctor.registry import TOPICS
from kube_efs.doctor.scope import concerns

_ORDER = {severity: number for number, severity in enumerate(Severity)}


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Every finding, broken things first; for a claim, only its findings."""
    found = [finding for topic in TOPICS for finding in topic.check(facts)]
    if facts.claim and facts.cluster is not None:
        found = [one for one in found if concerns(one, facts.claim, facts.cluster)]
    return tuple(sorted(found, key=lambda one: _ORDER[one.kind.severity]))


def count(findings: tuple[Finding, ...]) -> Mapping[Severity, int]:
    """The number of findings of each severity."""
    return Counter(one.kind.severity for one in findings)


def is_broken(findings: tuple[Finding, ...]) -> bool:
    """Whether any finding is broken."""
    return count(findings)[Severity.BROKEN] > 0
