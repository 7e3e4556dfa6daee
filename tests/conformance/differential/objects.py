"""Builders for the objects of stories."""

from typing import Any

from tests.conformance.differential.player import Json


def _object(kind: str, name: str, api_version: str = "v1", **rest: Any) -> Json:
    metadata = {"name": name, **rest.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def config_map(name: str, data: Json | None = None, **metadata: Any) -> Json:
    return _object("ConfigMap", name, metadata=metadata, data={"key": "value"} if data is None else data)


def secret(name: str, **metadata: Any) -> Json:
    return _object("Secret", name, metadata=metadata, stringData={"password": name})


def namespace(name: str, **metadata: Any) -> Json:
    return _object("Namespace", name, metadata=metadata)


def storage_class(name: str, **fields: Any) -> Json:
    return _object(
        "StorageClass", name, "storage.k8s.io/v1", **{"provisioner": "example.com/nobody", **fields}
    )


def is_available(found: Json) -> bool:
    """Whether a volume is Available."""
    return bool(found["status"]["phase"] == "Available")


def claim(name: str, storage_class: str | None = "nobody", size: str = "1Gi", **spec: Any) -> Json:
    given = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": size}},
        **({} if storage_class is None else {"storageClassName": storage_class}),
        **spec,
    }
    return _object("PersistentVolumeClaim", name, spec=given)


def volume(
    name: str, storage_class: str = "unclaimed", size: str = "1Gi", labels: Json | None = None, **spec: Any
) -> Json:
    given = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": size},
        "storageClassName": storage_class,
        "persistentVolumeReclaimPolicy": "Retain",
        "nfs": {"server": "127.0.0.1", "path": "/data"},
        **spec,
    }
    return _object(
        "PersistentVolume", name, metadata={} if labels is None else {"labels": labels}, spec=given
    )


def pod(name: str, **spec: Any) -> Json:
    """A pod without a scheduler, and without a token, which only one of the servers creates."""
    given = {
        "schedulerName": "nobody",
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "example.com/main:1"}],
        **spec,
    }
    return _object("Pod", name, spec=given)


def node(name: str, **fields: Any) -> Json:
    return _object("Node", name, **fields)


def lease(name: str, holder: str, **spec: Any) -> Json:
    given = {"holderIdentity": holder, "leaseDurationSeconds": 15, **spec}
    return _object("Lease", name, "coordination.k8s.io/v1", spec=given)


def event(name: str, namespace: str, **fields: Any) -> Json:
    about = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": "about"}
    given = {
        "involvedObject": about,
        "reason": "Provisioning",
        "message": "the file system is being looked up",
        "type": "Normal",
        "source": {"component": "kube-efs"},
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
        **fields,
    }
    return _object("Event", name, metadata={"namespace": namespace}, **given)


def definition(plural: str, kind: str, schema: Json, **version: Any) -> Json:
    group = "differential.example.com"
    served = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        **version,
    }
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
        "versions": [served],
    }
    name = f"{plural}.{group}"
    return _object("CustomResourceDefinition", name, "apiextensions.k8s.io/v1", spec=spec)


def custom(kind: str, name: str, metadata: Json | None = None, **fields: Any) -> Json:
    return _object(kind, name, "differential.example.com/v1", metadata=metadata or {}, **fields)


def workload(kind: str, name: str, **spec: Any) -> Json:
    """A workload for dryRun only, because only one of the servers has its controller."""
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "example.com/main:1"}]},
    }
    given = {"selector": {"matchLabels": labels}, "template": template, **spec}
    return _object(kind, name, "apps/v1", spec=given)
