"""The metrics of the group ID range of each class."""

import pytest
from prometheus_client import CollectorRegistry

from kube_efs.controllers.group_ids import gid_range, watch_gid_ranges
from kube_efs.model.claims import StorageClass
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import DRIVER
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.metrics import ControllerMetrics

CSI = {"provisioningMode": "efs-ap", "fileSystemId": "fs-0123abcd", "directoryPerms": "700"}


def of_driver(**parameters: str) -> StorageClass:
    return StorageClass(name="csi", provisioner=DRIVER, parameters={**CSI, **parameters})


def of_directories(**parameters: str) -> StorageClass:
    return StorageClass(name="slow", provisioner="example.com/aws-efs", parameters=parameters)


@pytest.mark.parametrize(
    ("storage_class", "expected"),
    [
        pytest.param(of_directories(gidMin="40000", gidMax="40009"), (40000, 40009), id="directories"),
        pytest.param(of_directories(gidAllocate="false"), None, id="directories without groups"),
        pytest.param(of_directories(gidMin="5"), None, id="invalid class"),
        pytest.param(of_driver(gidRangeStart="1000", gidRangeEnd="1999"), (1000, 1999), id="access points"),
        pytest.param(of_driver(uid="0"), (50_000, 7_000_000), id="fixed user"),
        pytest.param(of_driver(uid="0", gid="0"), None, id="fixed user and group"),
        pytest.param(of_driver(directoryPerms="rwx"), None, id="invalid class of the driver"),
    ],
)
def test_id_range_of_a_class_is_found(storage_class: StorageClass, expected: tuple[int, int] | None) -> None:
    found = gid_range(storage_class)
    assert found == (GidRange(minimum=expected[0], maximum=expected[1]) if expected else None)


def test_metrics_follow_classes_and_ids() -> None:
    registry, index = CollectorRegistry(), VolumeIndex()
    watch_gid_ranges(ControllerMetrics(registry), index, {"example.com/aws-efs"})
    slow = {"storage_class": "slow"}
    assert registry.get_sample_value("kube_efs_gid_range_size", slow) is None

    index.classes = {"slow": of_directories(gidMin="40000", gidMax="40009"), "csi": of_driver()}
    for gid in (40000, 40009, 50_000):
        index.gids.hold(gid, f"holder of {gid}")
    assert registry.get_sample_value("kube_efs_gid_range_size", slow) == 10
    assert registry.get_sample_value("kube_efs_gid_range_used", slow) == 2
    assert registry.get_sample_value("kube_efs_gid_range_size", {"storage_class": "csi"}) is None

    index.gids.release("holder of 40000")
    assert registry.get_sample_value("kube_efs_gid_range_used", slow) == 1
    index.classes = {}
    assert registry.get_sample_value("kube_efs_gid_range_used", slow) is None
