"""What is done next about one DaemonSet, by the rules of pkg/controller/daemon of Kubernetes.

A pod on each node that the template's ``nodeSelector`` selects; taints are not looked at. An update replaces
pods that are not in order at once, others only while no more nodes than allowed are without a ready one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tinykube.controllers.values import Node, Pod
from tinykube.controllers.workloads import REVISION_LABEL, DaemonSet, DaemonSetStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeNodePod:
    """Make the pod of a node."""

    node_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNodePod:
    """Delete a pod: its node is not wanted, it has ended, or it is of an old template."""

    pod: Pod


DaemonStep = MakeNodePod | RemoveNodePod


def wanted_nodes(found: DaemonSet, nodes: Collection[Node]) -> tuple[str, ...]:
    """The names of the nodes that are to have a pod."""
    wanted = found.node_selector.items()
    return tuple(sorted(node.meta.key.name for node in nodes if wanted <= node.meta.labels.items()))


def plan_daemon_set(
    found: DaemonSet, wanted: Collection[str], pods: Collection[Pod]
) -> tuple[DaemonStep, ...]:
    """The next steps; ``pods`` are those of the set."""
    if found.meta.deleting:
        return ()
    by_node = _by_node(pods)
    steps: list[DaemonStep] = [
        RemoveNodePod(pod=pod)
        for node, on_node in by_node.items()
        # Of several on one node the oldest stays.
        for pod in on_node[node in wanted :]
        if not pod.meta.deleting
    ]
    for node in wanted:
        on_node = by_node.get(node, [])
        if not on_node:
            steps.append(MakeNodePod(node_name=node))
        elif on_node[0].finished and not on_node[0].meta.deleting:
            steps.append(RemoveNodePod(pod=on_node[0]))
    return tuple(steps or _update(found, wanted, by_node))


def daemon_set_status(found: DaemonSet, wanted: Collection[str], pods: Collection[Pod]) -> DaemonSetStatus:
    """What is to be said of the set."""
    by_node = _by_node(pods)
    first = [by_node[node][0] for node in wanted if node in by_node]
    return DaemonSetStatus(
        observed_generation=found.generation,
        desired=len(wanted),
        current=len(first),
        misscheduled=sum(node not in wanted for node in by_node),
        ready=sum(_is_well(pod) for pod in first),
        updated=sum(_revision(pod) == found.revision for pod in first),
    )


def _update(
    found: DaemonSet, wanted: Collection[str], by_node: Mapping[str, list[Pod]]
) -> Iterator[DaemonStep]:
    if found.unavailable is None:
        return
    first = [by_node[node][0] for node in wanted if node in by_node]
    room = found.unavailable - sum(not _is_well(pod) for pod in first)
    for pod in first:
        if _revision(pod) == found.revision or pod.meta.deleting:
            continue
        if not _is_well(pod):
            yield RemoveNodePod(pod=pod)
        elif room > 0:
            room -= 1
            yield RemoveNodePod(pod=pod)


def _by_node(pods: Collection[Pod]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda one: one.meta.key):
        found.setdefault(pod.node_name or pod.required_node, []).append(pod)
    return found


def _is_well(pod: Pod) -> bool:
    return pod.ready and not pod.finished and not pod.meta.deleting


def _revision(pod: Pod) -> str:
    return pod.meta.labels.get(REVISION_LABEL, "")
