"""Findings for people, and for programs.

Events are anybody's words and may hold anybody's secrets, so all texts go through ``redacted_text``.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version

from rich.console import Group, RenderableType
from rich.text import Text

from kube_efs.doctor.diagnosis import count
from kube_efs.doctor.findings import Finding, Severity
from kube_efs.doctor.redaction import redacted_text
from kube_efs.report.tables import table_of

_COLOURS = {Severity.BROKEN: "bold red", Severity.RISK: "yellow", Severity.UNCHECKED: "dim"}


def render_findings(findings: tuple[Finding, ...], *, what: str) -> RenderableType:
    """A table with what is wrong, what shows it and what to do, and one line that sums it up."""
    if not findings:
        return Text(f"Nothing wrong was found with {what}.", style="green")
    columns = ["", "finding", "what is wrong", "what to do"]
    table = table_of(f"Findings about {what}", columns, map(_row, findings))
    table.show_lines = True
    counts = count(findings)
    summary = ", ".join(f"{counts[one]} {one}" for one in Severity if counts[one])
    return Group(table, Text(f"{summary}."))


def _row(one: Finding) -> tuple[Text | str, ...]:
    wrong = Text(redacted_text(f"{one.subject}: {one.problem}"))
    for line in one.evidence:
        wrong.append(f"\n- {redacted_text(line)}", style="dim")
    severity = Text(one.kind.severity, style=_COLOURS[one.kind.severity])
    return severity, one.kind.id, wrong, redacted_text(one.remedy)


def to_json(findings: Iterable[Finding], *, what: str, now: datetime) -> str:
    """The same as one JSON document."""
    document = {
        "about": what,
        "time": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "version": version("kube-efs"),
        "findings": [
            {
                "id": one.kind.id,
                "severity": one.kind.severity,
                "subject": {"kind": one.subject.kind, "name": one.subject.name},
                "problem": redacted_text(one.problem),
                "evidence": [redacted_text(line) for line in one.evidence],
                "remedy": redacted_text(one.remedy),
            }
            for one in findings
        ],
    }
    return json.dumps(document, indent=2)
