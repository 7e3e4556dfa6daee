"""Builds all files of a release into a directory: ``make release VERSION=0.2.0``.

It publishes nothing, and needs no registry. The same commit gives the same bytes: wheels have the time of the
commit, archives have no times and owners, and the image has none at all. docs/releasing.md says what a
maintainer does with the files.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from scripts.images import mounted_image
from scripts.krew import PLATFORMS, PYTHONS
from scripts.krew import build as build_krew
from scripts.man_pages import pages
from scripts.sbom import bill_of_materials

_ROOT: Final = Path(__file__).parents[1]
_CHART: Final = _ROOT / "deploy/helm/kube-efs"
_SECTION: Final = r"^## \[{version}\] - (?P<date>\S+)\n(?P<notes>.*?)(?=^## \[|\Z)"
# As people install it, by the name of the file.
MANIFESTS: Final = {
    "kube-efs.yaml": ("--for", "kubernetes"),
    "kube-efs-csi.yaml": ("--for", "kubernetes", "--csi"),
    "kube-efs-csi-only.yaml": ("--for", "kubernetes", "--csi-only"),
    "kube-efs-openshift.yaml": ("--for", "openshift", "--csi"),
}
ARCHITECTURES: Final = ("amd64", "arm64")
# Of the longest step: an image whose programs are emulated.
_STEP_SECONDS: Final = 7200


class ReleaseRefused(Exception):
    """The tree is not the one of that release; the text is the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A version, the time of its commit (seconds since 1970), and the directory for its files."""

    version: str
    commit: str
    time: int
    folder: Path

    def path(self, name: str) -> Path:
        """The path of a file of the release."""
        return self.folder / name


def checked_release(version: str, folder: Path) -> Release:
    """The release of the tree; raises ReleaseRefused."""
    ours = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if version != ours:
        raise ReleaseRefused(f"pyproject.toml has version {ours}, not {version}: change it there, and commit")
    release_notes(version)
    if changed := _git("status", "--porcelain"):
        raise ReleaseRefused(f"the tree has changes that no commit has; commit or remove them:\n{changed}")
    commit = _git("rev-parse", "HEAD")
    return Release(version=version, commit=commit, time=int(_git("log", "-1", "--format=%ct")), folder=folder)


def release_notes(version: str) -> str:
    """The section of CHANGELOG.md; raises ReleaseRefused without one, or if it has no date."""
    text = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(_SECTION.format(version=re.escape(version)), text, flags=re.MULTILINE | re.DOTALL)
    if section is None:
        raise ReleaseRefused(f"CHANGELOG.md has no section [{version}]: rename [Unreleased]")
    try:
        datetime.date.fromisoformat(section["date"])
    except ValueError as error:
        raise ReleaseRefused(f"CHANGELOG.md gives [{version}] the date {section['date']!r}") from error
    return section["notes"].strip() + "\n"


def build_wheels(release: Release) -> None:
    """The wheels of kube-efs and of the lab."""
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(release.time),
        "KUBE_EFS_REVISION": release.commit,
    }
    with tempfile.TemporaryDirectory() as name:
        for project in (_ROOT, _ROOT / "lab"):
            command = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
            _run(sys.executable, *command, "--wheel-dir", name, str(project), environment=environment)
        for wheel in Path(name).glob("*.whl"):
            shutil.copyfile(wheel, release.path(wheel.name))


def build_sources(release: Release) -> None:
    """The files of the commit."""
    name = f"kube-efs-{release.version}"
    command = ("git", "-C", str(_ROOT), "archive", "--format=tar", f"--prefix={name}/", release.commit)
    content = subprocess.run(command, check=True, capture_output=True, timeout=_STEP_SECONDS).stdout
    release.path(f"{name}-source.tar.gz").write_bytes(gzip.compress(content, mtime=0))


def build_chart(release: Release) -> None:
    """The chart as ``helm package`` names it, with the schema of its values."""
    files = {f"kube-efs/{path.relative_to(_CHART)}": path.read_bytes() for path in _files(_CHART)}
    release.path(f"kube-efs-chart-{release.version}.tgz").write_bytes(_packed(files, release.time))


def build_manifests(release: Release) -> None:
    """The objects of installations, for kubectl, and the bundle of the operator for OLM."""
    program = (sys.executable, "-m", "kube_efs", "render")
    for name, options in MANIFESTS.items():
        release.path(name).write_text(_run(*program, *options), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        _run(*program, "--for", "olm", "--directory", folder)
        files = {f"bundle/{path.relative_to(folder)}": path.read_bytes() for path in _files(Path(folder))}
    release.path(f"kube-efs-bundle-{release.version}.tar.gz").write_bytes(_packed(files, release.time))


def build_manuals(release: Release) -> None:
    """The manual pages."""
    files = {f"man1/{name}": text.encode() for name, text in pages().items()}
    release.path(f"kube-efs-man-{release.version}.tar.gz").write_bytes(_packed(files, release.time))


def build_plugins(release: Release, pythons: Sequence[str], platforms: Sequence[tuple[str, str]]) -> None:
    """The archives of kubectl efs, and their manifest for krew."""
    build_krew(release.folder, platforms, pythons)


def architectures_here() -> list[str]:
    """The architectures whose programs this machine runs or emulates; prints why it cannot the others."""
    found = []
    for architecture in ARCHITECTURES:
        command = (str(_ROOT / "scripts/emulate"), architecture)
        if subprocess.run(command, check=False, timeout=_STEP_SECONDS).returncode == 0:
            found.append(architecture)
        else:
            sys.stderr.write(f"The release has no image for {architecture}; see above.\n")
    return found


def build_image(release: Release, base: str, architecture: str) -> None:
    """The image of an architecture as an OCI archive, and its bill of materials."""
    image = f"localhost/kube-efs:{release.version}-{architecture}"
    variables = {"BASE": base, "ARCH": architecture, "IMAGE": image}
    _run(str(_ROOT / "scripts/build-image"), environment={**os.environ, **variables})
    with tempfile.TemporaryDirectory() as folder:
        layout = Path(folder) / "layout"
        _run("buildah", "push", "--quiet", image, f"oci:{layout}:{release.version}")
        files = {str(path.relative_to(layout)): path.read_bytes() for path in _files(layout)}
    name = f"kube-efs-image-{release.version}-{architecture}"
    release.path(f"{name}.oci.tar").write_bytes(_tar(files, release.time))
    with mounted_image(image) as root:
        text = bill_of_materials(root, name="kube-efs", version=release.version)
    release.path(f"{name}.cdx.json").write_text(text, encoding="utf-8")


def build_notes(release: Release) -> None:
    """The notes, from the changelog."""
    release.path("NOTES.md").write_text(release_notes(release.version), encoding="utf-8")


def build_checksums(release: Release) -> None:
    """The SHA-256 of each other file, as ``sha256sum --check`` reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(release.folder.iterdir())
        if path.name != "SHA256SUMS"
    ]
    release.path("SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _packed(files: dict[str, bytes], time: int) -> bytes:
    return gzip.compress(_tar(files, time), mtime=0)


def _tar(files: dict[str, bytes], time: int) -> bytes:
    """The files as an archive without owners, in order of their names."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), time, 0o644
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def _git(*arguments: str) -> str:
    return _run("git", "-C", str(_ROOT), *arguments).strip()


def _run(*command: str, environment: dict[str, str] | None = None) -> str:
    """The output; the errors of the program go to the terminal."""
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=_STEP_SECONDS
    )
    return done.stdout


def build(
    version: str,
    folder: Path,
    *,
    base: str = "",
    pythons: Sequence[str] = PYTHONS,
    platforms: Sequence[tuple[str, str]] = tuple(PLATFORMS),
    with_image: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """The files of the release; raises ReleaseRefused, or CalledProcessError when a program fails."""
    release = checked_release(version, folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps: dict[str, Callable[[], None]] = {
        "wheels": lambda: build_wheels(release),
        "source archive": lambda: build_sources(release),
        "chart": lambda: build_chart(release),
        "manifests and bundle": lambda: build_manifests(release),
        "manual pages": lambda: build_manuals(release),
        "kubectl efs": lambda: build_plugins(release, pythons, platforms),
        "notes": lambda: build_notes(release),
    }
    for architecture in architectures_here() if with_image else ():
        steps[f"image for {architecture}"] = partial(build_image, release, base, architecture)
    steps["checksums"] = lambda: build_checksums(release)
    for name, step in steps.items():
        say(name)
        step()
    return sorted(folder.iterdir())


def main() -> None:
    """Build the release that the arguments name."""
    parser = argparse.ArgumentParser(description="Build all files of a release, without publishing them.")
    parser.add_argument("version", help="that of pyproject.toml, such as 0.2.0")
    parser.add_argument("folder", type=Path, nargs="?", default=_ROOT / "dist")
    parser.add_argument("--base", default="", help="what the image stands on; see make image")
    parser.add_argument("--without-image", action="store_true", help="where buildah cannot run")
    options = parser.parse_args()
    console = Console(stderr=True)
    try:
        with console.status("") as status:
            files = build(
                options.version,
                options.folder,
                base=options.base,
                with_image=not options.without_image,
                say=lambda step: status.update(f"Building: {step}"),
            )
    except (ReleaseRefused, subprocess.CalledProcessError) as error:
        console.print(f"There is no release: {error}", style="red", markup=False)
        sys.exit(1)
    for path in files:
        sys.stdout.write(f"{path.stat().st_size:>12,}  {path.name}\n")


if __name__ == "__main__":
    main()
