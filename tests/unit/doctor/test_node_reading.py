"""The files of a node: stunnel's configuration, the kernel log, mounts, SELinux."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kube_efs.doctor.gathering.kernel import (
    loopback_mounts,
    parse_records,
    read_booleans,
    read_kernel_log,
)
from kube_efs.doctor.gathering.stunnel_configuration import parse_configuration
from kube_efs.doctor.node_facts import ConfiguredTunnel, LoopbackMount
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import PlatformError
from kube_efs.mounts.mountinfo import parse_mountinfo
from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.stunnel.configuration import render_configuration

_CA = Path("/etc/amazon/efs/efs-utils.crt")


def _service(name: str, port: int) -> TunnelService:
    return TunnelService(
        name=name,
        file_system_id=FileSystemId(name),
        port=port,
        addresses=("10.0.1.5", "10.0.2.6"),
        check_host=f"{name}.efs.us-east-1.amazonaws.com",
        ca_file=_CA,
    )


def test_configuration_of_the_agent_is_parsed() -> None:
    services = [_service("fs-11111111", 20490), _service("fs-22222222", 20491)]
    text = render_configuration(services, connect_timeout_seconds=2)
    assert parse_configuration(text) == tuple(
        ConfiguredTunnel(
            name=one.name, port=one.port, addresses=one.addresses, check_host=one.check_host, ca_file=_CA
        )
        for one in services
    )


def test_directory_of_authorities_stands_for_the_file_beside_it() -> None:
    service = replace(_service("fs-11111111", 20490), hashed_ca_directory=_CA.with_name(f"{_CA.name}.d"))
    (found,) = parse_configuration(render_configuration([service], connect_timeout_seconds=2))
    assert found.ca_file == _CA


def test_configuration_of_the_older_system_is_parsed() -> None:
    text = (
        "CAfile = /ca.crt\n; a comment\n[fs-1]\n client=yes\n accept = 20490\n"
        "connect = fs-1.efs:2049\ncheckHost=fs-1.efs\n[other]\nclient = yes\nnothing\n"
    )
    (found,) = parse_configuration(text)
    assert found == ConfiguredTunnel(
        name="fs-1", port=20490, addresses=("fs-1.efs",), check_host="fs-1.efs", ca_file=Path("/ca.crt")
    )


def test_records_of_the_kernel_log_are_parsed() -> None:
    records = [
        "6,1200,5140900,-;nfs: server 127.0.0.1 not responding, still trying\n SUBSYSTEM=x\n",
        "4,1201,5140901,-;nfs: server 127.0.0.1 OK\n",
    ]
    expected = ("nfs: server 127.0.0.1 not responding, still trying", "nfs: server 127.0.0.1 OK")
    assert parse_records(records) == expected


def test_unreadable_kernel_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match=r"kernel: .*cannot be read \(No such file"):
        read_kernel_log(tmp_path / "kmsg")


def test_kernel_log_is_read_until_its_current_end(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    keeper = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # as /dev/kmsg, it never ends
    try:
        os.write(keeper, b"6,1,1,-;one\n6,2,2,-;two\n")
        assert read_kernel_log(path) == ("one", "two")
    finally:
        os.close(keeper)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({}, {}, id="no SELinux"),
        pytest.param({"enforce": "0", "booleans/virt_use_nfs": "0 0"}, {}, id="not enforced"),
        pytest.param(
            {"enforce": "1", "booleans/virt_use_nfs": "1 1", "booleans/virt_sandbox_use_nfs": "0 1"},
            {"virt_use_nfs": True, "virt_sandbox_use_nfs": False},
            id="one enabled, one to be enabled",
        ),
        pytest.param({"enforce": "1\n"}, {}, id="booleans of other policies"),
    ],
)
def test_selinux(tmp_path: Path, files: dict[str, str], found: dict[str, bool]) -> None:
    (tmp_path / "booleans").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert dict(read_booleans(tmp_path)) == found


def test_mounts_through_tunnels_are_found() -> None:
    table = (
        "36 25 0:32 / /mnt/a rw,relatime - nfs4 127.0.0.1:/team rw,vers=4.1,port=20490,addr=127.0.0.1\n"
        "37 25 0:33 / /mnt/b rw - nfs4 10.0.0.1:/ rw,port=2049\n"
        "38 25 0:34 / /mnt/c rw - tmpfs 127.0.0.1: rw,port=1\n"
        "39 25 0:35 / /mnt/d rw - nfs4 127.0.0.1:/ rw,vers=4.1\n"
    )
    expected = (LoopbackMount(mount_point=Path("/mnt/a"), port=20490),)
    assert loopback_mounts(parse_mountinfo(table)) == expected
