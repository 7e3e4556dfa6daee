"""The archive of ``kubectl efs``, built and installed as krew does it."""

import asyncio
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from scripts.krew import PLATFORMS, build

from kube_efs.aws.connection import Service
from tinykube.api import ApiServer

_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The archive for this machine and its version of Python, and the manifest."""
    if ("linux", _MACHINE) not in PLATFORMS:
        pytest.skip(f"there is no archive for {platform.machine()}")
    archive, manifest = build(
        tmp_path_factory.mktemp("krew"), [("linux", _MACHINE)], [_PYTHON], url="https://example.com/a"
    )
    return archive, manifest


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PATH with the program of the manifest, beside a bare Python."""
    archive, manifest = built
    folder = tmp_path_factory.mktemp("installed")
    with tarfile.open(archive) as content:
        content.extractall(folder / "store", filter="data")
    [described] = yaml.safe_load(manifest.read_text())["spec"]["platforms"]
    programs = folder / "bin"
    programs.mkdir()
    (programs / "kubectl-efs").symlink_to(folder / "store" / described["bin"])
    # Not the one of the virtual environment, which has the libraries.
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    kubectl = shutil.which("kubectl")
    assert kubectl, "kubectl cannot be found; make setup installs it"
    (programs / "kubectl").symlink_to(kubectl)
    return programs


def _run(programs: Path, *arguments: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "kubectl", "efs", *arguments],
        env={
            "PATH": f"{programs}:{os.defpath}",
            "HOME": str(kubeconfig.parent),
            "KUBECONFIG": str(kubeconfig),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_kubectl_runs_the_installed_plug_in_against_a_cluster(installed: Path, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    async with ApiServer() as api:
        api.write_kubeconfig(kubeconfig)
        for arguments in (("status",), ("top", "--output", "json"), ("migrate", "--help")):
            answer = await asyncio.to_thread(_run, installed, *arguments, kubeconfig=kubeconfig)
            assert answer.returncode == 0, answer.stderr
        answer = await asyncio.to_thread(_run, installed, "doctor", "claim", "nothing", kubeconfig=kubeconfig)
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "claim default/nothing" in answer.stdout


# Without the description of a service, botocore raises UnknownServiceError. Profiles of IAM Identity Center
# call the last two for credentials.
@pytest.mark.parametrize("service", [*Service, "sso", "sso-oidc"])
def test_archive_describes_each_service_that_commands_call(installed: Path, service: str) -> None:
    store = (installed / "kubectl-efs").resolve().parent
    assert list(store.glob(f"lib/*/botocore/data/{service}/*/service-2.json*"))


def test_manifest_describes_the_archive(built: tuple[Path, Path]) -> None:
    archive, manifest = built
    spec = yaml.safe_load(manifest.read_text())["spec"]
    assert spec["platforms"] == [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": _MACHINE}},
            "uri": f"https://example.com/a/{archive.name}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "bin": "kubectl-efs",
        }
    ]
    assert archive.name == f"kubectl-efs-{spec['version'].removeprefix('v')}-linux-{_MACHINE}.tar.gz"


def test_same_sources_give_the_same_archive(built: tuple[Path, Path], tmp_path: Path) -> None:
    archive, _ = built
    again, _ = build(tmp_path, [("linux", _MACHINE)], [_PYTHON])
    assert again.read_bytes() == archive.read_bytes()


def test_lists_of_files_name_no_scripts_of_this_machine(installed: Path) -> None:
    store = (installed / "kubectl-efs").resolve().parent
    records = list(store.glob("lib/*/*.dist-info/RECORD"))
    assert records
    assert [record for record in records if "../" in record.read_text()] == []


def test_python_without_libraries_is_an_error_with_a_remedy(installed: Path) -> None:
    launcher = (installed / "kubectl-efs").resolve()
    code = f"import sys, runpy; sys.version_info = (3, 1, 0); runpy.run_path({str(launcher)!r})"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 1
    assert answer.stderr == f"error: Python 3.1.0 cannot run kubectl efs: use one of {_PYTHON}\n"
