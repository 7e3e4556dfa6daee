"""The facts of the cluster that a pass uses."""

import asyncio
from collections.abc import Callable

import httpx2
import pytest
from lightkube import AsyncClient
from prometheus_client import CollectorRegistry

from kube_efs.kube.events import EventRecorder
from kube_efs.model.errors import KubeConflict
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.cluster_csi_driver import FINALIZER, OPERATOR_NAMESPACE, read_driver_resource
from kube_efs.operator.events import COMPONENT, OperatorEvents
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.platforms import Platform
from kube_efs.operator.reconciler import Reconciler
from kube_efs.settings.loading import load
from kube_efs.settings.operator import OperatorSettings
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
    metadata = {
        "name": "efs.csi.aws.com",
        "uid": "1",
        "finalizers": [FINALIZER],
        "annotations": {OPERATOR_NAMESPACE: "storage"},
    }
    driver = read_driver_resource({"metadata": metadata, "spec": {"managementState": "Managed"}})
    progress, knows_older_pods = await reconciler._take_over(driver)
    assert bool(progress.controller) is not is_installed
    assert progress.errors
    assert not knows_older_pods


def _refusal(code: int) -> httpx2.Response:
    reason = {404: "NotFound", 409: "Conflict", 500: "InternalError"}[code]
    return httpx2.Response(code, json={"kind": "Status", "status": "Failure", "code": code, "reason": reason})


def _reconciler(client: AsyncClient, platform: Platform) -> tuple[Reconciler, ObjectCache]:
    settings = load(OperatorSettings, {"POD_NAMESPACE": "storage"})
    metrics = OperatorMetrics(CollectorRegistry())
    cache = ObjectCache(client, "storage", asyncio.TaskGroup(), lambda: None)
    events = OperatorEvents(EventRecorder(client, component=COMPONENT), metrics, settings, "")
    objects = ObjectClient(client)
    return Reconciler(objects, cache, events, metrics, settings, platform, NEW_INSTALLATION), cache
