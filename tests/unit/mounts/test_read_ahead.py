"""How far the kernel is told to read ahead."""

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.mounts.test_table import entry

from kube_efs.mounts.read_ahead import set_read_ahead


@pytest.mark.parametrize(
    ("options", "kibibytes"),
    [
        pytest.param("nfsvers=4.1,rsize=1048576,hard", "15360\n", id="the default"),
        pytest.param("rsize=65536", "960\n", id="a smaller block"),
        pytest.param("wsize=1048576,hard", "128\n", id="no size given"),
    ],
)
def test_fifteen_blocks_are_read_ahead(tmp_path: Path, options: str, kibibytes: str) -> None:
    value = tmp_path / "0:50" / "read_ahead_kb"
    value.parent.mkdir()
    value.write_text("128\n")
    set_read_ahead(lambda: [entry("/a"), entry("/b")], Path("/b"), options, devices=tmp_path)
    assert value.read_text() == kibibytes


def test_the_device_of_a_bound_folder_is_left_alone(tmp_path: Path) -> None:
    value = tmp_path / "0:50" / "read_ahead_kb"
    value.parent.mkdir()
    value.write_text("128\n")
    bound = replace(entry("/a"), file_system_type="ext4")
    set_read_ahead(lambda: [bound], Path("/a"), "rsize=65536", devices=tmp_path)
    assert value.read_text() == "128\n"


def test_a_kernel_that_does_not_let_us_is_only_mentioned(tmp_path: Path) -> None:
    with capture_logs() as logs:
        set_read_ahead(lambda: [entry("/a")], Path("/a"), "rsize=65536", devices=tmp_path)
    [line] = logs
    assert (line["event"], line["target"]) == ("read-ahead-not-set", "/a")


def test_what_is_not_mounted_is_left_alone(tmp_path: Path) -> None:
    with capture_logs() as logs:
        set_read_ahead(lambda: [entry("/a")], Path("/b"), "rsize=65536", devices=tmp_path)
    assert logs == []
