"""The refusals of both kinds of NFS volumes; their own tests check the texts."""

import pytest

from kube_efs.model.claims import StorageClass
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import ClaimRefused, NotYet
from kube_efs.model.nfs_volumes import tunnel_mount_options, tunnel_port

FS1, FS2 = FileSystemId("fs-1"), FileSystemId("fs-2")
TARGETS = TunnelTargets(targets={FS1: TunnelTarget(file_system_id=FS1, port=20490)})


def class_with(*options: str) -> StorageClass:
    return StorageClass(name="efs", provisioner="example.com/aws-efs", mount_options=options)


@pytest.mark.parametrize("options", [(), ("hard", "timeo=600"), ("noresvport", "portless=1")])
def test_other_mount_options_are_kept(options: tuple[str, ...]) -> None:
    assert tunnel_mount_options(class_with(*options)) == options


@pytest.mark.parametrize("option", ["port=1", "port", "addr=10.0.0.4", "mountport=1", "hard,soft", "a\nb"])
def test_mount_options_that_bypass_the_tunnel_are_refused(option: str) -> None:
    with pytest.raises(ClaimRefused, match="cannot be combined with the tunnel; leave it out") as caught:
        tunnel_mount_options(class_with("hard", option))
    assert (caught.value.field, caught.value.value) == ("StorageClass efs mountOptions", option)


def test_tunnel_port_is_found_for_a_file_system() -> None:
    assert tunnel_port(FS1, TARGETS) == 20490


def test_claim_waits_for_a_missing_tunnel() -> None:
    with pytest.raises(NotYet) as caught:
        tunnel_port(FS2, TARGETS)
    assert str(caught.value) == (
        "file system: 'fs-2' has no tunnel port yet; it gets one with the next discovery"
    )
