import pytest

from kube_efs.model.csi.capabilities import (
    AccessMode,
    VolumeCapability,
    check_capabilities,
)
from kube_efs.model.csi.errors import InvalidArgument, RpcCode

REFUSED_MODES = {AccessMode.UNKNOWN, AccessMode.MULTI_NODE_SINGLE_WRITER}


@pytest.mark.parametrize("mode", sorted(set(AccessMode) - REFUSED_MODES))
def test_access_modes_are_mapped(mode: AccessMode) -> None:
    check_capabilities([VolumeCapability(access_mode=mode)])
    assert mode.reads_only == mode.endswith("READER_ONLY")


CROSS = "set crossaccount in the provisioner secret or the volume's attributes"


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [
        pytest.param([], "volume capabilities: are missing; give at least one", id="none"),
        *(
            pytest.param(
                [VolumeCapability(access_mode=mode)],
                f"access mode: '{mode.value}' is not supported; use another, such as ReadWriteMany",
                id=mode.value,
            )
            for mode in sorted(REFUSED_MODES)
        ),
        pytest.param(
            [VolumeCapability(is_block=True)],
            "access type: 'block' is not supported; use volumeMode Filesystem",
            id="block device",
        ),
        *(
            pytest.param(
                [VolumeCapability(mount_flags=("tls", flag))],
                f"mountOptions: 'crossaccount' is not allowed; {CROSS}",
                id=flag,
            )
            for flag in ("crossaccount", "CrossAccount", "iam,crossaccount")
        ),
        pytest.param(
            [VolumeCapability(is_block=True), VolumeCapability(access_mode=AccessMode.UNKNOWN)],
            "access mode: 'UNKNOWN' is not supported; use another, such as ReadWriteMany",
            id="modes of all before types of any",
        ),
    ],
)
def test_unsupported_capability_is_refused(capabilities: list[VolumeCapability], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_capabilities(capabilities)
    assert str(caught.value) == message
    assert caught.value.code is RpcCode.INVALID_ARGUMENT
