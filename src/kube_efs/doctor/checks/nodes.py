"""The published status of each node's tunnel agent, and the nodes without one."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from kube_efs.doctor.checks.common import (
    agent_log,
    agent_of,
    look_at_node,
    needs_tunnels,
    nodes_with,
    pods_on,
)
from kube_efs.doctor.checks.mentions import used_with_identity
from kube_efs.doctor.facts import ClusterFacts, Facts, PublishedStatus
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, information, risk
from kube_efs.doctor.shell import Command, command
from kube_efs.doctor.times import shown, time_of
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.volumes import DRIVER
from kube_efs.tunnels.status import DENIED_REMEDY, TunnelStatus
from kube_efs.tunnels.status_config_map import REFRESH_SECONDS

_SILENT = broken(
    "agent/silent",
    "The tunnel agent of a node has not reported its state for eleven minutes, or in the first two of its"
    " pod.",
)
_PROBLEM = broken("agent/problem", "The tunnel agent of a node reports a problem.")
_DOWN = broken("tunnel/down", "A tunnel of a node does not work.")
_DENIED = risk(
    "tunnel/denied",
    "EFS lets nobody use a tunnel without identity, because of the policy of the file system.",
)
_FAILED_OVER = risk("tunnel/failed-over", "A tunnel uses a mount target that is not the nearest.")
_CERTIFICATE = broken("tunnel/certificate", "The client certificate of a tunnel has expired.")
_NO_ZONE = risk(
    "node/zone-unknown", "A node does not know its zone, so its tunnels cannot prefer a mount target."
)
_DATA_PLANE = information(
    "node/data-plane", "A node encrypts with stunnel, because its kernel cannot be used for that."
)
_NO_DRIVER = broken("driver/not-registered", "The kubelet of a node does not know the CSI driver.")

# Two regular reports, and some time for one that is late.
_SILENCE: Final = timedelta(seconds=2 * REFRESH_SECONDS + 60)
# The first report follows the first probes by up to half of their interval.
_FIRST_SILENCE: Final = timedelta(minutes=2)


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None:
        return
    statuses = cluster.statuses
    if statuses is not None:
        if cluster.nodes is not None:  # the status of a node that has ended can stay for some time
            names = {one.name for one in cluster.nodes}
            statuses = tuple(one for one in statuses if one.node in names)
            cluster = replace(cluster, statuses=statuses)
        # The agents of openshift-efs-stunnel publish no status. A tenant can use their name.
        older = OPENSHIFT_EFS_STUNNEL
        namespaces = {cluster.namespace, older.namespace}
        has_older_agents = any(
            one.name == older.tunnel and one.namespace in namespaces and not one.ours
            for one in cluster.workloads or ()
        )
        if needs_tunnels(cluster) and not has_older_agents:
            yield from _silent(facts, cluster)
        for one in statuses:
            yield from _reported(one, facts, cluster)
        yield from _denied(cluster)
    yield from _without_driver(cluster)


def _silent(facts: Facts, cluster: ClusterFacts) -> Iterator[Finding]:
    told = {one.node: one.time for one in cluster.statuses or ()}
    for node in nodes_with("tunnel", cluster):
        time = told.get(node.name)
        if node.ready and _is_late(time, facts.now, node.name, cluster):
            yield Finding(
                kind=_SILENT,
                subject=FindingSubject("Node", node.name),
                problem="its tunnel agent does not report its state",
                evidence=(f"last report at {shown(time)}" if time else "no report",),
                remedy=(
                    f"check that a pod of the DaemonSet {cluster.names.tunnel} runs there, and check its log"
                ),
                commands=_unique(pods_on(node.name, cluster), agent_log(node.name, cluster)),
            )


def _is_late(time: datetime | None, now: datetime, node: str, cluster: ClusterFacts) -> bool:
    if time is not None:
        return now - time > _SILENCE
    agent = agent_of(node, cluster)
    return agent is None or agent.created is None or now - agent.created > _FIRST_SILENCE


def _unique(*commands: Command) -> tuple[Command, ...]:
    return tuple(dict.fromkeys(commands))


def _reported(one: PublishedStatus, facts: Facts, cluster: ClusterFacts) -> Iterator[Finding]:
    if one.status is None:
        return
    subject = FindingSubject("Node", one.node)
    for problem in one.status.problems:
        yield Finding(
            kind=_PROBLEM,
            subject=subject,
            problem=problem,
            evidence=(f"reported at {shown(one.time)}" if one.time else "reported at an unknown time",),
            remedy="check the agent's log, and run the doctor on the node",
            commands=_unique(agent_log(one.node, cluster), look_at_node(one.node, cluster)),
        )
    location = one.status.location
    if location is not None and not location.zone:
        yield Finding(
            kind=_NO_ZONE,
            subject=subject,
            problem="its tunnel agent does not know the zone of the node",
            evidence=(str(location),),
            remedy=(
                "label the Node with topology.kubernetes.io/zone or set KUBE_EFS_ZONE, then restart the agent"
            ),
            commands=(command("kubectl get node {} --show-labels", one.node), agent_log(one.node, cluster)),
        )
    if one.status.data_plane_reason:
        yield Finding(
            kind=_DATA_PLANE,
            subject=subject,
            problem=f"its tunnels use {one.status.data_plane}",
            evidence=(one.status.data_plane_reason,),
            remedy=(
                "to use the kernel, load its module tls on the node (modprobe tls) and restart the agent; to"
                " use stunnel, set KUBE_EFS_DATA_PLANE to stunnel"
            ),
            commands=(agent_log(one.node, cluster),),
        )
    in_transition = facts.aws.in_transition if facts.aws else frozenset()
    for tunnel in one.status.tunnels:
        if tunnel.file_system_id not in in_transition:
            yield from _tunnel(tunnel, subject, facts.now, cluster)


def _tunnel(
    tunnel: TunnelStatus, subject: FindingSubject, now: datetime, cluster: ClusterFacts
) -> Iterator[Finding]:
    commands = _unique(look_at_node(subject.name, cluster), agent_log(subject.name, cluster))
    name = f"the tunnel of {tunnel.file_system_id} at port {tunnel.port}"
    evidence = tuple(filter(None, [tunnel.reason, f"{tunnel.connections} connections"]))
    if tunnel.has_failed and not tunnel.leaving:
        yield Finding(
            kind=_DOWN,
            subject=subject,
            problem=f"{name} is {tunnel.state}",
            evidence=evidence,
            remedy=f"run kube-efs doctor node on {subject.name}; it tries each part of the path",
            commands=commands,
            file_system=tunnel.file_system_id,
        )
    elif tunnel.failed_over:
        yield Finding(
            kind=_FAILED_OVER,
            subject=subject,
            problem=f"{name} uses {tunnel.address} in {tunnel.zone or 'another zone'}",
            evidence=evidence,
            remedy=(
                "check the mount target of the node's own zone; new connections return to it automatically"
            ),
            commands=commands,
            file_system=tunnel.file_system_id,
        )
    ends = time_of(tunnel.certificate_ends)
    if ends is not None and ends < now:
        yield Finding(
            kind=_CERTIFICATE,
            subject=subject,
            problem=f"the client certificate of {name} has expired",
            evidence=(f"at {shown(ends)}",),
            remedy="check the agent's log: credentials are not available, or the node's clock is wrong",
            commands=commands,
            file_system=tunnel.file_system_id,
        )


def _denied(cluster: ClusterFacts) -> Iterator[Finding]:
    """One finding for each file system: its policy is the same for all nodes."""
    nodes: defaultdict[str, list[str]] = defaultdict(list)
    for one in cluster.statuses or ():
        for tunnel in one.status.tunnels if one.status else ():
            if tunnel.denied and not tunnel.leaving:
                nodes[tunnel.file_system_id].append(f"{one.node}: {tunnel.reason}")
    for file_system_id, evidence in sorted(nodes.items()):
        if file_system_id in used_with_identity(cluster):
            continue  # the tunnels of its volumes have an identity
        yield Finding(
            kind=_DENIED,
            subject=FindingSubject("FileSystem", file_system_id),
            problem="its tunnel volumes cannot be mounted: EFS denies access to their tunnel",
            evidence=tuple(sorted(evidence)),
            remedy=DENIED_REMEDY,
            commands=(command("aws efs describe-file-system-policy --file-system-id {}", file_system_id),),
        )


def _without_driver(cluster: ClusterFacts) -> Iterator[Finding]:
    is_wanted = any(one.ours and one.command == "node" for one in cluster.workloads or ())
    for node in nodes_with("node", cluster) if is_wanted else ():
        if node.ready and DRIVER not in node.drivers:
            yield Finding(
                kind=_NO_DRIVER,
                subject=FindingSubject("Node", node.name),
                problem=f"its kubelet does not know {DRIVER}",
                evidence=(f"drivers: {', '.join(sorted(node.drivers)) or 'none'}",),
                remedy=(
                    f"check that a pod of the DaemonSet {cluster.names.node} runs there; is --kubelet-dir"
                    " correct?"
                ),
                commands=(pods_on(node.name, cluster), command("kubectl get csinode {} -o yaml", node.name)),
            )


TOPIC = Topic(
    check=_check,
    kinds=(_SILENT, _PROBLEM, _NO_ZONE, _DATA_PLANE, _DOWN, _DENIED, _FAILED_OVER, _CERTIFICATE, _NO_DRIVER),
)
