"""What the kubelet asks of the Kubernetes API."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightkube import AsyncClient
from lightkube.models.authentication_v1 import BoundObjectReference, TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import (
    ConfigMap,
    PersistentVolume,
    PersistentVolumeClaim,
    Secret,
    ServiceAccountToken,
)
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.storage_v1 import CSIDriver
from lightkube.types import PatchType

from tinykube.client.calls import unless_missing
from tinykube.errors import NotYet
from tinykube.kubelet.pods import AccountToken, Csi, Nfs, Pod, Store, Unsupported, read_bound

_GID = "pv.beta.kubernetes.io/gid"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundVolume:
    """What a claim is bound to; ``gid`` is the group that its users are to have besides their own."""

    name: str
    source: Nfs | Csi | Unsupported
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverTerms:
    """What a CSIDriver object says of its driver, or Kubernetes' defaults where there is none.

    ``attaches`` means that volumes are mounted only after somebody has attached them.
    """

    attaches: bool = True
    wants_pod: bool = False


class Cluster:
    """The API as one kubelet uses it; a call that fails raises one of CALL_ERRORS."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def contents(self, namespace: str, store: Store, name: str) -> Mapping[str, bytes] | None:
        """The keys of a ConfigMap or Secret, None when there is none of that name."""
        if store is Store.SECRET:
            secret = await unless_missing(self._client.get(Secret, name, namespace=namespace))
            if secret is None:
                return None
            return {key: base64.b64decode(text) for key, text in (secret.data or {}).items()}
        config = await unless_missing(self._client.get(ConfigMap, name, namespace=namespace))
        if config is None:
            return None
        binary = {key: base64.b64decode(text) for key, text in (config.binaryData or {}).items()}
        return {**{key: text.encode() for key, text in (config.data or {}).items()}, **binary}

    async def bound_volume(self, namespace: str, claim_name: str) -> BoundVolume:
        """What the claim is bound to; raises NotYet when it is not, or is being deleted."""
        claim = await unless_missing(self._client.get(PersistentVolumeClaim, claim_name, namespace=namespace))
        if claim is None:
            raise NotYet(f'persistentvolumeclaim "{claim_name}" not found')
        if claim.metadata and claim.metadata.deletionTimestamp:
            raise NotYet(f'persistentvolumeclaim "{claim_name}" is being deleted')
        name = claim.spec.volumeName if claim.spec else None
        if not name or not claim.status or claim.status.phase != "Bound":
            raise NotYet(f'persistentvolumeclaim "{claim_name}" is not bound')
        volume = await self._client.get(PersistentVolume, name)
        gid = ((volume.metadata and volume.metadata.annotations) or {}).get(_GID, "")
        return BoundVolume(name=name, source=read_bound(volume), gid=int(gid) if gid.isdecimal() else None)

    async def driver_terms(self, driver: str) -> DriverTerms:
        """What the driver of this name asks of kubelets."""
        found = await unless_missing(self._client.get(CSIDriver, driver))
        if found is None:
            return DriverTerms()
        return DriverTerms(
            attaches=found.spec.attachRequired is not False, wants_pod=bool(found.spec.podInfoOnMount)
        )

    async def token(self, pod: Pod, wanted: AccountToken) -> str:
        """A token of the pod's service account that is good as long as the pod is there."""
        request = ServiceAccountToken(
            metadata=ObjectMeta(namespace=pod.namespace),
            spec=TokenRequestSpec(
                audiences=[wanted.audience] if wanted.audience else [],
                expirationSeconds=wanted.seconds,
                boundObjectRef=BoundObjectReference(apiVersion="v1", kind="Pod", name=pod.name, uid=pod.uid),
            ),
        )
        issued = await self._client.create(request, pod.service_account, namespace=pod.namespace)
        return (issued.status and issued.status.token) or ""

    async def write_status(self, pod: Pod, status: Mapping[str, Any]) -> bool:
        """Merge this into the status of the pod, if it is still the same one; False when it is gone."""
        written = await unless_missing(
            self._client.patch(
                PodObject.Status,
                pod.name,
                {"metadata": {"uid": pod.uid}, "status": dict(status)},
                namespace=pod.namespace,
                patch_type=PatchType.STRATEGIC,
            )
        )
        return written is not None

    async def remove(self, pod: Pod) -> None:
        """Finish the deletion of a pod, all of which has ended."""
        found = await unless_missing(self._client.get(PodObject, pod.name, namespace=pod.namespace))
        if found and found.metadata and found.metadata.uid == pod.uid:
            await unless_missing(
                self._client.delete(PodObject, pod.name, namespace=pod.namespace, grace_period=0)
            )
