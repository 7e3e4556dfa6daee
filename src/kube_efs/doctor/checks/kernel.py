"""The kernel's messages about NFS on this node, and whether SELinux lets containers use NFS."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, risk
from kube_efs.doctor.shell import Syntax, command
from kube_efs.model.volumes import LOOPBACK

_NOT_RESPONDING = broken("kernel/not-responding", "The kernel waits for an NFS server.")
_RESPONDS_AGAIN = risk(
    "kernel/was-not-responding", ("The kernel waited for an NFS server, which responds again.")
)
_BOOLEAN = broken("selinux/boolean", "SELinux does not allow containers to use NFS.")

# net/sunrpc/clnt.c of Linux; "timed out" is of soft mounts, whose readers get errors.
_MESSAGE: Final = re.compile(
    r"\b(?:nfs4?|rpc): server (?P<server>\S+) (?P<state>not responding|OK)", re.IGNORECASE
)
_SHOWN: Final = 3


def _check(facts: Facts) -> Iterator[Finding]:
    node = facts.node
    if node is None:
        return
    subject = FindingSubject("Node", node.name)
    through_tunnels = bool(node.tunnels) and all(one.null_call.ok for one in node.tunnels or ())
    answering = frozenset({LOOPBACK} if through_tunnels else ())
    yield from _servers(node.kernel or (), answering, subject)
    for name, is_on in (node.booleans or {}).items():
        if not is_on:
            yield Finding(
                kind=_BOOLEAN,
                subject=subject,
                problem=f"SELinux is enforced and its boolean {name} is off",
                evidence=(f"{name} --> off",),
                remedy="allow containers to use NFS on every node that mounts volumes",
                commands=(command("setsebool -P {} 1", name),),
            )


def _servers(lines: Sequence[str], answering: Collection[str], subject: FindingSubject) -> Iterator[Finding]:
    """The log is older than the calls of this check: a server that answered them is available again."""
    told: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    for line in lines:
        if match := _MESSAGE.search(line):
            told.setdefault(match["server"], []).append(line)
            last[match["server"]] = match["state"]
    for server, state in last.items():
        waits = state != "OK" and server not in answering
        yield Finding(
            kind=_NOT_RESPONDING if waits else _RESPONDS_AGAIN,
            subject=subject,
            problem=f"NFS server {server} {'does not respond' if waits else 'did not respond for a time'}",
            evidence=tuple(told[server][-_SHOWN:]),
            remedy=(
                "restore its tunnel on the same port; processes that read from the mount wait until then"
                if waits
                else "check the tunnel agent's log of that time"
            ),
            commands=(command("dmesg --time-format iso {} grep -i nfs", Syntax.PIPE),),
        )


TOPIC = Topic(check=_check, kinds=(_NOT_RESPONDING, _RESPONDS_AGAIN, _BOOLEAN))
