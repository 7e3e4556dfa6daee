from decimal import Decimal
from typing import Any

import pytest
from lightkube.codecs import from_dict

from tinykube.controllers.values import (
    ClaimReference,
    Key,
    read_claim,
    read_node,
    read_pod,
    read_storage_class,
    read_volume,
)
from tinykube.errors import InvalidValue

META = {"name": "data", "namespace": "team", "uid": "u", "resourceVersion": "7"}


def parsed(kind: str, version: str = "v1", **fields: Any) -> Any:
    return from_dict({"apiVersion": version, "kind": kind, "metadata": META, **fields})


def test_claim() -> None:
    claim = read_claim(
        parsed(
            "PersistentVolumeClaim",
            spec={
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "efs",
                "resources": {"requests": {"storage": "1.5Gi"}},
            },
            status={"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteMany"]},
        )
    )
    assert claim.meta.key == Key("team", "data")
    assert claim.request_bytes == Decimal(1610612736)
    assert claim.status_bytes == Decimal(2 * 2**30)


@pytest.mark.parametrize(
    ("spec", "annotations", "class_name"),
    [
        ({}, {}, None),
        ({"storageClassName": ""}, {}, ""),
        ({"storageClassName": "a"}, {"volume.beta.kubernetes.io/storage-class": "b"}, "b"),
    ],
    ids=["none", "empty", "the old annotation wins"],
)
def test_class_of_a_claim(spec: dict[str, Any], annotations: dict[str, str], class_name: str | None) -> None:
    found = parsed("PersistentVolumeClaim", spec=spec)
    found.metadata.annotations = annotations
    assert read_claim(found).class_name == class_name


def test_volume() -> None:
    reference = {"namespace": "team", "name": "data"}
    volume = read_volume(
        parsed("PersistentVolume", spec={"capacity": {"storage": "1k"}, "claimRef": reference})
    )
    assert (volume.capacity, volume.capacity_bytes) == ("1k", Decimal(1000))
    assert volume.claim == ClaimReference(key=Key("team", "data"))


def test_quantity_that_is_none() -> None:
    with pytest.raises(InvalidValue, match="is not a quantity") as caught:
        read_volume(parsed("PersistentVolume", spec={"capacity": {"storage": "much"}}))
    assert (caught.value.field, caught.value.value) == ("spec.capacity.storage", "much")


def test_storage_class() -> None:
    found = read_storage_class(
        parsed(
            "StorageClass", "storage.k8s.io/v1", provisioner="efs", volumeBindingMode="WaitForFirstConsumer"
        )
    )
    assert (found.provisioner, found.waits_for_consumer) == ("efs", True)


def test_pod() -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "b", "emptyDir": {}}]
    status = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no"}]}
    pod = read_pod(parsed("Pod", spec={"containers": [], "volumes": volumes}, status=status))
    assert (pod.claim_names, pod.unschedulable_message, pod.node_name) == (("data",), "no", "")


def test_cordoned_node() -> None:
    assert read_node(parsed("Node", spec={"unschedulable": True})).cordoned
    assert not read_node(parsed("Node")).cordoned
