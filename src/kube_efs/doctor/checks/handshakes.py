"""Whether mount targets can be reached from this node, and have the expected identity."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingKind, FindingSubject, Topic, broken, risk
from kube_efs.doctor.node_facts import Handshake, HandshakeOutcome, TunnelFacts
from kube_efs.doctor.shell import Command, Syntax, command
from kube_efs.doctor.times import shown
from kube_efs.tunnels.mount_targets import NFS_PORT

_CA_FILE = broken("tls/authorities", "The file of certificate authorities is not usable.")
_NOT_CONNECTED = risk("mount-target/unreachable", "A mount target accepts no connection from this node.")
_NAME = broken("tls/name", "A mount target's certificate is for another name.")
_EXPIRED = broken("tls/expired", "A mount target's certificate is not valid at this time.")
_NOT_TRUSTED = broken("tls/not-trusted", "No known authority has signed a mount target's certificate.")
_HANDSHAKE = broken("tls/handshake", "The TLS handshake with a mount target fails.")

_BY_OUTCOME: Final[Mapping[HandshakeOutcome, tuple[FindingKind, str]]] = {
    HandshakeOutcome.NOT_CONNECTED: (
        _NOT_CONNECTED,
        "allow TCP 2049 from this node in the mount target's security group and the subnets' network ACLs",
    ),
    HandshakeOutcome.WRONG_NAME: (
        _NAME,
        "check AWS_REGION and EFS_DNS_SUFFIX of the tunnel agent, and which server answers at that address",
    ),
    HandshakeOutcome.EXPIRED: (_EXPIRED, "check this node's clock"),
    HandshakeOutcome.NOT_TRUSTED: (
        _NOT_TRUSTED,
        "check KUBE_EFS_CA_FILE, and whether a proxy on the path intercepts TLS",
    ),
    HandshakeOutcome.FAILED: (_HANDSHAKE, "check whether a firewall on the path blocks some of the traffic"),
}


def _check(facts: Facts) -> Iterator[Finding]:
    if facts.node is None:
        return
    subject = FindingSubject("Node", facts.node.name)
    for file in facts.node.ca_files:
        if file.problem:
            yield Finding(
                kind=_CA_FILE,
                subject=subject,
                problem=f"{file.path} cannot be used",
                evidence=(file.problem,),
                remedy="install the certificate authorities of the mount targets, in PEM form, at this path",
                commands=(command("openssl x509 -noout -subject -in {}", str(file.path)),),
            )
    for tunnel in facts.node.tunnels or ():
        for one in tunnel.handshakes:
            if one.outcome is not HandshakeOutcome.DONE:
                yield _failed(tunnel, one, subject, facts.now)


def _failed(tunnel: TunnelFacts, one: Handshake, subject: FindingSubject, now: datetime) -> Finding:
    kind, remedy = _BY_OUTCOME[one.outcome]
    commands = _commands(tunnel, one)
    clock = ""
    if kind is _EXPIRED:
        clock, commands = f"this node's clock says {shown(now)}", (command("date -u"), *commands)
    expected = f"expected name {tunnel.tunnel.check_host}" if one.names else ""
    names = f"names in the certificate: {', '.join(one.names)}" if one.names else ""
    return Finding(
        kind=kind,
        subject=subject,
        problem=f"mount target {one.address} of {tunnel.tunnel.name}: {one.outcome}",
        evidence=tuple(filter(None, [one.reason, expected, names, clock])),
        remedy=remedy,
        commands=commands,
    )


def _commands(tunnel: TunnelFacts, one: Handshake) -> tuple[Command, ...]:
    """The command that repeats the handshake, and shows the whole certificate."""
    host = f"[{one.address}]" if ":" in one.address else one.address
    service = tunnel.tunnel
    words = "openssl s_client -connect {}:{} -servername {} -CAfile {} {}"
    values = (host, str(NFS_PORT), service.check_host, str(service.ca_file))
    return (command(words, *values, Syntax.NO_INPUT),)


TOPIC = Topic(check=_check, kinds=(_CA_FILE, _NOT_CONNECTED, _NAME, _EXPIRED, _NOT_TRUSTED, _HANDSHAKE))
