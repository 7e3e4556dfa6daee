"""Content of a support bundle of a cluster whose namespace contains workloads of others."""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.doctor import examples as ex

from kube_efs.doctor.bundle import Bundle
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.bundles import collect_cluster
from kube_efs.model.names import AWS_EFS_CSI_DRIVER

_NAMES = AWS_EFS_CSI_DRIVER
_LABEL = {"app.kubernetes.io/part-of": "kube-efs"}
# efs-provisioner's own manifests have no label.
_UNLABELED = replace(ex.CONTROLLER, namespace=_NAMES.namespace, name="efs-provisioner")
_CLUSTER = replace(ex.CLUSTER, names=_NAMES, workloads=(_UNLABELED,))


class _Object(dict[str, Any]):
    def to_dict(self) -> dict[str, Any]:
        return dict(self)


def _object(name: str, namespace: str = _NAMES.namespace, **more: Any) -> _Object:
    labels = more.pop("labels", {})
    metadata = {"name": name, "namespace": namespace, "uid": f"uid of {name}", "labels": labels}
    return _Object({"metadata": metadata, **more})


def _event(name: str, kind: str, subject: str, namespace: str = _NAMES.namespace) -> _Object:
    about = {"kind": kind, "name": subject, "namespace": namespace, "uid": f"uid of {subject}"}
    return _object(name, namespace, involvedObject=about)


class _Client:
    """Answers lists and logs."""

    def __init__(self, objects: Mapping[str, list[_Object]]) -> None:
        self._objects = objects

    async def list(self, kind: type, *, chunk_size: int, namespace: str = "") -> AsyncGenerator[_Object]:
        assert chunk_size
        for one in self._objects.get(kind.__name__, []):
            if namespace in {"", "*", one["metadata"]["namespace"]}:
                yield one

    async def log(self, pod: str, namespace: str, tail_lines: int) -> AsyncGenerator[str]:
        yield f"{tail_lines} lines of {namespace}/{pod}\n"


async def _collect(**objects: list[_Object]) -> dict[str, str]:
    client: Any = _Client(objects)
    attempts, bundle = Attempts(timeout_seconds=5), Bundle()
    await collect_cluster(client, _CLUSTER, bundle, attempts)
    assert attempts.gaps == ()
    return bundle.files


def _names(files: Mapping[str, str], kind: str) -> list[str]:
    return [one["metadata"]["name"] for one in json.loads(files[f"objects/{kind}.json"])]


async def test_logs_are_only_those_of_the_pods_of_kube_efs() -> None:
    others = [_object(f"aws-node-{number:02}", labels={"k8s-app": "aws-node"}) for number in range(50)]
    own = [
        _object("efs-csi-controller-1", labels=_LABEL),
        _object("named-otherwise", labels=_LABEL),
        _object("efs-init-fs-1-data-1", labels={"component": "efs-worker"}),
        _object("efs-provisioner-1", labels={"app": "efs-provisioner"}),
    ]
    files = await _collect(Pod=[*others, *own])
    names = {one["metadata"]["name"] for one in own}
    assert set(_names(files, "Pod")) == names
    assert {one for one in files if one.startswith("logs/")} == {f"logs/{name}.log" for name in names}
    assert files["logs/named-otherwise.log"] == "2000 lines of kube-system/named-otherwise\n"


async def test_logs_of_controllers_come_before_those_of_many_nodes() -> None:
    running = {"phase": "Running"}
    nodes = [
        _object(f"a-{number}", labels={**_LABEL, "component": component}, status=running)
        for component in (_NAMES.tunnel, _NAMES.node)
        for number in range(40)
    ]
    controller = _object("z", labels={**_LABEL, "component": _NAMES.controller}, status=running)
    files = await _collect(Pod=[*nodes, controller])
    assert "logs/z.log" in files


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Deployment", "efs-provisioner"),
        ("DaemonSet", _NAMES.tunnel),
        ("ServiceAccount", _NAMES.worker_account),
        ("Lease", "kube-efs-controller"),
        ("Lease", "external-resizer-efs-csi-aws-com"),
        ("ConfigMap", _NAMES.config_map),
        ("ConfigMap", _NAMES.tunnel_status_of("one")),
    ],
)
async def test_objects_of_others_are_left_out(kind: str, name: str) -> None:
    files = await _collect(**{kind: [_object("billing"), _object("efs-billing"), _object(name)]})
    assert _names(files, kind) == [name]


async def test_events_are_only_about_own_objects_claims_and_volumes() -> None:
    files = await _collect(
        Pod=[_object("efs-csi-controller-1", labels=_LABEL), _object("billing-1")],
        PersistentVolume=[_object("volume-1", ""), _object("disk", "")],
        PersistentVolumeClaim=[
            _object("data", "team", spec={"volumeName": "volume-1"}),
            _object("other", "team", spec={"storageClassName": "gp3"}),
        ],
        Event=[
            _event("1", "Pod", "efs-csi-controller-1"),
            _event("2", "Pod", "billing-1"),
            _event("3", "Pod", "efs-csi-controller-ended"),
            _event("4", "ReplicaSet", "efs-provisioner-5d4"),
            _event("5", "Pod", "efs-provisioner-1", "team"),
            _event("6", "PersistentVolume", "volume-1", "default"),
            _event("7", "PersistentVolume", "disk", "default"),
            _event("8", "PersistentVolumeClaim", "data", "team"),
            _event("9", "PersistentVolumeClaim", "other", "team"),
        ],
    )
    assert _names(files, "Event") == ["1", "3", "4", "6", "8"]
