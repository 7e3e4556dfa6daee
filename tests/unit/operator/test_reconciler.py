"""The facts of the cluster that a pass uses."""

import asyncio
from collections.abc import Callable

import httpx2
from lightkube import AsyncClient
from prometheus_client import CollectorRegistry

from kube_efs.kube.events import EventRecorder
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.events import COMPONENT, OperatorEvents
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.platforms import Platform
from kube_efs.operator.reconciler import Reconciler
from kube_efs.settings import OperatorSettings, load
from kube_efs.telemetry.metrics import OperatorMetrics

PROXY = {"status": {"httpsProxy": "http://proxy.example.com:3128"}}


async def test_rotated_credentials_do_not_wait_for_other_facts(
    client_of: Callable[..., AsyncClient],
) -> None:
    fails = False

    async def answer(request: httpx2.Request) -> httpx2.Response:
        status = {"kind": "Status", "status": "Failure", "code": 500 if fails else 404}
        if request.url.path.endswith("/nodes"):
            return httpx2.Response(200, json={"kind": "NodeList", "metadata": {}, "items": []})
        if "/proxies/" in request.url.path and not fails:
            return httpx2.Response(200, json={"kind": "Proxy", "metadata": {"name": "cluster"}, **PROXY})
        return httpx2.Response(500 if fails else 404, json=status)

    client, settings = client_of(answer), load(OperatorSettings, POD_NAMESPACE="storage")
    metrics = OperatorMetrics(CollectorRegistry())
    cache = ObjectCache(client, "storage", asyncio.TaskGroup(), lambda: None)
    events = OperatorEvents(EventRecorder(client, component=COMPONENT), metrics, settings, "")
    reconciler = Reconciler(
        ObjectClient(client), cache, events, metrics, settings, Platform.OPENSHIFT, NEW_INSTALLATION
    )
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
