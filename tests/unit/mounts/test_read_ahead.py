"""The read-ahead of mounts."""

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kube_efs.mounts.mount import set_read_ahead, wanted_read_ahead
from kube_efs.mounts.mountinfo import parse_mountinfo

[MOUNT] = parse_mountinfo("1 1 0:50 / /a rw - nfs4 127.0.0.1:/ rw")


@pytest.mark.parametrize(
    ("options", "kibibytes"),
    [
        pytest.param("nfsvers=4.1,rsize=1048576,hard", 15360, id="default"),
        pytest.param("rsize=65536", 960, id="smaller block"),
        pytest.param("wsize=1048576,hard", None, id="no size"),
    ],
)
def test_read_ahead_is_fifteen_blocks(options: str, kibibytes: int | None) -> None:
    assert wanted_read_ahead(options) == kibibytes


@pytest.mark.parametrize(
    ("file_system_type", "value"), [("nfs4", "960\n"), pytest.param("ext4", "128\n", id="bind mount")]
)
def test_read_ahead_is_set_for_nfs_mounts_only(tmp_path: Path, file_system_type: str, value: str) -> None:
    file = tmp_path / "0:50" / "read_ahead_kb"
    file.parent.mkdir()
    file.write_text("128\n")
    set_read_ahead(replace(MOUNT, file_system_type=file_system_type), 960, devices=tmp_path)
    assert file.read_text() == value


def test_failure_to_set_the_read_ahead_is_only_logged(tmp_path: Path) -> None:
    with capture_logs() as logs:
        set_read_ahead(MOUNT, 960, devices=tmp_path)
    [line] = logs
    assert (line["event"], line["target"]) == ("read-ahead-not-set", "/a")
