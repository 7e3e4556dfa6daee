"""Where worker pods run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
from lightkube import AsyncClient
from lightkube.models.apps_v1 import DaemonSetSpec
from lightkube.models.core_v1 import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodSpec,
    PodTemplateSpec,
    Toleration,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import Namespace, Pod

from kube_efs.kube.csi_nodes import CsiNode
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.names import WORKER_LABELS
from kube_efs.provisioning.workers import placement as module
from kube_efs.provisioning.workers.orders import Action, Item, Job
from kube_efs.provisioning.workers.placement import Placement, WorkerPlacement
from kube_efs.provisioning.workers.pod_objects import WorkerOptions, pod_for

DRIVER = "efs.csi.aws.com"
LINUX = {"kubernetes.io/os": "linux"}


@pytest.fixture
async def placement(kube: AsyncClient) -> AsyncIterator[WorkerPlacement]:
    await kube.create(Namespace(metadata=ObjectMeta(name="efs")))
    async with watching(kube) as found:
        yield found


@asynccontextmanager
async def watching(kube: AsyncClient, *, with_driver: bool = True) -> AsyncIterator[WorkerPlacement]:
    found = WorkerPlacement(
        kube, "efs", tunnels="efs-stunnel", own_pod="controller-0", with_driver=with_driver
    )
    task = asyncio.create_task(found.watch())
    yield found
    task.cancel()
    await asyncio.wait([task])


async def create_node(kube: AsyncClient, name: str, *drivers: str) -> None:
    listed = [{"name": one, "nodeID": name, "topologyKeys": None} for one in drivers]
    # The API server answers with null for a node without drivers.
    await kube.create(CsiNode(metadata=ObjectMeta(name=name), spec={"drivers": listed or None}))


async def until(placement: WorkerPlacement, fits: Callable[[Placement], bool]) -> Placement:
    async with asyncio.timeout(20):
        while not fits(found := await placement.current()):  # noqa: ASYNC110 - watches tell no event
            await asyncio.sleep(0.01)
    return found


def has_names(placement: Placement) -> bool:
    return any(term.matchFields for term in placement.terms)


def names(terms: Iterable[NodeSelectorTerm]) -> list[str]:
    fields = [field for term in terms for field in term.matchFields or ()]
    assert {(field.key, field.operator) for field in fields} <= {("metadata.name", "NotIn")}
    return [name for field in fields for name in field.values or ()]


async def test_pods_that_the_kubelet_mounts_for_need_no_driver(kube: AsyncClient) -> None:
    await kube.create(Namespace(metadata=ObjectMeta(name="efs")))
    await create_node(kube, "one", DRIVER)
    async with watching(kube, with_driver=False) as placement:
        assert await placement.current() == Placement()
        assert not placement.has_nodes_except(())


async def test_pods_that_the_driver_mounts_for_avoid_nodes_without_it(
    placement: WorkerPlacement, kube: AsyncClient
) -> None:
    await create_node(kube, "without")
    assert await placement.current() == Placement()  # no node has it yet
    await create_node(kube, "with", DRIVER, "another.csi.example.com")
    assert names((await until(placement, has_names)).terms) == ["without"]
    assert placement.has_nodes_except({"without"})
    assert not placement.has_nodes_except({"with"})
    await kube.patch(CsiNode, "without", {"spec": {"drivers": [{"name": DRIVER, "nodeID": "without"}]}})
    assert await until(placement, lambda one: not has_names(one)) == Placement()


async def test_workers_follow_the_nodes_of_the_tunnels(placement: WorkerPlacement, kube: AsyncClient) -> None:
    arm = NodeSelectorRequirement(key="kubernetes.io/arch", operator="In", values=["arm64"])
    gpu = NodeSelectorRequirement(key="gpu", operator="Exists")
    required = NodeSelector(
        nodeSelectorTerms=[NodeSelectorTerm(matchExpressions=[one]) for one in (arm, gpu)]
    )
    labels = {"component": "efs-stunnel"}
    spec = PodSpec(
        containers=[Container(name="efs-stunnel", image="kube-efs")],
        nodeSelector={"storage": "efs"},
        affinity=Affinity(nodeAffinity=NodeAffinity(requiredDuringSchedulingIgnoredDuringExecution=required)),
        tolerations=[Toleration(operator="Exists")],
    )
    await kube.create(
        DaemonSet(
            metadata=ObjectMeta(name="efs-stunnel", namespace="efs"),
            spec=DaemonSetSpec(
                selector=LabelSelector(matchLabels=labels),
                template=PodTemplateSpec(metadata=ObjectMeta(labels=labels), spec=spec),
            ),
        )
    )
    found = await until(placement, lambda one: one != Placement())
    assert found.node_selector == {**LINUX, "storage": "efs"}
    assert [term.matchExpressions for term in found.terms] == [[arm], [gpu]]

    await create_node(kube, "one", DRIVER)
    await create_node(kube, "two")
    found = await until(placement, has_names)
    assert found.node_selector == {**LINUX, "storage": "efs"}
    assert [(term.matchExpressions, names([term])) for term in found.terms] == [
        ([arm], ["two"]),
        ([gpu], ["two"]),
    ]


async def test_workers_have_the_tolerations_of_the_controller(kube: AsyncClient) -> None:
    """Where every node has a taint, the controller has its toleration."""
    await kube.create(Namespace(metadata=ObjectMeta(name="efs")))
    dedicated = Toleration(key="dedicated", operator="Exists", effect="NoSchedule")
    off = "node.kubernetes.io/unreachable"
    # Nothing would remove a worker from a node that is off, and it would block its directories.
    temporary = [
        Toleration(operator="Exists"),
        Toleration(key=off, operator="Exists", effect="NoExecute", tolerationSeconds=10),
        Toleration(key="efs.csi.aws.com/agent-not-ready", operator="Exists"),
    ]
    container = Container(name="controller", image="kube-efs")
    other = Toleration(key="other", operator="Exists")
    for name, tolerations in (("controller-0", [dedicated, *temporary]), ("other", [other])):
        spec = PodSpec(containers=[container], tolerations=tolerations)
        await kube.create(Pod(metadata=ObjectMeta(name=name, namespace="efs"), spec=spec))
    async with watching(kube, with_driver=False) as placement:
        found = await placement.current()
    options = WorkerOptions(namespace="efs", image="kube-efs:test")
    items = [Item(directory=parse_directory("/team/data"))]
    pod = pod_for(FileSystemId("fs-1"), Job(action=Action.MAKE), items, options, found)
    assert pod.spec
    assert pod.spec.tolerations == [dedicated]


def test_pod_names_at_most_a_hundred_nodes() -> None:
    nodes = frozenset(f"node-{number}" for number in range(5000))
    chosen = names(Placement().except_nodes(nodes).terms)
    assert len(set(chosen)) == len(chosen) == 100
    assert set(chosen) < nodes


def test_node_is_left_out_also_without_conditions_of_the_tunnels() -> None:
    placement = Placement(terms=()).except_nodes(frozenset({"one"}))
    (term,) = placement.terms
    assert (term.matchExpressions, names([term])) == (None, ["one"])


async def test_unreadable_cluster_delays_the_first_pod_only(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the permissions, as after an update of the image alone, everything is as before."""
    monkeypatch.setattr(module, "_FIRST_LISTS_SECONDS", 0.2)
    placement = WorkerPlacement(kube, "efs", tunnels="efs-stunnel", own_pod="controller-0", with_driver=True)
    assert await placement.current() == Placement()
    monkeypatch.setattr(module, "_FIRST_LISTS_SECONDS", 3600)
    async with asyncio.timeout(60):
        assert await placement.current() == Placement()


def test_avoided_nodes_are_used_last() -> None:
    placement = Placement().avoiding(frozenset({"two", "one"}))
    assert placement.terms == Placement().terms
    assert placement.preferred
    assert names([placement.preferred]) == ["one", "two"]
    assert placement.avoiding(frozenset()) == Placement()
    items = [Item(directory=parse_directory("/team/data"))]
    options = WorkerOptions(namespace="efs", image="kube-efs:test")
    pod = pod_for(FileSystemId("fs-1"), Job(action=Action.MAKE), items, options, placement)
    nodes = pod.spec and pod.spec.affinity and pod.spec.affinity.nodeAffinity
    assert nodes
    (preference,) = nodes.preferredDuringSchedulingIgnoredDuringExecution or []
    assert preference.preference == placement.preferred


@pytest.mark.parametrize(
    "placement",
    [Placement(), Placement().except_nodes(frozenset({"one"}))],
    ids=["anywhere", "not on one node"],
)
def test_pod_is_only_for_the_nodes_of_its_placement(placement: Placement) -> None:
    options = WorkerOptions(namespace="efs", image="kube-efs:test")
    items = [Item(directory=parse_directory("/team/data"))]
    pod = pod_for(FileSystemId("fs-1"), Job(action=Action.MAKE), items, options, placement)
    assert pod.spec
    assert pod.spec.nodeSelector == LINUX
    required = pod.spec.affinity and pod.spec.affinity.nodeAffinity
    assert required
    terms = required.requiredDuringSchedulingIgnoredDuringExecution
    assert terms
    assert terms.nodeSelectorTerms == list(placement.terms)


def test_pods_get_no_sidecar_of_a_service_mesh() -> None:
    """It does not end with the worker, so the pod would run until its deadline and count as failed."""
    options = WorkerOptions(namespace="efs", image="kube-efs:test")
    items = [Item(directory=parse_directory("/team/data"))]
    pod = pod_for(FileSystemId("fs-1"), Job(action=Action.MAKE), items, options, Placement())
    assert pod.metadata is not None
    assert pod.metadata.labels == {**WORKER_LABELS, "sidecar.istio.io/inject": "false"}
    assert (pod.metadata.annotations or {})["linkerd.io/inject"] == "disabled"
