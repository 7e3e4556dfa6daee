"""Findings for users and for programs.

Events come from any program and may contain secrets, so all texts go through ``redacted_text``.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from kube_efs.doctor.diagnosis import count
from kube_efs.doctor.findings import Finding, Severity
from kube_efs.doctor.node_facts import NodeFacts, TunnelFacts
from kube_efs.doctor.redaction import redacted_text
from kube_efs.model.visible import visible
from kube_efs.report.tables import line_of, table_of, text_of

_COLOURS = {
    Severity.BROKEN: "bold red",
    Severity.RISK: "yellow",
    Severity.UNCHECKED: "dim",
    Severity.INFORMATION: "dim",
}


def render_findings(findings: tuple[Finding, ...], *, what: str) -> RenderableType:
    """A table of problems, evidence and remedies; the commands; a summary line."""
    if not findings:
        return line_of(f"No problems were found in {what}.", style="green")
    columns = ["severity", "finding", "problem", "remedy"]
    table = table_of(f"Findings about {what}", columns, map(_row, findings), has_lines=True)
    counts = count(findings)
    summary = ", ".join(f"{counts[one]} {one}" for one in Severity if counts[one])
    return Group(table, *_commands(findings), Text(f"{summary}."))


def _commands(findings: tuple[Finding, ...]) -> Iterator[Text]:
    """The commands, below the table, so that users can copy whole lines."""
    about: dict[str, str] = {}
    for one in findings:
        for command in one.commands:
            line = str(command.changed(_on_one_line))
            about.setdefault(line, f"{one.kind.id}, {one.subject}")
    for heading, commands in groupby(about, key=lambda command: about[command]):
        # Administrators copy these lines: no text may begin another one.
        comment = visible(f"# {heading}", may_have_lines=False)
        yield Text(comment, style="dim", no_wrap=True, overflow="ignore")
        yield from (Text(command, no_wrap=True, overflow="ignore") for command in commands)


def _on_one_line(argument: str) -> str:
    return visible(redacted_text(argument), may_have_lines=False)


def _row(one: Finding) -> tuple[Text | str, ...]:
    wrong = text_of(redacted_text(f"{one.subject}: {one.problem}"))
    for line in one.evidence:
        wrong.append(text_of(f"\n- {redacted_text(line)}", style="dim"))
    severity = Text(one.kind.severity, style=_COLOURS[one.kind.severity])
    return severity, one.kind.id, wrong, redacted_text(one.remedy)


def render_tunnels(node: NodeFacts) -> RenderableType:
    """The location of a node, and measurements: each tunnel, and the handshakes with its mount targets."""
    rows = (
        (
            one.tunnel.name,
            str(one.tunnel.port),
            f"{one.null_call.seconds * 1000:.1f} ms" if one.null_call.ok else one.null_call.reason,
            "\n".join(f"{shake.address}: {shake.outcome}" for shake in one.handshakes),
        )
        for one in node.tunnels or ()
    )
    table = table_of("Tunnels", ["tunnel", "port", "NULL call of NFS", "TLS handshakes"], rows)
    location = node.status.location if node.status else None
    return Group(line_of(redacted_text(f"{node.name}: {location}")), table) if location else table


def to_json(findings: Iterable[Finding], *, what: str, now: datetime, node: NodeFacts | None = None) -> str:
    """The same as one JSON document, for a node with the measurements."""
    document: dict[str, object] = {
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
                "commands": [str(line.changed(redacted_text)) for line in one.commands],
            }
            for one in findings
        ],
    }
    if node is not None:
        document["tunnels"] = [_measured(one) for one in node.tunnels or ()]
        location = node.status.location if node.status else None
        document["location"] = asdict(location) if location else None
    return json.dumps(document, indent=2)


def _measured(one: TunnelFacts) -> dict[str, object]:
    return {
        "name": one.tunnel.name,
        "port": one.tunnel.port,
        "null_call_seconds": one.null_call.seconds if one.null_call.ok else None,
        "handshakes": {shake.address: shake.outcome for shake in one.handshakes},
    }
