"""Which pods use volumes, which older pods can therefore be deleted, and which older objects are."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import httpx2
import pytest
import yaml
from lightkube import AsyncClient
from lightkube.models.core_v1 import Container, EphemeralVolumeSource, Volume
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.resources.core_v1 import (
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ServiceAccount,
)
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding
from lightkube.types import CascadeType, PatchType

from kube_efs.model.errors import KubeDenied, KubeUnavailable
from kube_efs.operator.kinds import KINDS, ObjectReference, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.takeover import Takeover, select_pods
from kube_efs.operator.volumes_in_use import UseOfVolume, VolumeUses, describe_pods, find_volume_uses


def volume(name: str, **spec: Any) -> PersistentVolume:
    body = {"metadata": {"name": name}, "spec": spec}
    return cast("PersistentVolume", PersistentVolume.from_dict(body))


def claim(name: str, volume_name: str, namespace: str = "team") -> PersistentVolumeClaim:
    metadata = {"name": name, "namespace": namespace}
    body = {"metadata": metadata, "spec": {"volumeName": volume_name}}
    return cast("PersistentVolumeClaim", PersistentVolumeClaim.from_dict(body))


def volume_uses_of(
    pods: Iterable[Pod], claims: Iterable[PersistentVolumeClaim], volumes: Iterable[PersistentVolume]
) -> tuple[UseOfVolume, ...]:
    uses = VolumeUses()
    for one in volumes:
        uses.add_volume(one)
    for each in claims:
        uses.add_claim(each)
    for another in pods:
        uses.add_pod(another)
    return uses.found


def pod(name: str, *claims: str, node: str = "a", phase: str = "Running", **fields: Any) -> Pod:
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    body = {
        "metadata": {"name": name, "namespace": "team", **fields},
        "spec": {"nodeName": node, "containers": [], "volumes": volumes},
        "status": {"phase": phase},
    }
    return cast("Pod", Pod.from_dict(body))


VOLUMES = [
    volume("driver", csi={"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}),
    volume("tunnel", nfs={"server": "127.0.0.1", "path": "/"}),
    volume("disk", csi={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}),
    volume("office", nfs={"server": "nas.example.com", "path": "/"}),
]
NFS_CSI = {"driver": "nfs.csi.k8s.io", "volumeHandle": "one"}
CLAIMS = [claim(one, one) for one in ("driver", "tunnel", "disk", "office")]


def test_pods_on_nodes_that_use_driver_or_tunnel_volumes_are_found() -> None:
    pods = [
        pod("web", "driver", "disk"),
        pod("job", "tunnel", node="b"),
        pod("ended", "driver", phase="Succeeded"),
        pod("waiting", "driver", node=""),
        pod("other", "disk", "office"),
    ]
    assert volume_uses_of(pods, CLAIMS, VOLUMES) == (
        UseOfVolume(node="a", namespace="team", pod="web", claim="driver"),
        UseOfVolume(node="b", namespace="team", pod="job", claim="tunnel", by_driver=False),
    )


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ({"nfs": {"server": "localhost", "path": "/"}}, True),
        ({"csi": NFS_CSI | {"volumeAttributes": {"server": "127.0.0.1", "share": "/"}}}, True),
        ({"csi": NFS_CSI | {"volumeAttributes": {"server": "nas.example.com", "share": "/"}}}, False),
        ({"hostPath": {"path": "/srv"}}, False),
    ],
)
def test_tunnel_volumes_in_other_forms_are_found(source: dict[str, Any], is_found: bool) -> None:
    found = volume_uses_of([pod("web", "one")], [claim("one", "one")], [volume("one", **source)])
    assert [use.by_driver for use in found] == [False] * is_found


def test_pod_that_has_ended_uses_its_volumes_while_it_is_being_deleted() -> None:
    leaving = pod("ended", "driver", phase="Failed", deletionTimestamp="2026-01-01T00:00:00Z")
    (found,) = volume_uses_of([leaving], CLAIMS, VOLUMES)
    assert found.pod == "ended"


def test_claim_of_the_same_name_in_another_namespace_is_ignored() -> None:
    assert volume_uses_of([pod("web", "driver")], [claim("driver", "driver", "elsewhere")], VOLUMES) == ()


def test_claim_that_names_the_volume_of_another_claim_is_ignored() -> None:
    """Anyone may create such a claim, and a pod with it on any node. No kubelet mounts the volume for it."""
    reference = {"kind": "PersistentVolumeClaim", "namespace": "team", "name": "driver", "uid": "1"}
    csi = {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}
    volumes = [volume("driver", csi=csi, claimRef=reference)]
    assert volume_uses_of([pod("web", "stolen")], [claim("stolen", "driver")], volumes) == ()
    (found,) = volume_uses_of([pod("web", "driver")], [claim("driver", "driver")], volumes)
    assert found.claim == "driver"


def test_claims_of_ephemeral_volumes_are_found() -> None:
    web = pod("web")
    assert web.spec
    web.spec.volumes = [Volume(name="scratch", ephemeral=EphemeralVolumeSource())]
    (found,) = volume_uses_of([web], [claim("web-scratch", "driver")], VOLUMES)
    assert found.claim == "web-scratch"


async def test_objects_of_large_clusters_are_read_in_pages(client_of: Callable[..., AsyncClient]) -> None:
    """Whole lists of ten thousand pods would need more memory than the operator has."""
    pages: dict[str, Iterator[Sequence[Any]]] = {
        "persistentvolumes": iter([VOLUMES[1:], VOLUMES[:1]]),
        "persistentvolumeclaims": iter([CLAIMS[1:], CLAIMS[:1]]),
        "pods": iter([[pod("web", "driver")], [pod("job", "tunnel")]]),
    }
    limits = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        limits.append(request.url.params.get("limit"))
        further = {} if "continue" in request.url.params else {"continue": "page-2"}
        items = [one.to_dict() for one in next(pages[request.url.path.rpartition("/")[2]])]
        return httpx2.Response(200, json={"metadata": {"resourceVersion": "1", **further}, "items": items})

    async with client_of(answer) as client:
        assert [one.pod for one in await find_volume_uses(client)] == ["job", "web"]
    assert limits == ["500"] * 6


def test_only_the_first_ten_pods_are_named() -> None:
    uses = [UseOfVolume(node="a", namespace="t", pod=f"p{number:02}", claim="c") for number in range(12)]
    assert describe_pods(uses).endswith("t/p09 and 2 more")


def test_older_pod_is_selected_on_a_node_without_volumes_in_use() -> None:
    older = [pod("old-a"), pod("old-b", node="b")]
    selected, waiting = select_pods(
        older, [UseOfVolume(node="a", namespace="team", pod="web", claim="driver")]
    )
    assert selected == (older[1],)
    assert waiting.startswith("node a keeps the older driver while team/web use its volumes (drain")


def test_no_older_pod_is_selected_while_one_is_being_deleted() -> None:
    deleting = pod("old-a", deletionTimestamp="2026-11-21T12:00:00Z")
    assert select_pods([deleting, pod("old-b", node="b")], [])[0] == ()


class DenyingClient(ObjectClient):
    """Refuses the deletion of some objects, as an admission webhook does."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client)
        self.denied: set[str] = set()

    async def delete(self, found: Manifest, *, cascade: CascadeType = CascadeType.BACKGROUND) -> bool:
        if found["metadata"]["name"] in self.denied:
            raise KubeDenied("answered 403", field=str(reference_of(found)))
        return await super().delete(found, cascade=cascade)


Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
CREDENTIALS = "openshift-cloud-credential-operator"
LEFT_OVER = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: aws-efs-csi-driver-controller-pdb, namespace: default}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: aws-efs-csi-driver-controller}}}
---
apiVersion: v1
kind: Service
metadata: {name: aws-efs-csi-driver-controller-metrics, namespace: default}
spec:
  selector: {app: aws-efs-csi-driver-controller}
  ports: [{name: provisioner-m, port: 9212, targetPort: 9212}]
---
apiVersion: cloudcredential.openshift.io/v1
kind: CredentialsRequest
metadata: {name: openshift-aws-efs-csi-driver-node, namespace: openshift-cloud-credential-operator}
spec: {secretRef: {name: node-aws-efs-cloud-credentials, namespace: openshift-cluster-csi-drivers}}
"""


@pytest.fixture
async def objects(kube: AsyncClient, eventually: Eventually) -> DenyingClient:
    """A cluster with what aws-efs-csi-driver-operator leaves besides its accounts and roles."""
    names = {
        "kind": "CredentialsRequest",
        "listKind": "CredentialsRequestList",
        "plural": "credentialsrequests",
        "singular": "credentialsrequest",
    }
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    definition: dict[str, Any] = {
        "metadata": {"name": "credentialsrequests.cloudcredential.openshift.io"},
        "spec": {
            "group": "cloudcredential.openshift.io",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }
    name = definition["metadata"]["name"]
    await kube.create(cast("CustomResourceDefinition", CustomResourceDefinition.from_dict(definition)))

    async def is_established() -> bool:
        found = await kube.get(CustomResourceDefinition, name)
        return any(one.type == "Established" for one in (found.status and found.status.conditions) or ())

    await eventually(is_established)
    await kube.create(Namespace(metadata=ObjectMeta(name=CREDENTIALS)))
    for body in yaml.safe_load_all(LEFT_OVER):
        await kube.create(cast("Any", KINDS[body["kind"]].resource).from_dict(body))
    return DenyingClient(kube)


async def left_over(objects: ObjectClient) -> set[str]:
    kinds = ("PodDisruptionBudget", "Service", "CredentialsRequest")
    return {one["metadata"]["name"] for kind in kinds for one in await objects.list(kind)} - {"kubernetes"}


def takeover_of(objects: ObjectClient) -> Takeover:
    return Takeover(objects, "default", "kube-efs-node")


async def test_nothing_is_left_of_the_older_operator(objects: DenyingClient) -> None:
    progress = await takeover_of(objects).step(forced=False)
    assert progress.done
    assert await left_over(objects) == set()


async def test_objects_with_the_same_names_and_other_selectors_stay(objects: DenyingClient) -> None:
    before = await left_over(objects)
    other = {"spec": {"selector": {"app": "other", "component": "efs-manager"}}}
    await objects.merge_patch(
        ObjectReference("Service", "default", "aws-efs-csi-driver-controller-metrics"), other
    )
    await objects.merge_patch(
        ObjectReference("PodDisruptionBudget", "default", "aws-efs-csi-driver-controller-pdb"),
        {"spec": {"selector": {"matchLabels": {"app": "other"}}}},
    )
    await objects.merge_patch(
        ObjectReference("CredentialsRequest", CREDENTIALS, "openshift-aws-efs-csi-driver-node"),
        {"spec": {"secretRef": {"name": "other"}}},
    )
    assert (await takeover_of(objects).step(forced=False)).done
    assert await left_over(objects) == before


async def test_object_that_cannot_be_deleted_does_not_keep_the_others(objects: DenyingClient) -> None:
    objects.denied = {"aws-efs-csi-driver-controller-metrics", "aws-efs-csi-driver-controller-pdb"}
    takeover = takeover_of(objects)
    progress = await takeover.step(forced=False)
    assert await left_over(objects) == objects.denied
    assert [error.split(":")[0] for error in progress.errors] == [
        "Service default/aws-efs-csi-driver-controller-metrics",
        "PodDisruptionBudget default/aws-efs-csi-driver-controller-pdb",
    ]
    assert not progress.done
    objects.denied = set()
    assert (await takeover.step(forced=False)).done


def older_pod(name: str, *, node: str = "a", account: str = "efs-csi-sa", namespace: str = "default") -> Pod:
    body = {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "efs-csi-node"}},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "containers": [{"name": "c", "image": "example.com/c"}],
        },
    }
    return cast("Pod", Pod.from_dict(body))


async def create_account(kube: AsyncClient, name: str, namespace: str = "default") -> None:
    await kube.create(ServiceAccount(metadata=ObjectMeta(name=name, namespace=namespace)))


@pytest.mark.parametrize(
    ("account", "phase", "is_older"),
    [
        pytest.param("efs-csi-sa", "Running", True, id="older driver"),
        pytest.param("default", "Running", False, id="the label alone"),
        pytest.param("efs-csi-sa", "Failed", False, id="ended, held by a finalizer"),
    ],
)
async def test_older_pods_are_recognised_by_their_account(
    kube: AsyncClient, account: str, phase: str, is_older: bool
) -> None:
    if account != "default":
        await create_account(kube, account)
    await kube.create(older_pod("p", account=account))
    await kube.patch(Pod.Status, "p", {"status": {"phase": phase}}, namespace="default")
    progress = await takeover_of(ObjectClient(kube)).step(forced=False)
    assert bool(progress.waiting) is is_older


async def test_older_controller_is_waited_for_until_its_pods_have_ended(kube: AsyncClient) -> None:
    labels = {"app": "aws-efs-csi-driver-controller"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
    older = {
        "metadata": {"name": "aws-efs-csi-driver-controller", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    await kube.create(cast("Deployment", Deployment.from_dict(older)))
    takeover = takeover_of(ObjectClient(kube))
    for _ in range(2):
        progress = await takeover.step(forced=True)
        assert progress.controller == (
            "the pods of Deployment default/aws-efs-csi-driver-controller are ending"
        )
        assert not progress.done
    without = {"metadata": {"finalizers": None}}
    await kube.patch(
        Deployment, "aws-efs-csi-driver-controller", without, namespace="default", patch_type=PatchType.MERGE
    )
    assert (await takeover.step(forced=True)).done


NEW_LABELS = {"component": "kube-efs-node"}


async def create_new_driver(kube: AsyncClient) -> None:
    """Its DaemonSet, before kube-controller-manager has read it."""
    template = {
        "metadata": {"labels": NEW_LABELS},
        "spec": {"containers": [{"name": "c", "image": "example.com/c"}]},
    }
    labels = {"app.kubernetes.io/part-of": "kube-efs"}
    body = {
        "metadata": {"name": "kube-efs-node", "namespace": "default", "labels": labels},
        "spec": {"selector": {"matchLabels": NEW_LABELS}, "template": template},
    }
    await kube.create(cast("DaemonSet", DaemonSet.from_dict(body)))


async def observe_new_driver(kube: AsyncClient, *, desired: int, ready: int) -> None:
    """Write the status of the first generation of its DaemonSet."""
    status = {
        "observedGeneration": 1,
        "currentNumberScheduled": desired,
        "desiredNumberScheduled": desired,
        "numberMisscheduled": 0,
        "numberReady": ready,
    }
    await kube.patch(
        DaemonSet.Status,
        "kube-efs-node",
        {"status": status},
        namespace="default",
        patch_type=PatchType.MERGE,
    )


async def install_new_driver(kube: AsyncClient, *, desired: int, ready: int) -> None:
    await create_new_driver(kube)
    await observe_new_driver(kube, desired=desired, ready=ready)


async def new_pod(kube: AsyncClient, node: str, *, ready: bool = False, scheduled: bool = True) -> None:
    """A pod of the new driver for that node, as the controller of DaemonSets creates it."""
    name = f"kube-efs-node-{node}"
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    spec = {"affinity": affinity, "containers": [{"name": "c", "image": "example.com/c"}]}
    body = {
        "metadata": {"name": name, "namespace": "default", "labels": dict(NEW_LABELS)},
        "spec": {**spec, "nodeName": node} if scheduled else spec,
    }
    await kube.create(cast("Pod", Pod.from_dict(body)))
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    await kube.patch(Pod.Status, name, {"status": status}, namespace="default", patch_type=PatchType.MERGE)


async def older_pods_left(kube: AsyncClient) -> list[str]:
    """The names of those that are not being deleted."""
    listing = kube.list(Pod, namespace="default", labels={"app": "efs-csi-node"})
    found = [one.metadata async for one in listing if one.metadata]
    return sorted(one.name or "" for one in found if not one.deletionTimestamp)


@pytest.mark.parametrize("forced", [False, True])
async def test_message_names_the_nodes_without_a_driver_that_a_takeover_waits_for(
    kube: AsyncClient, *, forced: bool
) -> None:
    """Also with the annotation: if the new driver starts nowhere, at most one node must have no driver."""
    await create_account(kube, "efs-csi-sa")
    for node in ("busy", "idle"):
        await kube.create(older_pod(f"old-{node}", node=node))
        await new_pod(kube, node, scheduled=False)
    await new_pod(kube, "broken")
    await new_pod(kube, "full", scheduled=False)
    await new_pod(kube, "new", ready=True)
    await install_new_driver(kube, desired=5, ready=1)
    progress = await takeover_of(ObjectClient(kube)).step(forced=forced)
    assert progress.waiting == (
        "2 nodes still have the older driver; the next older pod is deleted when the new driver is ready on"
        " broken, full: see the pods of DaemonSet default/kube-efs-node, and repair broken nodes or delete"
        " their Nodes"
    )
    assert await older_pods_left(kube) == ["old-busy", "old-idle"]


async def test_number_of_nodes_is_named_while_they_have_no_pod_of_the_new_driver(kube: AsyncClient) -> None:
    await create_account(kube, "efs-csi-sa")
    await kube.create(older_pod("old", node="a"))
    await install_new_driver(kube, desired=4, ready=1)
    progress = await takeover_of(ObjectClient(kube)).step(forced=False)
    assert "when the new driver is ready on 2 of the other nodes: see the pods of" in progress.waiting


async def test_message_names_the_older_pod_whose_end_is_waited_for(kube: AsyncClient) -> None:
    """That of a machine that is off stays until somebody deletes its Node."""
    await create_account(kube, "efs-csi-sa")
    leaving = older_pod("old-a", node="a")
    assert leaving.metadata
    leaving.metadata.finalizers = ["example.com/held"]
    await kube.create(leaving)
    await kube.delete(Pod, "old-a", namespace="default")
    await kube.create(older_pod("old-b", node="b"))
    await install_new_driver(kube, desired=2, ready=0)
    progress = await takeover_of(ObjectClient(kube)).step(forced=False)
    assert progress.waiting == (
        "2 nodes still have the older driver; older pods are ending on a: if such a machine is permanently"
        " off, delete its Node"
    )
    assert await older_pods_left(kube) == ["old-b"]


@pytest.mark.parametrize("is_edited", [pytest.param(False, id="new"), pytest.param(True, id="edited")])
async def test_no_older_pod_is_deleted_while_the_status_of_the_new_daemon_set_is_unknown(
    kube: AsyncClient, *, is_edited: bool
) -> None:
    await create_account(kube, "efs-csi-sa")
    await kube.create(older_pod("old", node="a"))
    await create_new_driver(kube)
    if is_edited:
        await observe_new_driver(kube, desired=0, ready=0)
        slower = {"spec": {"minReadySeconds": 1}}
        await kube.patch(DaemonSet, "kube-efs-node", slower, namespace="default", patch_type=PatchType.MERGE)
    progress = await takeover_of(ObjectClient(kube)).step(forced=False)
    assert progress.waiting == (
        "1 nodes still have the older driver; the next older pod is deleted when Kubernetes has read"
        " DaemonSet default/kube-efs-node of the new driver"
    )
    assert await older_pods_left(kube) == ["old"]


async def create_volume(kube: AsyncClient, name: str, **source: Any) -> None:
    """A volume, and a claim of that name with it."""
    common = {"accessModes": ["ReadWriteMany"]}
    await kube.create(volume(name, **common, capacity={"storage": "1Gi"}, **source))
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    }
    await kube.create(cast("PersistentVolumeClaim", PersistentVolumeClaim.from_dict(body)))


async def create_user(kube: AsyncClient, name: str, node: str, claimed: str) -> None:
    """A pod on the node that uses the claim."""
    user = pod(name, claimed, node=node)
    assert user.spec
    assert user.metadata
    user.spec.containers = [Container(name="c", image="example.com/c")]
    user.metadata.namespace = "default"
    await kube.create(user)


def after_list(kube: AsyncClient, resource: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work once, when the API server has answered the next list of all these objects."""
    client = kube._client._client  # that of HTTP, which can show its answers
    hooks = client.event_hooks

    async def look(answer: httpx2.Response) -> None:
        url = answer.request.url
        if url.path == f"/api/v1/{resource}" and not {"labelSelector", "fieldSelector"} & url.params.keys():
            client.event_hooks = hooks
            await work()

    client.event_hooks = {**hooks, "response": [*hooks["response"], look]}


@pytest.mark.parametrize(
    ("source", "left"),
    [
        pytest.param({"csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}}, ["old-a"], id="driver"),
        pytest.param({"nfs": {"server": "127.0.0.1", "path": "/"}}, ["old-b"], id="tunnel volume"),
    ],
)
async def test_older_pod_stays_if_a_pod_on_its_node_has_begun_to_use_a_volume(
    kube: AsyncClient, source: dict[str, Any], left: list[str]
) -> None:
    """In a large cluster, many seconds pass between the list of all pods and the deletion."""
    await create_account(kube, "efs-csi-sa")
    for node in ("a", "b"):
        await kube.create(older_pod(f"old-{node}", node=node))
    await create_volume(kube, "data", **source)
    after_list(kube, "pods", lambda: create_user(kube, "web", "a", "data"))
    await install_new_driver(kube, desired=2, ready=0)
    await takeover_of(ObjectClient(kube)).step(forced=False)
    assert await kube.get(Pod, "web", namespace="default")
    assert await older_pods_left(kube) == left


@pytest.mark.parametrize("grace_period", [pytest.param(0, id="ended"), pytest.param(30, id="ending")])
async def test_no_older_pod_is_deleted_if_another_one_has_just_been_deleted(
    kube: AsyncClient, grace_period: int
) -> None:
    """By an administrator or an eviction, while the operator lists all pods. Two nodes had no driver then."""
    await create_account(kube, "efs-csi-sa")
    for node in ("a", "b"):
        await kube.create(older_pod(f"old-{node}", node=node))
    await create_volume(kube, "data", csi={"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"})
    after_list(
        kube, "pods", lambda: kube.delete(Pod, "old-b", namespace="default", grace_period=grace_period)
    )
    await install_new_driver(kube, desired=2, ready=0)
    progress = await takeover_of(ObjectClient(kube)).step(forced=False)
    assert await older_pods_left(kube) == ["old-a"]
    assert progress.waiting


async def test_older_pod_stays_if_the_new_driver_of_another_node_is_not_ready_any_more(
    kube: AsyncClient,
) -> None:
    await create_account(kube, "efs-csi-sa")
    await kube.create(older_pod("old-a", node="a"))
    await create_volume(kube, "data", csi={"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"})
    await install_new_driver(kube, desired=2, ready=1)
    after_list(kube, "pods", lambda: observe_new_driver(kube, desired=2, ready=0))
    progress = await takeover_of(ObjectClient(kube)).step(forced=False)
    assert await older_pods_left(kube) == ["old-a"]
    assert "the next older pod is deleted when the new driver is ready on 1 of the other" in progress.waiting


@pytest.mark.parametrize(
    ("namespace", "is_older"),
    [
        pytest.param("kube-system", True, id="where the AWS driver usually is"),
        pytest.param("storage", True, id="where an administrator has bound its role"),
        pytest.param("team", False, id="a tenant's"),
    ],
)
async def test_pods_of_the_aws_driver_in_other_namespaces_are_waited_for_and_stay(
    kube: AsyncClient, namespace: str, is_older: bool
) -> None:
    """Their DaemonSet was deleted without them. While they run, the driver must not get tokens of pods."""
    for name in ("storage", "team"):
        await kube.create(Namespace(metadata=ObjectMeta(name=name)))
    account = {"kind": "ServiceAccount", "name": "custom", "namespace": "storage"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "efs-csi-node-role"}
    binding = {"metadata": {"name": "efs-csi-node-binding"}, "roleRef": role, "subjects": [account]}
    await kube.create(cast("ClusterRoleBinding", ClusterRoleBinding.from_dict(binding)))
    await create_account(kube, "efs-csi-node-sa", namespace)
    await kube.create(older_pod("old", account="efs-csi-node-sa", namespace=namespace))

    await install_new_driver(kube, desired=2, ready=1)
    progress = await takeover_of(ObjectClient(kube)).step(forced=True)
    assert progress.waiting == is_older * (
        "this operator does not delete older pods of other namespaces: drain the nodes of"
        f" {namespace}/old, then delete these pods"
    )
    assert await kube.get(Pod, "old", namespace=namespace)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(TimeoutError("no answer"), ["first"], id="lost answer"),
        pytest.param(KubeUnavailable("answered 500"), ["first"], id="server error"),
        pytest.param(KubeDenied("answered 403"), ["first", "second"], id="refusal"),
    ],
)
async def test_next_older_pod_is_deleted_only_after_a_refusal(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: list[str]
) -> None:
    """A delete without an answer may have succeeded: a second one could leave two nodes without a driver."""
    await create_account(kube, "efs-csi-sa")
    for name in ("first", "second"):
        await kube.create(older_pod(name, node=name))
    asked = []

    async def fail(_resource: type[Pod], name: str, **_scope: str) -> None:
        asked.append(name)
        raise error

    monkeypatch.setattr(kube, "delete", fail)
    await install_new_driver(kube, desired=2, ready=0)
    progress = await takeover_of(ObjectClient(kube)).step(forced=False)
    assert asked == expected
    assert len(progress.errors) == len(expected)
