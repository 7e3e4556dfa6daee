"""What a leader reads before it is ready, and before it serves a claim."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolumeClaim
from prometheus_client import CollectorRegistry

from kube_efs.aws.catalogue import Catalogue
from kube_efs.aws.connection import AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.controllers.csi import Aws
from kube_efs.controllers.leading import LeaderContext, lead
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.model.efs.ids import Region, VpcId
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.loading import load
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import AwsMetrics, ControllerMetrics, SharedVolumeMetrics, UsageMetrics

CLAIMS = 3


class Held(httpx2.AsyncBaseTransport):
    """Delays the requests for one path until ``continues`` is set."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, path: str) -> None:
        self._inner = inner
        self._path = path
        self.asked = asyncio.Event()
        self.continues = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == self._path:
            self.asked.set()
            await self.continues.wait()
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def context(client: AsyncClient, loaded: Callable[[], None]) -> LeaderContext:
    """A controller of CSI volumes; it does not call AWS before the first claim."""
    registry = CollectorRegistry()
    metrics, options = AwsMetrics(registry), AwsOptions(region=Region("us-east-1"))
    gateway = AwsGateway(options, metrics)
    own_vpcs: asyncio.Future[frozenset[VpcId]] = asyncio.Future()
    return LeaderContext(
        settings=load(ControllerSettings, {"KUBE_EFS_BACKENDS": "csi", "POD_NAME": "efs-manager-0"}),
        client=client,
        aws=Aws(gateway=gateway, options=options, metrics=metrics),
        catalogue=Catalogue(gateway, 300),
        directories=(),
        metrics=ControllerMetrics(registry),
        shared_volume_metrics=SharedVolumeMetrics(registry),
        usage_metrics=UsageMetrics(registry),
        duties=Duties(registry),
        leadership=Leadership(
            client, LeaseTerms(namespace="efs", name="lead", identity="efs-manager-0"), time.monotonic
        ),
        loaded=loaded,
        own_vpcs=own_vpcs,
    )


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/persistentvolumes",
        "/api/v1/persistentvolumeclaims",
        "/apis/storage.k8s.io/v1/storageclasses",
    ],
)
async def test_controller_is_ready_when_all_lists_are_read(
    kube: AsyncClient,
    cluster: SingleConfig,
    path: str,
) -> None:
    for number in range(CLAIMS):
        await kube.create(_claim(f"claim-{number}"))
    assert cluster.user
    verify = verify_cluster(cluster.cluster, cluster.user, cluster.abs_file)
    transport = Held(httpx2.AsyncHTTPTransport(verify=verify), path)
    loaded = asyncio.Event()

    async with AsyncClient(cluster, transport=transport) as client:
        leading = asyncio.create_task(lead(context(client, loaded.set)))
        try:
            await asyncio.wait_for(transport.asked.wait(), 10)
            # After a few requests of the test, its other lists have been answered.
            for number in range(CLAIMS):
                await kube.get(PersistentVolumeClaim, f"claim-{number}", namespace="default")
            assert not loaded.is_set()

            transport.continues.set()
            await asyncio.wait_for(loaded.wait(), 10)
        finally:
            leading.cancel()
            with suppress(asyncio.CancelledError):
                await leading


def _claim(name: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PersistentVolumeClaimSpec(
            accessModes=["ReadWriteMany"],
            storageClassName="nobody-has-made-it",
            resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
        ),
    )
