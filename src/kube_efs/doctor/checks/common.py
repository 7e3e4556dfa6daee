"""What several checks need: owners of classes and volumes, commands, and whether something takes too long."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from kube_efs.doctor.facts import ClusterFacts, NodeObject, PodFacts, Workload
from kube_efs.doctor.shell import Command, Syntax, command
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import KubeEfsError
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import DRIVER, Volume, locate
from kube_efs.settings.controller import DEFAULT_PROVISIONER

# Everything that kube-efs does for a claim or volume is done sooner, unless something is wrong.
PATIENCE: Final = timedelta(seconds=60)
# Machines that take none of its pods.
_WITHOUT_PODS: Final = frozenset({"fargate", "hybrid", "windows"})


class VolumeKind(StrEnum):
    """The provisioner whose rules a storage class follows."""

    TUNNEL = "tunnel"
    DIRECTORY = "directory"
    CSI = "csi"


class CsiOption(StrEnum):
    """The option of ``kube-efs render`` that installs the CSI driver."""

    NONE = ""
    BESIDE_TUNNEL_VOLUMES = "--csi"
    ONLY = "--csi-only"


def controllers(cluster: ClusterFacts) -> tuple[Workload, ...]:
    """The workloads that run controllers, in all namespaces."""
    return tuple(_running("controller", cluster))


def needs_tunnels(cluster: ClusterFacts) -> bool:
    """Whether tunnels are expected: not if only directories are created in a mount of the controller."""
    backends = _backends(cluster)
    return not backends or backends != {"directory"}


def csi_option(cluster: ClusterFacts) -> CsiOption:
    """Which option the installation here has."""
    if _backends(cluster) == {"csi"}:
        return CsiOption.ONLY
    has_driver = any(one.ours and one.command == "node" for one in cluster.workloads or ())
    return CsiOption.BESIDE_TUNNEL_VOLUMES if has_driver else CsiOption.NONE


def publishes_targets(cluster: ClusterFacts) -> bool:
    """Whether the controllers here publish tunnel targets: not if they create no tunnel volumes."""
    backends = _backends(cluster)
    return not backends or "tunnel" in backends


def _backends(cluster: ClusterFacts) -> frozenset[str]:
    """The kinds of volumes that the controllers here create; empty without controllers."""
    here = [one for one in controllers(cluster) if one.namespace == cluster.namespace]
    texts = [one.environment.get("KUBE_EFS_BACKENDS", "tunnel") for one in here]
    return frozenset(name.strip() for text in texts for name in text.split(",") if name.strip())


def has_driver_tags(cluster: ClusterFacts) -> bool:
    """Whether the CSI driver gives all its access points tags, which some classes contradict."""
    return any("KUBE_EFS_ACCESS_POINT_TAGS" in one.environment for one in controllers(cluster))


def targets_of(cluster: ClusterFacts) -> TunnelTargets:
    """The tunnel targets; none while they are not known."""
    return cluster.targets.targets if cluster.targets else TunnelTargets()


def provisioners(cluster: ClusterFacts) -> Mapping[str, VolumeKind]:
    """Each provisioner that kube-efs serves here, as far as settings and volumes tell."""
    variables = [one.environment for one in controllers(cluster)]
    tunnel = {one["STORAGE_PROVISIONER_NAME"] for one in variables if "STORAGE_PROVISIONER_NAME" in one}
    directory = {one["PROVISIONER_NAME"] for one in variables if "PROVISIONER_NAME" in one}
    made_by = {
        one.volume.provisioned_by
        for one in cluster.volumes or ()
        if one.volume.provisioned_by and is_our_volume(one.volume, targets_of(cluster))
    }
    return {
        **dict.fromkeys(made_by | directory, VolumeKind.DIRECTORY),
        **dict.fromkeys(tunnel or {DEFAULT_PROVISIONER}, VolumeKind.TUNNEL),
        DRIVER: VolumeKind.CSI,
    }


def former_provisioners(cluster: ClusterFacts) -> frozenset[str]:
    """Earlier names of the provisioner of tunnel volumes: the root volumes of the namespace keep them."""
    here = [one.environment for one in controllers(cluster) if one.namespace == cluster.namespace]
    now = {one.get("STORAGE_PROVISIONER_NAME", DEFAULT_PROVISIONER) for one in here}
    roots = (one.volume for one in cluster.volumes or () if one.volume.storage_class == ROOT_CLASS)
    ours = (one for one in roots if one.claim and one.claim.namespace == cluster.namespace)
    return frozenset(one.provisioned_by for one in ours if now and one.provisioned_by) - now


def is_our_volume(volume: Volume, targets: TunnelTargets) -> bool:
    """Whether kube-efs manages it; the roots of file systems, which its workers mount, are left out."""
    # The driver gets its volumes with malformed handles, too, and their pods wait for it.
    is_of_driver = volume.csi is not None and volume.csi.driver == DRIVER
    return volume.storage_class != ROOT_CLASS and (
        is_of_driver or file_system_of(volume, targets) is not None
    )


def file_system_of(volume: Volume, targets: TunnelTargets) -> FileSystemId | None:
    """The file system of the volume; None for other volumes, and with a malformed handle."""
    if volume.csi is not None:
        return volume.handle.file_system_id if volume.handle is not None else None
    location = locate(volume, targets) if volume.nfs is not None else None
    return location.file_system_id if location else None


def is_of_s3_files(volume: Volume) -> bool:
    """Whether the volume of the driver is on a file system of S3 Files."""
    return volume.handle is not None and volume.handle.kind is FileSystemKind.S3_FILES


def our_volumes(cluster: ClusterFacts) -> Iterator[tuple[Volume, FileSystemId]]:
    """The volumes of kube-efs, each with its file system; without those whose handle is malformed."""
    targets = targets_of(cluster)
    for one in cluster.volumes or ():
        file_system_id = file_system_of(one.volume, targets)
        if file_system_id is not None and one.volume.storage_class != ROOT_CLASS:
            yield one.volume, file_system_id


def controller_log(cluster: ClusterFacts) -> Command:
    """The command that shows the logs of the controllers."""
    here = [one for one in controllers(cluster) if one.namespace == cluster.namespace]
    name = here[0].name if here else cluster.names.controller
    return command("kubectl -n {} logs deployment/{} --all-containers --tail=200", cluster.namespace, name)


def pods_of(workload: Workload, cluster: ClusterFacts) -> list[PodFacts]:
    """The pods of a Deployment or DaemonSet."""
    return [
        pod
        for pod in cluster.pods or ()
        if pod.namespace == workload.namespace and pod.name.startswith(f"{workload.name}-")
    ]


def _running(command: str, cluster: ClusterFacts) -> list[Workload]:
    """The workloads that run this process of kube-efs."""
    return [one for one in cluster.workloads or () if one.ours and one.command == command]


def nodes_with(command: str, cluster: ClusterFacts) -> tuple[NodeObject, ...]:
    """The nodes that should have a pod of that process.

    Selectors, affinities and taints can keep a DaemonSet away from a node. Kubernetes counts the nodes that
    are left: if so many have a pod, the others should have none.
    """
    sets = _running(command, cluster)
    having = {pod.node for one in sets for pod in pods_of(one, cluster)} - {""}
    is_complete = 0 < sum(one.wanted for one in sets) <= len(having)
    return tuple(
        one
        for one in cluster.nodes or ()
        if one.compute not in _WITHOUT_PODS and (one.name in having or not is_complete)
    )


def agent_of(node: str, cluster: ClusterFacts) -> PodFacts | None:
    """The pod of the tunnel agent on that node."""
    return next(
        (
            pod
            for one in _running("tunnel", cluster)
            for pod in pods_of(one, cluster)
            if pod.node == node and not pod.has_ended and pod.deleting_since is None
        ),
        None,
    )


def look_at_node(node: str, cluster: ClusterFacts) -> Command:
    """The command that checks a node in its agent's pod, or shows the pods of the node."""
    agent = agent_of(node, cluster)
    if agent is None:
        return pods_on(node, cluster)
    return command("kubectl -n {} exec {} -- kube-efs doctor node", agent.namespace, agent.name)


def pods_on(node: str, cluster: ClusterFacts) -> Command:
    """The command that shows kube-efs's pods of a node."""
    words = "kubectl -n {} get pods -o wide --field-selector spec.nodeName={}"
    return command(words, cluster.namespace, node)


def agent_log(node: str, cluster: ClusterFacts) -> Command:
    """The command that shows the log of the tunnel agent of a node."""
    agent = agent_of(node, cluster)
    if agent is None:
        return pods_on(node, cluster)
    return command("kubectl -n {} logs {} --tail=200", agent.namespace, agent.name)


def render_command(cluster: ClusterFacts) -> Command:
    """The command that compares the cluster with the manifests; it changes nothing.

    To apply them at once would remove the image and other options that it was installed with.
    """
    platform = "kubernetes" if cluster.constraints is None else "openshift"
    driver = filter(None, [csi_option(cluster)])
    names = ("--names", cluster.names.name_set, "--namespace", cluster.namespace)
    rendered = ("kube-efs", "render", "--for", platform, *driver, *names)
    return Command((*rendered, Syntax.PIPE, "kubectl", "diff", "-f", "-"))


def remedy_in(text: str) -> str:
    """The remedy at the end of the text of an event of kube-efs; empty without one.

    It says where it is from: everybody who may create events in a namespace can write any text there.
    """
    return f"its event says: {text.rpartition('; ')[2]}" if "; " in text else ""


def lasts(since: datetime | None, now: datetime) -> bool:
    """Whether something takes longer than usual; also if its start is not known."""
    return since is None or now - since > PATIENCE


def problem_of(error: KubeEfsError) -> str:
    """The message of an error without its remedy, for which a finding has a field."""
    return str(type(error)(error.problem, field=error.field, value=error.value))
