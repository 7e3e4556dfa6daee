"""Whether kube-efs itself runs: its workloads, leader and versions; and remains of older systems."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from kube_efs.doctor.checks.common import controller_log, controllers, pods_of
from kube_efs.doctor.facts import ClusterFacts, Facts, LeaseFacts, PodFacts, Workload
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, risk
from kube_efs.doctor.shell import Command, command
from kube_efs.doctor.times import shown
from kube_efs.model.names import NameSet
from kube_efs.model.volumes import DRIVER
from kube_efs.settings.controller import DEFAULT_LEASE

_NOT_READY = broken("workload/not-ready", "Pods of kube-efs do not run, or are not ready.")
_RESTARTS = risk("workload/restarts", "A pod of kube-efs restarted more than a few times.")
_NO_LEADER = broken("controller/no-leader", "No controller holds the Lease, so no claim is served.")
_DEGRADED = broken("operator/degraded", "The operator reports that its installation is degraded.")
_SKEW = risk("version/skew", "The processes of kube-efs run from different images.")
_SECOND = broken("installation/second", "The tunnels of two installations use the same ports of the nodes.")
_LEFT_OVER = risk("installation/left-over", "The ConfigMap of a removed installation remains.")
_OLDER = risk("version/older-system", "An older EFS driver, provisioner or operator still exists.")

_FEW_RESTARTS: Final = 3
_SHOWN: Final = 10
# A leader that has just lost touch is followed by another within one more duration.
_MISSED_RENEWALS: Final = 2
_STUNNEL, _PROVISIONER = "openshift-efs-stunnel", "efs-provisioner"
_CHART, _COMMUNITY, _SUPPORTED = "aws-efs-csi-driver", "aws-efs-operator", "aws-efs-csi-driver-operator"
OLDER_SYSTEMS: Final = MappingProxyType(
    {
        "efs-manager": _STUNNEL,
        "efs-stunnel": _STUNNEL,
        "efs-provisioner": _PROVISIONER,
        "efs-csi-controller": _CHART,
        "efs-csi-node": _CHART,
        "aws-efs-operator": _COMMUNITY,
        "aws-efs-csi-driver-operator": _SUPPORTED,
        "aws-efs-csi-driver-controller": _SUPPORTED,
        "aws-efs-csi-driver-node": _SUPPORTED,
    }
)


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None:
        return
    if cluster.workloads is not None:
        ours = [one for one in cluster.workloads if one.ours]
        for one in ours:
            if one.ready < one.wanted:
                yield _not_ready(one, cluster)
            yield from (_restarted(one, pod) for pod in pods_of(one, cluster) if pod.restarts > _FEW_RESTARTS)
        yield from _skew(ours)
        yield from _second(ours, cluster)
        yield from _left_over(cluster.workloads, cluster)
        yield from (_older(one) for one in cluster.workloads if one.name in OLDER_SYSTEMS and one not in ours)
    for condition in cluster.degraded:
        yield Finding(
            kind=_DEGRADED,
            subject=FindingSubject("ClusterCSIDriver", DRIVER),
            problem=f"has the condition {condition.type}",
            evidence=tuple(filter(None, [condition.message])),
            remedy="follow its message; the operator's log has more details",
            commands=(command("kubectl get clustercsidriver {} -o yaml", DRIVER), *_operator_logs(cluster)),
        )
    if cluster.leases is not None:
        yield from _without_leader(facts, cluster, {one.name: one for one in cluster.leases})


def _operator_logs(cluster: ClusterFacts) -> Iterator[Command]:
    for one in cluster.workloads or ():
        if one.ours and one.command == "operator":
            yield command("kubectl -n {} logs deployment/{} --tail=200", one.namespace, one.name)


def _not_ready(workload: Workload, cluster: ClusterFacts) -> Finding:
    pods = pods_of(workload, cluster)
    waiting = [f"pod {pod.name}: {reason}" for pod in pods for reason in pod.waiting]
    events = [
        f"pod {pod.name}: {one.reason}: {one.message}"
        for pod in pods
        for one in cluster.warnings_of("Pod", pod.uid)
    ]
    refused = [f"{one.reason}: {one.message}" for one in cluster.warnings_of(workload.kind, workload.uid)]
    failure = [workload.failure] if workload.failure else []
    silent = [
        f"pod {pod.name} is {pod.phase} on node {pod.node or '(none)'}" for pod in pods if not pod.waiting
    ]
    nowhere = [] if pods else ["it has no pods"]
    name = f"{workload.kind.lower()}/{workload.name}"
    return Finding(
        kind=_NOT_READY,
        subject=_subject(workload),
        problem=f"{workload.ready} of {workload.wanted} pods are ready",
        evidence=tuple([*failure, *refused, *waiting, *events, *nowhere, *silent][:_SHOWN]),
        remedy="check why its pods do not run, and check their logs",
        commands=(
            command("kubectl -n {} describe {}", workload.namespace, name),
            command("kubectl -n {} get pods -o wide", workload.namespace),
            command("kubectl -n {} logs {} --all-containers --tail=200", workload.namespace, name),
        ),
    )


def _restarted(workload: Workload, pod: PodFacts) -> Finding:
    return Finding(
        kind=_RESTARTS,
        subject=_subject(workload),
        problem=f"its pod {pod.name} restarted {pod.restarts} times",
        evidence=(f"on node {pod.node or '(none)'}", *filter(None, [pod.ended])),
        remedy="read the end of its previous log, and its events",
        commands=(
            command("kubectl -n {} logs --previous {} --tail=200", pod.namespace, pod.name),
            command("kubectl -n {} describe pod {}", pod.namespace, pod.name),
        ),
    )


def _without_leader(facts: Facts, cluster: ClusterFacts, leases: dict[str, LeaseFacts]) -> Iterator[Finding]:
    here = [one for one in controllers(cluster) if one.namespace == cluster.namespace]
    electing = [one for one in here if one.environment.get("KUBE_EFS_LEADER_ELECTION", "true") == "true"]
    names = {one.environment.get("KUBE_EFS_LEASE_NAME", DEFAULT_LEASE) for one in electing}
    elsewhere = sorted({one.namespace for one in controllers(cluster)} - {cluster.namespace})
    if not here and elsewhere:
        yield _controllers_elsewhere(elsewhere, cluster)
        return
    if not here:
        names = {DEFAULT_LEASE}
    for name in sorted(names):
        lease = leases.get(name, LeaseFacts(name=name))
        limit = timedelta(seconds=_MISSED_RENEWALS * lease.duration_seconds)
        late = lease.renewed is None or facts.now - lease.renewed > limit
        if not lease.holder or late:
            yield Finding(
                kind=_NO_LEADER,
                subject=FindingSubject("Lease", f"{cluster.namespace}/{name}"),
                problem="no controller is the leader",
                evidence=(_tell(lease, exists=name in leases),),
                remedy="start the controller, or check its log; is --namespace the namespace of kube-efs?",
                commands=(
                    command("kubectl -n {} get deployments,pods,leases", cluster.namespace),
                    controller_log(cluster),
                ),
            )


def _controllers_elsewhere(namespaces: Sequence[str], cluster: ClusterFacts) -> Finding:
    """The administrator named no namespace, or the wrong one."""
    options = [f"--namespace {one}" for one in namespaces]
    return Finding(
        kind=_NO_LEADER,
        subject=FindingSubject("Lease", f"{cluster.namespace}/{DEFAULT_LEASE}"),
        problem="there is no controller in this namespace",
        evidence=tuple(f"controllers run in namespace {one}" for one in namespaces),
        remedy=f"name the namespace of kube-efs: {' or '.join(options)}",
        commands=tuple(_examination_of(one) for one in namespaces),
    )


def _examination_of(namespace: str) -> Command:
    return command("kube-efs doctor cluster --namespace {}", namespace)


def _tell(lease: LeaseFacts, *, exists: bool) -> str:
    if not exists:
        return "the Lease does not exist"
    if not lease.holder:
        return "it has no holder"
    return f"{lease.holder} renewed it last at {shown(lease.renewed) if lease.renewed else 'no known time'}"


def _skew(ours: list[Workload]) -> Iterator[Finding]:
    by_namespace: defaultdict[str, list[Workload]] = defaultdict(list)
    for one in ours:
        by_namespace[one.namespace].append(one)
    for namespace, there in sorted(by_namespace.items()):
        if len({one.image for one in there}) > 1:
            yield Finding(
                kind=_SKEW,
                subject=FindingSubject("Namespace", namespace),
                problem="its workloads have different images",
                evidence=tuple(f"{one.kind} {one.name}: {one.image}" for one in there),
                remedy="use the newest one for all of them, or wait until the update in progress is complete",
                commands=(command("kubectl -n {} get deployments,daemonsets -o wide", namespace),),
            )


def _second(ours: list[Workload], cluster: ClusterFacts) -> Iterator[Finding]:
    """The tunnels beside those of the installation that is examined."""
    tunnels = {(one.namespace, one.name): one for one in ours if one.command == "tunnel"}
    own = tunnels.pop((cluster.namespace, cluster.names.tunnel), None)
    if own is None:
        return
    for one in tunnels.values():
        yield Finding(
            kind=_SECOND,
            subject=_subject(one),
            problem="is of a second installation of kube-efs",
            evidence=(
                f"{own.kind} {own.namespace}/{own.name} exists, too",
                f"this examination is about the one in namespace {own.namespace}",
            ),
            remedy=(
                "keep the one whose ConfigMap has the ports of the volumes; remove the other as described "
                "in docs/install.md (upgrading from older names); not with the output of kube-efs render: "
                "both have the CSIDriver and the definition of SharedVolumes"
            ),
            commands=(
                command("kubectl -n {} get deployments,daemonsets,configmaps,leases", own.namespace),
                command("kubectl -n {} get deployments,daemonsets,configmaps,leases", one.namespace),
                _examination_of(one.namespace),
            ),
        )


def _left_over(workloads: Sequence[Workload], cluster: ClusterFacts) -> Iterator[Finding]:
    """ConfigMaps of other names without tunnels. The own one must exist: it gets the ports of volumes."""
    if cluster.targets is None or not cluster.targets.found:
        return
    tunnels = {one.names.config_map: one.names.tunnel for one in NameSet}
    running = {(one.namespace, one.name) for one in workloads if one.kind == "DaemonSet"}
    for namespace, name in cluster.other_config_maps:
        if (namespace, tunnels[name]) in running:
            continue
        own = f"{cluster.namespace}/{cluster.names.config_map}"
        yield Finding(
            kind=_LEFT_OVER,
            subject=FindingSubject("ConfigMap", f"{namespace}/{name}"),
            problem="is of a removed installation; nothing reads it",
            evidence=(f"there is no DaemonSet {namespace}/{tunnels[name]}; the ports in use are in {own}",),
            remedy=f"check that {own} has its ports; then delete it, or its namespace if that is empty",
            commands=(
                command("kubectl -n {} get configmap {} -o yaml", namespace, name),
                command(
                    "kubectl -n {} get configmap {} -o yaml", cluster.namespace, cluster.names.config_map
                ),
                command("kubectl -n {} delete configmap {}", namespace, name),
            ),
        )


def _older(workload: Workload) -> Finding:
    return Finding(
        kind=_OLDER,
        subject=_subject(workload),
        problem=f"is of {OLDER_SYSTEMS[workload.name]}, whose volumes kube-efs can serve",
        evidence=(f"image {workload.image}, {workload.ready} of {workload.wanted} pods ready",),
        remedy=(
            "complete the migration as described in docs/install.md, so that only one system serves each "
            "volume"
        ),
        commands=(
            command(
                "kubectl -n {} get {} {} -o wide", workload.namespace, workload.kind.lower(), workload.name
            ),
        ),
    )


def _subject(workload: Workload) -> FindingSubject:
    return FindingSubject(workload.kind, f"{workload.namespace}/{workload.name}")


TOPIC = Topic(
    check=_check, kinds=(_NOT_READY, _RESTARTS, _NO_LEADER, _DEGRADED, _SKEW, _SECOND, _LEFT_OVER, _OLDER)
)
