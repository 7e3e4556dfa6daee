"""Files of authorities that mounts name: only valid ones in the allowed directory, and no links."""

import os
from pathlib import Path

import pytest

from kube_efs.model.errors import InvalidValue
from kube_efs.tunnels.on_demand.ca_files import check_ca_file
from tiny_ca.authority import Authority

LINKED = "cannot be read (it is or contains a link); use a readable file without links"


@pytest.fixture(scope="module")
def pem() -> str:
    return Authority.create().pem


@pytest.fixture
def allowed(tmp_path: Path, pem: str) -> Path:
    """The directory, with files of every kind, and a valid file beside it."""
    folder = tmp_path / "allowed"
    (folder / "team").mkdir(parents=True)
    for path in (folder / "a.pem", folder / "team" / "b.pem", tmp_path / "outside.pem"):
        path.write_text(pem)
    (folder / "two.pem").write_text(pem * 2)
    (folder / "empty.pem").touch()
    (folder / "binary.pem").write_bytes(b"\x00\xff" * 50)
    (folder / "text.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    (folder / "link.pem").symlink_to(folder / "a.pem")
    (folder / "leading-out.pem").symlink_to(tmp_path / "outside.pem")
    (folder / "linked-team").symlink_to(folder / "team")
    os.mkfifo(folder / "pipe.pem")
    return folder


@pytest.mark.parametrize("name", ["a.pem", "team/b.pem", "two.pem"])
def test_file_in_the_directory_is_allowed(allowed: Path, name: str) -> None:
    check_ca_file(f"{allowed}/{name}", allowed)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("link.pem", LINKED),
        ("leading-out.pem", LINKED),
        ("linked-team/b.pem", LINKED),
        ("missing.pem", "cannot be read (No such file or directory)"),
        ("a.pem/b.pem", "cannot be read (Not a directory)"),
        ("team", "cannot be read (not a regular file)"),
        ("pipe.pem", "cannot be read (not a regular file)"),
        ("empty.pem", "contains no certificate authorities; use a file in PEM form"),
        ("binary.pem", "contains no certificate authorities"),
        ("text.pem", "contains no certificate authorities"),
        ("../outside.pem", "is not a valid path"),
        ("team/../a.pem", "is not a valid path"),
        ("./a.pem", "is not a valid path"),
    ],
)
def test_other_files_are_refused_with_the_reason(allowed: Path, name: str, told: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        check_ca_file(f"{allowed}/{name}", allowed)
    assert str(refused.value).startswith("cafile: ")
    assert told in str(refused.value)


@pytest.mark.parametrize("path", ["{}", "{}-other/a.pem", "{}/../outside.pem", "/etc/ssl/cert.pem"])
def test_files_outside_of_the_directory_are_refused(allowed: Path, path: str) -> None:
    with pytest.raises(
        InvalidValue, match=r"is not (in the directory that the administrator allows|a valid path)"
    ):
        check_ca_file(path.format(allowed), allowed)


def test_unreadable_file_is_refused(allowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: object, *_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)  # the tests run as root, who may read everything
    with pytest.raises(InvalidValue, match=r"cannot be read \(Permission denied\)"):
        check_ca_file(f"{allowed}/a.pem", allowed)


def test_every_file_is_refused_without_a_directory(allowed: Path) -> None:
    with pytest.raises(InvalidValue) as refused:
        check_ca_file(f"{allowed}/a.pem", None)
    assert str(refused.value) == (
        f"cafile: '{allowed}/a.pem' would change the authorities that the tunnel trusts; leave it out,"
        " or set KUBE_EFS_CA_DIRECTORY of kube-efs tunnel"
    )
