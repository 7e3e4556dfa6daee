"""Whether this node's tunnels work, part by part: its processes, the ports, NFS through them."""

from collections.abc import Iterator
from typing import Final

from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, Subject, Topic, broken, risk
from kube_efs.doctor.node_facts import NodeFacts, ProcessHealth, TunnelFacts

_UNREACHABLE = broken("process/unreachable", "A process of kube-efs on this node does not answer.")
_UNHEALTHY = broken("process/unhealthy", "A process of kube-efs on this node says that something is wrong.")
_NO_CONFIGURATION = broken("stunnel/no-configuration", "There is no `stunnel.conf` on this node.")
_NOT_RUNNING = broken("stunnel/not-running", "stunnel does not run on this node.")
_NOT_LISTENING = broken("port/not-listening", "Nothing listens on a tunnel's port.")
_NULL_CALL = broken("tunnel/no-nfs", "The NULL call of NFS through a tunnel gets no answer.")
_SLOW = risk("tunnel/slow", "The NULL call of NFS through a tunnel takes more than half a second.")
_DEAD_MOUNT = broken("mount/dead-port", "A mount goes through a port that nothing listens on.")

_SLOW_SECONDS: Final = 0.5


def _check(facts: Facts) -> Iterator[Finding]:
    node = facts.node
    if node is None:
        return
    subject = Subject("Node", node.name)
    yield from (finding for one in node.processes for finding in _process(one, subject))
    if node.tunnels is None:
        yield Finding(
            kind=_NO_CONFIGURATION,
            subject=subject,
            problem=f"there is no {node.configuration}",
            remedy="run this where the tunnel agent runs (kubectl exec), or set STUNNEL_CONF_PATH as there",
        )
    if node.status is not None and node.status.stunnel_pid is None and node.tunnels:
        yield Finding(
            kind=_NOT_RUNNING,
            subject=subject,
            problem="stunnel does not run",
            evidence=node.status.problems,
            remedy="look at the agent's log: it starts stunnel again and says why that fails",
        )
    yield from (finding for one in node.tunnels or () for finding in _tunnel(one, subject))
    yield from _dead_mounts(node, subject)


def _process(one: ProcessHealth, subject: Subject) -> Iterator[Finding]:
    if one.unreachable:
        yield Finding(
            kind=_UNREACHABLE,
            subject=subject,
            problem=f"the {one.name} does not answer",
            evidence=(f"{one.url}: {one.unreachable}",),
            remedy="see that its pod runs on this node; its port is KUBE_EFS_HEALTH_PORT",
        )
    elif one.reasons:
        yield Finding(
            kind=_UNHEALTHY,
            subject=subject,
            problem=f"the {one.name} is not well",
            evidence=one.reasons,
            remedy="do what it says; its log has more",
        )


def _tunnel(one: TunnelFacts, subject: Subject) -> Iterator[Finding]:
    name = f"the tunnel {one.tunnel.name} at port {one.tunnel.port}"
    seconds = f"{one.null_call.seconds * 1000:.0f} ms"
    if not one.listening:
        yield Finding(
            kind=_NOT_LISTENING,
            subject=subject,
            problem=f"nothing listens at port {one.tunnel.port}, the tunnel {one.tunnel.name}",
            remedy="see that stunnel runs; ss -tlnp shows who listens where",
        )
    elif not one.null_call.ok:
        yield Finding(
            kind=_NULL_CALL,
            subject=subject,
            problem=f"NFS does not answer through {name}",
            evidence=(one.null_call.reason, f"after {seconds}"),
            remedy="look at the findings about its mount targets; stunnel's log is beside its configuration",
        )
    elif one.null_call.seconds > _SLOW_SECONDS:
        yield Finding(
            kind=_SLOW,
            subject=subject,
            problem=f"a NULL call through {name} takes {seconds}",
            remedy="look at the node's network and load, and at the file system's PercentIOLimit",
        )


def _dead_mounts(node: NodeFacts, subject: Subject) -> Iterator[Finding]:
    for one in node.mounts:
        if node.listening is not None and one.port not in node.listening:
            yield Finding(
                kind=_DEAD_MOUNT,
                subject=subject,
                problem=f"{one.mount_point} is mounted through port {one.port}, where nothing listens",
                remedy="bring the tunnel back with the same port; who reads there waits until then",
            )


TOPIC = Topic(
    check=_check,
    kinds=(
        _UNREACHABLE,
        _UNHEALTHY,
        _NO_CONFIGURATION,
        _NOT_RUNNING,
        _NOT_LISTENING,
        _NULL_CALL,
        _SLOW,
        _DEAD_MOUNT,
    ),
)
