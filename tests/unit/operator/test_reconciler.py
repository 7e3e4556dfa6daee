"""The facts of the cluster that a pass uses."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import Deployment
from prometheus_client import CollectorRegistry

from kube_efs.kube.events import EventRecorder
from kube_efs.model.errors import KubeConflict, KubeUnavailable
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.model.volumes import FINALIZER as VOLUME_FINALIZER
from kube_efs.operator.cluster_csi_driver import (
    FINALIZER,
    OLDER_FINALIZERS,
    OPERATOR_NAMESPACE,
    DriverResource,
    read_driver_resource,
)
from kube_efs.operator.cluster_facts import InstallationFacts
from kube_efs.operator.desired_objects import ProcessSettings, desired_objects
from kube_efs.operator.events import COMPONENT, OperatorEvents
from kube_efs.operator.kinds import ClusterCSIDriver
from kube_efs.operator.manifests import Manifest, RenderOptions, load_asset
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient, manifest_of
from kube_efs.operator.platforms import Platform
from kube_efs.operator.reconciler import Reconciler
from kube_efs.operator.run import _reconcile_forever
from kube_efs.settings.loading import load
from kube_efs.settings.operator import OperatorSettings
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Heartbeat
from kube_efs.telemetry.metrics import OperatorMetrics

PROXY = {"status": {"httpsProxy": "http://proxy.example.com:3128"}}


async def test_rotated_credentials_do_not_wait_for_other_facts(
    client_of: Callable[..., AsyncClient],
) -> None:
    fails = False

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/nodes"):
            return httpx2.Response(200, json={"kind": "NodeList", "metadata": {}, "items": []})
        if "/proxies/" in request.url.path and not fails:
            return httpx2.Response(200, json={"kind": "Proxy", "metadata": {"name": "cluster"}, **PROXY})
        return _refusal(500 if fails else 404)

    reconciler, cache = _reconciler(client_of(answer), Platform.OPENSHIFT)
    cache.credentials_version, cache.trusted_ca_version = "1", "a"
    first, error = await reconciler._observe()
    assert (first.credentials_version, first.trusted_ca_version, error) == ("1", "a", "")

    fails = True
    cache.credentials_version, cache.trusted_ca_version = "2", None
    facts, error = await reconciler._observe()
    assert error
    assert (facts.credentials_version, facts.trusted_ca_version) == ("2", "a")
    assert facts.proxy == first.proxy == {"HTTPS_PROXY": "http://proxy.example.com:3128"}

    cache.credentials_version, cache.trusted_ca_version = "", "b"  # the Secret is deleted
    facts, error = await reconciler._observe()
    assert error
    assert (facts.credentials_version, facts.trusted_ca_version) == ("", "b")


@pytest.mark.parametrize(
    ("platform", "version"),
    [
        pytest.param(Platform.OPENSHIFT, "a", id="OpenShift writes it again"),
        pytest.param(Platform.KUBERNETES, "", id="an administrator has removed it"),
    ],
)
@pytest.mark.parametrize("fails", [False, True], ids=["facts are read", "facts cannot be read"])
async def test_deleted_trusted_ca_counts_only_where_nobody_writes_it_again(
    client_of: Callable[..., AsyncClient], platform: Platform, version: str, fails: bool
) -> None:
    """Otherwise, the deletion of the ConfigMap would replace the tunnels of all nodes twice."""
    is_down = False

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/nodes"):
            return httpx2.Response(200, json={"kind": "NodeList", "metadata": {}, "items": []})
        return _refusal(500 if is_down else 404)

    reconciler, cache = _reconciler(client_of(answer), platform)
    cache.credentials_version, cache.trusted_ca_version = "", "a"
    facts, _ = await reconciler._observe()
    assert facts.trusted_ca_version == "a"

    is_down, cache.trusted_ca_version = fails, ""
    facts, error = await reconciler._observe()
    assert bool(error) is fails
    assert facts.trusted_ca_version == version

    cache.trusted_ca_version = "b"
    facts, _ = await reconciler._observe()
    assert facts.trusted_ca_version == "b"


async def test_conflicts_that_do_not_end_are_reported(client_of: Callable[..., AsyncClient]) -> None:
    """Else the operator would repeat a pass five times in a second forever, and tell nobody."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        return _refusal(409 if request.method == "PATCH" else 404)

    reconciler, cache = _reconciler(client_of(answer), Platform.KUBERNETES)
    spec = {"managementState": "Unmanaged"}
    cache.driver = {"metadata": {"name": "efs.csi.aws.com", "uid": "1", "resourceVersion": "1"}, "spec": spec}
    for _ in range(10):
        assert await reconciler.reconcile() < 1
    with pytest.raises(KubeConflict, match="status of ClusterCSIDriver"):
        await reconciler.reconcile()


@pytest.mark.parametrize("is_installed", [False, True])
async def test_new_leader_waits_for_an_older_controller_that_may_still_end(
    client_of: Callable[..., AsyncClient], *, is_installed: bool
) -> None:
    """The former leader deleted it and added our finalizer, and the first step of this one fails."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/deployments/kube-efs-controller"):
            template: dict[str, object] = {"spec": {"containers": []}}
            spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
            body = {"metadata": {"name": "kube-efs-controller", "namespace": "storage"}, "spec": spec}
            return httpx2.Response(200, json=body) if is_installed else _refusal(404)
        return _refusal(500)

    reconciler, _ = _reconciler(client_of(answer), Platform.KUBERNETES)
    progress, knows_older_pods = await reconciler._take_over(installed_driver("storage"))
    assert bool(progress.controller) is not is_installed
    assert progress.errors
    assert not knows_older_pods


RESOURCES: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}}
VOLUME = {
    "metadata": {"name": "data"},
    "spec": {**RESOURCES, "csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}},
}
LEAVING = {
    "metadata": {
        "name": "leaving",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": [VOLUME_FINALIZER],
        "annotations": {"pv.kubernetes.io/provisioned-by": "efs.csi.aws.com"},
    },
    "spec": {**VOLUME["spec"], "persistentVolumeReclaimPolicy": "Delete"},
    "status": {"phase": "Released"},
}
CLAIM = {"metadata": {"name": "data", "namespace": "team"}, "spec": {"volumeName": "data"}}
POD = {
    "metadata": {"name": "web", "namespace": "team"},
    "spec": {
        "nodeName": "a",
        "containers": [],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


class LargeCluster:
    """Answers the requests of a removal, and notes the times of what costs much in a large cluster."""

    def __init__(self, **obstacle: Any) -> None:
        options = RenderOptions(platform=Platform.KUBERNETES, namespace="storage", csi=True)
        found = desired_objects(options, InstallationFacts(), ProcessSettings())
        (controller,) = [one for one in found if one["kind"] == "Deployment"]
        metadata = {**controller["metadata"], "uid": "1"}
        self.controller = {**controller, "metadata": metadata, "status": {"availableReplicas": 1}}
        self.lists: dict[str, list[Any]] = {"deployments": [self.controller], **obstacle}
        self.passes: list[float] = []
        self.controller_deleted_at: float | None = None

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        name, now = request.url.path.rpartition("/")[2], asyncio.get_running_loop().time()
        if request.method == "DELETE":
            self.controller_deleted_at = now
            metadata = {**self.controller["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            self.lists["deployments"] = [{**self.controller, "metadata": metadata}]
            return httpx2.Response(200, json={"kind": "Status", "status": "Success"})
        if request.method == "PATCH":
            return httpx2.Response(200, json={"metadata": {"name": name}})
        if name == "daemonsets" and "labelSelector" in request.url.params:
            self.passes.append(now)
        return httpx2.Response(200, json={"metadata": {}, "items": self.lists.get(name, [])})


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "obstacle",
    [
        pytest.param({"persistentvolumes": [LEAVING]}, id="a volume that the controller removes"),
        pytest.param(
            {"persistentvolumes": [VOLUME], "persistentvolumeclaims": [CLAIM], "pods": [POD]},
            id="a pod that uses a volume",
        ),
    ],
)
async def test_removal_that_waits_lists_a_large_cluster_less_and_less_often(
    client_of: Callable[..., AsyncClient], obstacle: dict[str, list[Any]]
) -> None:
    cluster, changed, loop = LargeCluster(**obstacle), asyncio.Event(), asyncio.get_running_loop()
    reconciler, cache = _reconciler(client_of(cluster.answer), Platform.KUBERNETES)
    metadata = {"name": "efs.csi.aws.com", "uid": "1", "resourceVersion": "1", "finalizers": [FINALIZER]}
    annotations = {OPERATOR_NAMESPACE: "storage"}
    cache.driver = {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"managementState": "Removed"},
    }

    async def run(seconds: float) -> None:
        heartbeat = Heartbeat("operator", max_age_seconds=900.0)
        duties = Duties(CollectorRegistry())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _reconcile_forever(reconciler, changed, 60.0, heartbeat, duties, before_full=_nothing)

    await run(60)
    # Who ends the wait after half a minute must not wait for minutes.
    assert all(after - before <= 15 for before, after in pairwise(cluster.passes))
    assert len(cluster.passes) <= 20
    earlier = len(cluster.passes)
    await run(3600)
    assert len(cluster.passes) - earlier <= 75, "an hour has sixty minutes"
    assert cluster.passes[-1] - cluster.passes[-2] == pytest.approx(60)

    # A change that is watched starts a pass at once, and the next step has short pauses again.
    for name in obstacle:
        cluster.lists[name] = []
    changed.set()
    began = loop.time()
    await run(10)
    assert cluster.controller_deleted_at == pytest.approx(began, abs=1)
    assert len([one for one in cluster.passes if one > began]) >= 4


OLDER_OPERATOR: dict[str, Any] = {
    "metadata": {"name": "aws-efs-csi-driver-operator", "namespace": "default"},
    "spec": {
        "selector": {"matchLabels": {"app": "older"}},
        "template": {
            "metadata": {"labels": {"app": "older"}},
            "spec": {"containers": [{"name": "main", "image": "example.com/older"}]},
        },
    },
}


async def driver_with(kube: AsyncClient, finalizers: Iterable[str], *, is_deleted: bool) -> Manifest:
    """The resource as it is deleted or Removed, with these finalizers."""
    (definition,) = load_asset("cluster-csi-driver-crd")
    await kube.create(cast("CustomResourceDefinition", CustomResourceDefinition.from_dict(dict(definition))))
    metadata = ObjectMeta(name="efs.csi.aws.com", finalizers=sorted(finalizers))
    spec = {"managementState": "Managed" if is_deleted else "Removed"}
    await kube.create(ClusterCSIDriver(metadata=metadata, spec=spec))
    if is_deleted:
        await kube.delete(ClusterCSIDriver, "efs.csi.aws.com")
    return manifest_of(await kube.get(ClusterCSIDriver, "efs.csi.aws.com"), "ClusterCSIDriver")


async def read_driver(kube: AsyncClient) -> DriverResource:
    found = await kube.get(ClusterCSIDriver, "efs.csi.aws.com")
    return read_driver_resource(manifest_of(found, "ClusterCSIDriver"))


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "Removed"])
async def test_driver_that_an_older_operator_manages_is_left_to_it(
    kube: AsyncClient, is_deleted: bool
) -> None:
    """This operator stands by beside it; without its finalizers, the older one would not uninstall."""
    await kube.create(cast("Deployment", Deployment.from_dict(OLDER_OPERATOR)))
    reconciler, cache = _reconciler(kube, Platform.KUBERNETES, namespace="default")
    cache.driver = await driver_with(kube, OLDER_FINALIZERS, is_deleted=is_deleted)
    await reconciler.reconcile()
    found = await read_driver(kube)
    assert set(found.finalizers) == OLDER_FINALIZERS
    degraded = next(one for one in found.status["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "OlderOperatorRuns")
    assert "Deployment default/aws-efs-csi-driver-operator still runs" in degraded["message"]

    await kube.delete(Deployment, "aws-efs-csi-driver-operator", namespace="default")
    cache.driver = manifest_of(await kube.get(ClusterCSIDriver, "efs.csi.aws.com"), "ClusterCSIDriver")
    await settled(reconciler, cache, kube)
    if is_deleted:
        assert cache.driver is None
    else:
        assert (await read_driver(kube)).finalizers == ()


async def test_own_removal_leaves_the_finalizers_of_an_older_operator_that_runs_again(
    kube: AsyncClient,
) -> None:
    await kube.create(cast("Deployment", Deployment.from_dict(OLDER_OPERATOR)))
    reconciler, cache = _reconciler(kube, Platform.KUBERNETES, namespace="default")
    cache.driver = await driver_with(kube, {FINALIZER, *OLDER_FINALIZERS}, is_deleted=True)
    await settled(reconciler, cache, kube)
    found = await read_driver(kube)
    assert set(found.finalizers) == OLDER_FINALIZERS


async def settled(reconciler: Reconciler, cache: ObjectCache, kube: AsyncClient) -> None:
    """Some passes, each with the resource as it is then."""
    for _ in range(5):
        await reconciler.reconcile()
        found = [one async for one in kube.list(ClusterCSIDriver)]
        cache.driver = manifest_of(found[0], "ClusterCSIDriver") if found else None


def installed_driver(namespace: str, older_finalizers: Iterable[str] = ()) -> DriverResource:
    """The resource of the driver that the operator of this namespace has installed."""
    metadata = {
        "name": "efs.csi.aws.com",
        "uid": "1",
        "finalizers": [*older_finalizers, FINALIZER],
        "annotations": {OPERATOR_NAMESPACE: namespace},
    }
    return read_driver_resource({"metadata": metadata, "spec": {"managementState": "Managed"}})


async def test_older_operator_that_comes_back_is_found_when_it_adds_its_finalizers(kube: AsyncClient) -> None:
    """Until the next search for older operators, its finalizers would be removed again and again."""
    reconciler, _ = _reconciler(kube, Platform.KUBERNETES, namespace="default")
    progress, _ = await reconciler._take_over(installed_driver("default"))
    assert progress.done
    await kube.create(cast("Deployment", Deployment.from_dict(OLDER_OPERATOR)))
    progress, _ = await reconciler._take_over(installed_driver("default", OLDER_FINALIZERS))
    assert progress.blocked.startswith("Deployment default/aws-efs-csi-driver-operator still runs")


async def test_driver_with_older_finalizers_is_not_changed_while_older_operators_are_unknown(
    client_of: Callable[..., AsyncClient],
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return _refusal(404 if request.url.path.endswith("/kube-efs-controller") else 500)

    reconciler, _ = _reconciler(client_of(answer), Platform.KUBERNETES)
    with pytest.raises(KubeUnavailable):
        await reconciler._take_over(installed_driver("storage", OLDER_FINALIZERS))


async def _nothing() -> None:
    """Nothing precedes a full pass."""


def _refusal(code: int) -> httpx2.Response:
    reason = {404: "NotFound", 409: "Conflict", 500: "InternalError"}[code]
    return httpx2.Response(code, json={"kind": "Status", "status": "Failure", "code": code, "reason": reason})


def _reconciler(
    client: AsyncClient, platform: Platform, *, namespace: str = "storage"
) -> tuple[Reconciler, ObjectCache]:
    settings = load(OperatorSettings, {"POD_NAMESPACE": namespace})
    metrics = OperatorMetrics(CollectorRegistry())
    cache = ObjectCache(client, namespace, asyncio.TaskGroup(), lambda: None)
    events = OperatorEvents(EventRecorder(client, component=COMPONENT), metrics, settings, "")
    objects = ObjectClient(client)
    reconciler = Reconciler(objects, cache, events, metrics, settings, platform, NEW_INSTALLATION)
    return reconciler, cache
