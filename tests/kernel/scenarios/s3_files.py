"""Volumes of S3 Files: NFS 4.2 through the same tunnels, always with an identity."""

import grpc.aio
import pytest
from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.work import working

from fake_efs.file_systems import Kind
from fake_efs.tls_front import Condition
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.kinds import FileSystemKind


async def volume_survives_the_loss_of_its_mount_target(machine: Machine) -> None:
    fs = await machine.create_file_system(Kind.S3_FILES)
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    assert volume.kind is FileSystemKind.S3_FILES
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        mount = nfs_mount(target)
        assert "vers=4.2" in mount.options
        own, other = machine.efs.fronts(fs)
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            assert (own.traffic.open > 0, own.traffic.refused) == (True, 0)
            await own.become(Condition.REFUSING)
            await work.continues()
            assert other.traffic.bytes_received > 0
        assert nfs_mount(target).port == mount.port
        found = machine.efs.path(fs, "/data").stat()
        assert (found.st_uid, found.st_gid) == (1001, 1001)
        await node.unpublish(volume, target)


async def whole_file_system_needs_an_identity_too(machine: Machine) -> None:
    fs = await machine.create_file_system(Kind.S3_FILES)
    volume = VolumeHandle(kind=FileSystemKind.S3_FILES, file_system_id=fs)
    async with machine.node() as node:
        target = await node.publish(volume, "pod", flags=["nfsvers=4.1"])
        assert "vers=4.1" in nfs_mount(target).options
        async with working(target / "work", machine.efs.path(fs, "/work")) as work:
            await work.continues()
        machine.efs.has_credentials = False
        other = machine.efs.create_access_point(fs, "/other", uid=1001)
        with pytest.raises(grpc.aio.AioRpcError, match="credentials"):
            await node.publish(other, "without an identity")
        machine.efs.has_credentials = True
        for flag, told in (("vers=4.0", "is too old for S3 Files"), ("az=us-east-1a", "use azid")):
            with pytest.raises(grpc.aio.AioRpcError, match=told):
                await node.publish(volume, "refused", flags=[flag])
