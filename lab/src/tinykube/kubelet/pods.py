"""Pods as the kubelet reads them, and what it reads for them."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from lightkube import AsyncClient
from lightkube.models.core_v1 import PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import core_v1

from tinykube.client.calls import unless_missing
from tinykube.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod; ``grace_seconds`` is how long its processes may take to end once it is being deleted."""

    namespace: str
    name: str
    uid: str
    spec: PodSpec
    version: str = ""
    ended: bool = False
    deleting: bool = False
    grace_seconds: float = 30.0


def read_pod(found: core_v1.Pod) -> Pod:
    """The pod."""
    meta = found.metadata or ObjectMeta()
    spec = found.spec or PodSpec(containers=[])
    graces = (meta.deletionGracePeriodSeconds, spec.terminationGracePeriodSeconds)
    return Pod(
        namespace=meta.namespace or "",
        name=meta.name or "",
        uid=meta.uid or "",
        spec=spec,
        version=meta.resourceVersion or "",
        ended=found.status is not None and found.status.phase in {"Succeeded", "Failed"},
        deleting=meta.deletionTimestamp is not None,
        grace_seconds=next((float(one) for one in graces if one is not None), 30.0),
    )


def field_of(pod: Pod, path: str) -> str:
    """A field of the pod by its path; raises InvalidValue for one that is not known here."""
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.spec.nodeName or "",
        "spec.serviceAccountName": pod.spec.serviceAccountName or "default",
    }
    if path not in fields:
        raise InvalidValue("is not known to this kubelet", field="fieldPath", value=path)
    return fields[path]


async def read_config_map(client: AsyncClient, namespace: str, name: str) -> Mapping[str, str]:
    """The data of a ConfigMap; empty if it does not exist."""
    found = await unless_missing(client.get(core_v1.ConfigMap, name, namespace=namespace))
    return (found and found.data) or {}


async def read_secret(client: AsyncClient, namespace: str, name: str) -> Mapping[str, str]:
    """The data of a Secret; empty if it does not exist."""
    found = await unless_missing(client.get(core_v1.Secret, name, namespace=namespace))
    data = (found and found.data) or {}
    return {key: base64.b64decode(text).decode(errors="surrogateescape") for key, text in data.items()}
