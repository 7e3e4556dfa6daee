"""Whether this node's tunnels work, part by part: its processes, the ports, NFS through them."""

from collections.abc import Iterator
from typing import Final

from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, risk, unchecked
from kube_efs.doctor.node_facts import NodeFacts, ProcessHealth, TunnelFacts
from kube_efs.doctor.shell import Command, Syntax, command
from kube_efs.tunnels.data_plane import DataPlaneName
from kube_efs.tunnels.status import DENIED_REMEDY

_UNREACHABLE = broken("process/unreachable", "A process of kube-efs on this node does not answer.")
_UNHEALTHY = broken("process/unhealthy", "A process of kube-efs on this node reports a problem.")
_NO_CONFIGURATION = broken(
    "stunnel/no-configuration", "There is no configuration of stunnel on this node, although it has tunnels."
)
_NOT_VISIBLE = unchecked(
    "stunnel/not-visible", "stunnel runs, but its configuration is not visible where the doctor runs."
)
_NOT_RUNNING = broken("stunnel/not-running", "stunnel does not run on this node.")
_NO_RELAY = broken("relay/not-running", "The relay of the kernel's data plane does not run on this node.")
_NOT_LISTENING = broken("port/not-listening", "Nothing listens on a tunnel's port.")
_NULL_CALL = broken("tunnel/no-nfs", "The NULL call of NFS through a tunnel gets no answer.")
_NO_ACCESS = risk("tunnel/no-access", "NFS answers through a tunnel, and EFS denies access to its clients.")
_SLOW = risk("tunnel/slow", "The NULL call of NFS through a tunnel takes more than half a second.")
_DEAD_MOUNT = broken("mount/dead-port", "A mount goes through a port that nothing listens on.")

_SLOW_SECONDS: Final = 0.5
_SHOWN: Final = 20


def _check(facts: Facts) -> Iterator[Finding]:
    node = facts.node
    if node is None:
        return
    subject = FindingSubject("Node", node.name)
    yield from (finding for one in node.processes for finding in _process(one, node, subject))
    expects_relay = node.status is not None and node.status.data_plane == DataPlaneName.KERNEL
    if node.status and expects_relay and node.status.tunnels and node.status.relay_pid is None:
        yield Finding(
            kind=_NO_RELAY,
            subject=subject,
            problem="the relay does not run",
            evidence=node.status.problems or ("the tunnel agent reports no relay",),
            remedy="check the agent's log: the agent restarts the relay and logs why this fails",
            commands=(_tail(node), _pods_here(node)),
        )
    # A node without tunnels has no configuration.
    elif node.tunnels is None and not (node.status and not node.status.tunnels):
        # A pod of the CSI driver has its own /tmp; the agent in the other pod may be well.
        is_elsewhere = node.status is not None and bool(node.status.stunnel_pid or node.status.relay_pid)
        yield Finding(
            kind=_NOT_VISIBLE if is_elsewhere else _NO_CONFIGURATION,
            subject=subject,
            problem=f"there is no {node.configuration}" + (" here" if is_elsewhere else ""),
            evidence=tuple(f"{one.url}: {one.unreachable or 'answers'}" for one in node.processes),
            remedy="run this in the tunnel agent's pod, or set STUNNEL_CONF_PATH to the agent's value",
            commands=(_pods_here(node), command("kubectl -n NAMESPACE exec POD -- kube-efs doctor node")),
        )
    if node.status and node.tunnels and not (expects_relay or node.status.stunnel_pid):
        yield Finding(
            kind=_NOT_RUNNING,
            subject=subject,
            problem="stunnel does not run",
            evidence=node.status.problems or ("the tunnel agent reports no stunnel process",),
            remedy="check the agent's log: the agent restarts stunnel and logs why this fails",
            commands=(_tail(node), _pods_here(node)),
        )
    yield from (finding for one in node.tunnels or () for finding in _tunnel(one, node, subject))
    yield from _dead_mounts(node, subject)


def _pods_here(node: NodeFacts) -> Command:
    return command("kubectl get pods --all-namespaces -o wide --field-selector spec.nodeName={}", node.name)


def _tail(node: NodeFacts) -> Command:
    """The command that shows the logs of all stunnels and of the relay."""
    return command("tail -n 50 {} {}", str(node.configuration.with_suffix("")), Syntax.ANY_LOG)


def _process(one: ProcessHealth, node: NodeFacts, subject: FindingSubject) -> Iterator[Finding]:
    if one.unreachable:
        yield Finding(
            kind=_UNREACHABLE,
            subject=subject,
            problem=f"the {one.name} does not answer",
            evidence=(f"{one.url}: {one.unreachable}",),
            remedy="check that its pod runs on this node; its port is KUBE_EFS_HEALTH_PORT",
            commands=(_pods_here(node), command("curl -s {}/healthz", one.url)),
        )
    elif one.reasons:
        yield Finding(
            kind=_UNHEALTHY,
            subject=subject,
            problem=f"the {one.name} is not healthy",
            evidence=one.reasons,
            remedy="follow its reasons; its log has more details",
            commands=(command("curl -s {}/readyz", one.url), _pods_here(node)),
        )


def _tunnel(one: TunnelFacts, node: NodeFacts, subject: FindingSubject) -> Iterator[Finding]:
    name = f"the tunnel {one.tunnel.name} at port {one.tunnel.port}"
    seconds = f"{one.null_call.seconds * 1000:.0f} ms"
    if not one.listening:
        yield Finding(
            kind=_NOT_LISTENING,
            subject=subject,
            problem=f"nothing listens at port {one.tunnel.port}, the tunnel {one.tunnel.name}",
            evidence=("the configuration of its data plane has it", _listening(node)),
            remedy="check that stunnel or the relay runs, and which program listens on the port",
            commands=(command("ss -tlnp"), _tail(node)),
        )
    elif one.null_call.is_denied:
        yield Finding(
            kind=_NO_ACCESS,
            subject=subject,
            problem=f"EFS denies access through {name}",
            evidence=(one.null_call.reason,),
            remedy=f"a tunnel on demand: check its IAM identity and access point; otherwise, {DENIED_REMEDY}",
            commands=(_tail(node),),
        )
    elif not one.null_call.ok:
        yield Finding(
            kind=_NULL_CALL,
            subject=subject,
            problem=f"NFS does not answer through {name}",
            evidence=(one.null_call.reason, f"after {seconds}"),
            remedy="check the findings about its mount targets, and the logs of stunnel and the relay",
            commands=(_tail(node),),
        )
    elif one.null_call.seconds > _SLOW_SECONDS:
        yield Finding(
            kind=_SLOW,
            subject=subject,
            problem=f"a NULL call through {name} takes {seconds}",
            evidence=(f"more than {_SLOW_SECONDS:g} s", f"mount targets {', '.join(one.tunnel.addresses)}"),
            remedy="check the node's network and load, and the file system's PercentIOLimit",
            commands=(command("uptime"), _tail(node)),
        )


def _listening(node: NodeFacts) -> str:
    if node.listening is None:
        return "the ports with listeners are not known"
    ports = ", ".join(map(str, sorted(node.listening)[:_SHOWN]))
    return f"ports with listeners: {ports or 'none'}"


def _dead_mounts(node: NodeFacts, subject: FindingSubject) -> Iterator[Finding]:
    for one in node.mounts:
        if node.listening is not None and one.port not in node.listening:
            yield Finding(
                kind=_DEAD_MOUNT,
                subject=subject,
                problem=f"{one.mount_point} is mounted through port {one.port}, where nothing listens",
                evidence=(_listening(node),),
                remedy=(
                    "restore the tunnel on the same port; processes that use the mount wait until then, and"
                    " do not end while they have data that is not yet written. If that is impossible, because"
                    " the driver of the mount is gone, restart the node"
                ),
                commands=(_tail(node), _pods_here(node)),
            )


TOPIC = Topic(
    check=_check,
    kinds=(
        _UNREACHABLE,
        _UNHEALTHY,
        _NO_CONFIGURATION,
        _NOT_VISIBLE,
        _NOT_RUNNING,
        _NO_RELAY,
        _NOT_LISTENING,
        _NULL_CALL,
        _NO_ACCESS,
        _SLOW,
        _DEAD_MOUNT,
    ),
)
