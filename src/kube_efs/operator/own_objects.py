"""What the operator itself needs in a cluster, whether or not a driver is asked for."""

import asyncio
from typing import Final

import structlog

from kube_efs.model.errors import KubeError, KubeNotFound
from kube_efs.operator.kinds import ObjectReference
from kube_efs.operator.manifests import Manifest, render_asset
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.platforms import Platform
from kube_efs.settings import OperatorSettings

log = structlog.get_logger(__name__)

DRIVER_DEFINITION: Final = "clustercsidrivers.operator.openshift.io"

_CRD: Final = ObjectReference("CustomResourceDefinition", "", DRIVER_DEFINITION)
_OURS: Final = ("app.kubernetes.io/part-of", "kube-efs")
_LOOK_SECONDS: Final = 0.2


async def ensure_driver_kind(cluster: ObjectClient) -> None:
    """Bring the kind ClusterCSIDriver, unless the cluster has one of its own; raises KubeError."""
    found = await cluster.get(_CRD)
    name, value = _OURS
    if found is None or (found["metadata"].get("labels") or {}).get(name) == value:
        (wanted,) = render_asset("cluster-csi-driver-crd", {})
        await cluster.apply(wanted)
        log.info("driver-kind-applied", new=found is None)
    while not _is_established(await cluster.get(_CRD)):  # noqa: ASYNC110 - asked from outside
        await asyncio.sleep(_LOOK_SECONDS)


async def ensure_monitoring(
    cluster: ObjectClient, settings: OperatorSettings, platform: Platform, uid: str
) -> None:
    """Bring the operator's own alerts, where the cluster has such; they go with its Deployment."""
    values = {"namespace": settings.namespace, "operator_name": settings.operator_name}
    openshift = ("operator-monitoring-openshift",) if platform is Platform.OPENSHIFT else ()
    for asset in ("operator-monitoring", *openshift):
        for manifest in render_asset(asset, values):
            try:
                await cluster.apply(_owned(manifest, settings.operator_name, uid))
            except KubeNotFound:
                log.debug("kind-missing", kind=manifest["kind"])
            except KubeError as error:
                log.warning("monitoring-not-applied", kind=manifest["kind"], reason=str(error))


def _owned(manifest: Manifest, name: str, uid: str) -> Manifest:
    if not uid:
        return manifest
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def _is_established(definition: Manifest | None) -> bool:
    conditions = ((definition or {}).get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
