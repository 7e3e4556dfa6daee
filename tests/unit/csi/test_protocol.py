"""The protocol: the committed modules match the generator, and messages match the specification."""

import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol import registration_pb2 as registration

ROOT = Path(__file__).parents[3]
_MULTI_WRITER = csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER


def _generated_below(folder: Path) -> dict[str, str]:
    files = folder.glob("kube_efs/*/protocol/*_pb2*.py*")
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_committed_modules_match_the_generator(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts/generate-protocol", tmp_path], check=True, timeout=120)

    committed = _generated_below(ROOT / "src")
    assert "kube_efs/csi/protocol/csi_pb2_grpc.pyi" in committed
    assert _generated_below(tmp_path) == committed


def test_methods_have_the_paths_of_the_specification() -> None:
    files = (csi.DESCRIPTOR, registration.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    assert {service.full_name: {method.name for method in service.methods} for service in services} == {
        "csi.v1.Identity": {"GetPluginInfo", "GetPluginCapabilities", "Probe"},
        "csi.v1.Controller": {
            "CreateVolume",
            "DeleteVolume",
            "ValidateVolumeCapabilities",
            "ListVolumes",
            "ControllerGetCapabilities",
            "ControllerExpandVolume",
            "CreateSnapshot",
            "DeleteSnapshot",
            "ControllerGetVolume",
        },
        "csi.v1.Node": {
            "NodePublishVolume",
            "NodeUnpublishVolume",
            "NodeGetVolumeStats",
            "NodeGetCapabilities",
            "NodeGetInfo",
        },
        "pluginregistration.Registration": {"GetInfo", "NotifyRegistrationStatus"},
    }


def test_exactly_the_secrets_are_marked_and_are_maps_of_text() -> None:
    fields = [field for message in csi.DESCRIPTOR.message_types_by_name.values() for field in message.fields]
    secret = [field for field in fields if field.GetOptions().Extensions[csi.csi_secret]]

    assert {field.full_name for field in secret} == {
        "csi.v1.CreateVolumeRequest.secrets",
        "csi.v1.DeleteVolumeRequest.secrets",
        "csi.v1.CreateSnapshotRequest.secrets",
        "csi.v1.DeleteSnapshotRequest.secrets",
        "csi.v1.ControllerExpandVolumeRequest.secrets",
        "csi.v1.ValidateVolumeCapabilitiesRequest.secrets",
        "csi.v1.NodePublishVolumeRequest.secrets",
    }
    entries = [field.message_type for field in secret]
    assert all(entry is not None and entry.GetOptions().map_entry for entry in entries)
    assert {entry.fields_by_name["value"].type for entry in entries if entry} == {FieldDescriptor.TYPE_STRING}


@pytest.mark.parametrize(
    ("message", "on_the_wire"),
    [
        pytest.param(
            csi.CreateVolumeRequest(
                name="pvc-1",
                capacity_range=csi.CapacityRange(required_bytes=1, limit_bytes=2),
                volume_capabilities=[
                    csi.VolumeCapability(
                        mount=csi.VolumeCapability.MountVolume(fs_type="efs", mount_flags=["ro"]),
                        access_mode=csi.VolumeCapability.AccessMode(mode=_MULTI_WRITER),
                    )
                ],
                secrets={"k": "v"},
            ),
            "0a057076632d31 1204 0801 1002 1a0f 1209 0a03656673 12027 26f 1a020805 2a06 0a016b 120176",
            id="request with a name, a size, a capability and a secret",
        ),
        pytest.param(
            csi.CreateVolumeResponse(
                volume=csi.Volume(
                    capacity_bytes=5,
                    volume_id="fs-1",
                    accessible_topology=[csi.Topology(segments={"z": "a"})],
                )
            ),
            "0a12 0805 120466732d31 2a08 0a06 0a017a 120161",
            id="volume in one zone",
        ),
        pytest.param(
            csi.NodePublishVolumeRequest(
                volume_id="v", target_path="/t", readonly=True, volume_context={"a": "b"}
            ),
            "0a0176 22022f74 3001 4206 0a0161 120162",
            id="read-only volume",
        ),
        pytest.param(
            csi.ControllerExpandVolumeRequest(
                volume_id="v", capacity_range=csi.CapacityRange(required_bytes=1), secrets={"k": "v"}
            ),
            "0a0176 12020801 1a06 0a016b 120176",
            id="expansion",
        ),
        pytest.param(
            csi.ControllerExpandVolumeResponse(capacity_bytes=1, node_expansion_required=True),
            "0801 1001",
            id="expansion that needs nodes",
        ),
        pytest.param(
            csi.PluginCapability(
                volume_expansion=csi.PluginCapability.VolumeExpansion(
                    type=csi.PluginCapability.VolumeExpansion.ONLINE
                )
            ),
            "1202 0801",
            id="capability to expand volumes in use",
        ),
        pytest.param(
            registration.PluginInfo(type="CSIPlugin", name="n", endpoint="/e", supported_versions=["1.0.0"]),
            "0a09435349506c7567696e 12016e 1a022f65 2205312e302e30",
            id="plugin to be registered",
        ),
    ],
)
def test_message_has_the_bytes_of_the_specification(message: Message, on_the_wire: str) -> None:
    expected = bytes.fromhex(on_the_wire.replace(" ", ""))

    assert message.SerializeToString() == expected
    assert type(message).FromString(expected) == message


def test_fields_outside_of_our_protocol_are_ignored() -> None:
    volume_condition = bytes.fromhex("1202 0801")

    assert csi.NodeGetVolumeStatsResponse.FromString(volume_condition).usage == []
