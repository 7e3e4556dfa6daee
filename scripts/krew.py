"""Builds the archives of ``kubectl efs`` and their manifest for krew, into a directory.

krew unpacks the archive of a platform, and links one program of it: a small launcher. Beside it are the
libraries: those in ``lib/any`` are the same for every version of Python, and those in ``lib/3.x`` have
compiled parts. So one archive serves all versions on a platform, and needs no pip and no network when it
starts. The same sources give the same bytes.
"""

import argparse
import filecmp
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from kube_efs.aws.connection import Service

_ROOT: Final = Path(__file__).parents[1]
_LAUNCHER: Final = Path(__file__).with_name("kubectl-efs")
_NAME: Final = "efs"
# Where people get the archives, unless --url names another place.
_URL: Final = "https://example.com/kube-efs/releases"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
# The platform as krew names it, and as the wheels do.
PLATFORMS: Final = {
    ("linux", "amd64"): "manylinux2014_x86_64",
    ("linux", "arm64"): "manylinux2014_aarch64",
    # Not for amd64: cryptography has no wheels for it.
    ("darwin", "arm64"): "macosx_11_0_arm64",
}
# What the commands do not use: the servers of the cluster and their traces, and compiled copies of what
# is there as source.
_UNUSED: Final = ("grpcio", "opentelemetry", "protobuf")
# What the commands call, and for profiles of IAM Identity Center the client library. Those of `aws login`
# need awscrt, which the archive does not have.
_SERVICES: Final = frozenset({*Service, "sso", "sso-oidc"})
_DATE: Final = 315_532_800  # 1980-01-01, before which archives for Windows have no time


def build(
    folder: Path, platforms: Sequence[tuple[str, str]], pythons: Sequence[str], *, url: str = _URL
) -> list[Path]:
    """The archives of these platforms for these versions of Python, and the manifest as the last one.

    ``url`` is the directory from which krew will get the archives.
    """
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    folder.mkdir(parents=True, exist_ok=True)
    archives: dict[tuple[str, str], Path] = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        wheel = _build_wheel(work)
        for system, machine in platforms:
            tree = work / f"{system}-{machine}"
            _install(tree / "lib", wheel, PLATFORMS[system, machine], pythons)
            shutil.copy(_LAUNCHER, tree / "kubectl-efs")
            shutil.copy(_LAUNCHER, tree / "kubectl_complete-efs")
            shutil.copy(_ROOT / "LICENSE", tree / "LICENSE")
            archive = folder / f"kubectl-efs-{version}-{system}-{machine}.tar.gz"
            archive.write_bytes(_pack(tree))
            archives[system, machine] = archive
    manifest = folder / f"{_NAME}.yaml"
    manifest.write_text(_manifest(version, archives, url))
    return [*archives.values(), manifest]


def _build_wheel(work: Path) -> Path:
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(_ROOT))
    [wheel] = work.glob("kube_efs-*.whl")
    return wheel


def _install(lib: Path, wheel: Path, platform: str, pythons: Sequence[str]) -> None:
    """The libraries of each version; packages that are the same in all of them move to ``any``."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    needed = [one for one in project["dependencies"] if not one.startswith(_UNUSED)]
    for python in pythons:
        _pip(
            *("install", "--target", str(lib / python), "--no-compile", "--only-binary", ":all:"),
            *("--python-version", python, "--implementation", "cp", "--platform", platform),
            *("--constraint", str(_ROOT / "constraints.txt"), *needed),
        )
        _remove_unused(lib / python)
    first, *others = (lib / python for python in pythons)
    common = lib / "any"
    common.mkdir()
    for package in sorted(first.iterdir()):
        if others and all(_is_same(package, other / package.name) for other in others):
            package.rename(common / package.name)
            for other in others:
                _remove(other / package.name)
    # Not by pip, which would note the path of the wheel.
    with zipfile.ZipFile(wheel) as content:
        content.extractall(common)  # noqa: S202 - made above


def _remove_unused(lib: Path) -> None:
    shutil.rmtree(lib / "bin", ignore_errors=True)
    # Their hashes in the lists of files depend on the directory of this Python, which is in their first line.
    for record in lib.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not line.startswith("../../bin/")))
    for service in (lib / "botocore" / "data").iterdir():
        if service.is_dir() and service.name not in _SERVICES:
            shutil.rmtree(service)


def _is_same(one: Path, other: Path) -> bool:
    if one.is_file() or other.is_file():
        return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
    if not other.is_dir() or {path.name for path in one.iterdir()} != {path.name for path in other.iterdir()}:
        return False
    return all(_is_same(path, other / path.name) for path in one.iterdir())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _pack(tree: Path) -> bytes:
    """The tree as a compressed archive, without times and owners."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in _files(tree):
            entry = archive.gettarinfo(path, str(path.relative_to(tree)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = _DATE, 0, 0, "", ""
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return gzip.compress(content.getvalue(), mtime=0)


def _files(tree: Path) -> Iterator[Path]:
    return (path for path in sorted(tree.rglob("*")) if path.is_file())


def _manifest(version: str, archives: Mapping[tuple[str, str], Path], url: str) -> str:
    platforms = [
        {
            "selector": {"matchLabels": {"os": system, "arch": machine}},
            "uri": f"{url}/{archive.name}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "bin": "kubectl-efs",
        }
        for (system, machine), archive in archives.items()
    ]
    return yaml.safe_dump(
        {
            "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
            "kind": "Plugin",
            "metadata": {"name": _NAME},
            "spec": {
                "version": f"v{version}",
                "homepage": url,
                "shortDescription": "Check and manage Amazon EFS volumes of kube-efs",
                "description": (
                    "Shows file systems, claims, volumes and tunnels, finds problems and their remedies,\n"
                    "and converts NFS volumes to CSI volumes with the same data.\n"
                ),
                "caveats": f"This plug-in needs Python {PYTHONS[0]} to {PYTHONS[-1]} (python3).\n",
                "platforms": platforms,
            },
        },
        sort_keys=False,
    )


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, timeout=900)


def main() -> None:
    """Build what the arguments say, by default everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=_ROOT / "build" / "krew")
    parser.add_argument("--platform", action="append", help="such as linux-amd64; repeatable")
    parser.add_argument("--python", action="append", help="such as 3.13; repeatable")
    parser.add_argument("--url", default=_URL, help="where krew gets the archives (default: %(default)s)")
    options = parser.parse_args()
    names = options.platform or ["-".join(one) for one in PLATFORMS]
    platforms = [(system, machine) for system, _, machine in (name.partition("-") for name in names)]
    for path in build(options.folder, platforms, options.python or PYTHONS, url=options.url):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
