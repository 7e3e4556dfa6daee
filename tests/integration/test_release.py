"""The files of a release, without the image: complete, reproducible, and refused for another tree."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from scripts import release
from scripts.release import MANIFESTS, Release, ReleaseRefused, checked_release, release_notes
from scripts.sbom import LicenseMissing, bill_of_materials

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
COMMIT, TIME = "0123456789abcdef0123456789abcdef01234567", 1_700_000_000


def built(folder: Path) -> dict[str, bytes]:
    """The files that need neither a clean tree nor downloads for other platforms."""
    folder.mkdir()
    of_head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    made = Release(version=VERSION, commit=of_head, time=TIME, folder=folder)
    release.build_wheels(made)
    release.build_sources(made)
    release.build_chart(made)
    release.build_manifests(made)
    release.build_manuals(made)
    release.build_notes(made)
    release.build_checksums(made)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return built(tmp_path_factory.mktemp("release") / "one")


def names_in(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as content:
        return content.getnames()


def test_second_build_has_the_same_bytes(files: dict[str, bytes], tmp_path: Path) -> None:
    again = built(tmp_path / "two")
    assert again.keys() == files.keys()
    assert [name for name in files if files[name] != again[name]] == []


def test_page_names_every_file(files: dict[str, bytes]) -> None:
    page = (ROOT / "docs/releasing.md").read_text(encoding="utf-8")
    table = page[page.index("| file |") : page.index("The command refuses")]
    names = [
        name
        for row in table.splitlines()[2:]
        if row.startswith("|")
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]
    patterns = [re.escape(name.replace("VERSION", VERSION)).replace("…", ".*") for name in names]
    assert [name for name in files if not any(re.fullmatch(one, name) for one in patterns)] == []
    assert set(MANIFESTS) <= set(names)


def test_checksums_are_those_of_the_files(files: dict[str, bytes]) -> None:
    lines = files["SHA256SUMS"].decode().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert sums == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != "SHA256SUMS"
    }


def test_wheel_knows_its_revision(files: dict[str, bytes], tmp_path: Path) -> None:
    wheel = files[f"kube_efs-{VERSION}-py3-none-any.whl"]
    with zipfile.ZipFile(io.BytesIO(wheel)) as content:
        assert re.fullmatch(r"[0-9a-f]{40}\n", content.read("kube_efs/REVISION").decode())
        assert not any(name.startswith(("tinykube", "fake_efs")) for name in content.namelist())
        content.extractall(tmp_path)
    script = "import sys; sys.path.insert(0, sys.argv[1]); from kube_efs.cli import app; app(['--version'])"
    shown = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert re.fullmatch(rf"kube-efs {VERSION} \([0-9a-f]{{40}}\)\n", shown)


def test_archives_have_the_chart_the_bundle_and_the_sources(files: dict[str, bytes]) -> None:
    chart = names_in(files[f"kube-efs-chart-{VERSION}.tgz"])
    assert {"kube-efs/Chart.yaml", "kube-efs/values.schema.json"} <= set(chart)
    bundle = names_in(files[f"kube-efs-bundle-{VERSION}.tar.gz"])
    assert "bundle/metadata/annotations.yaml" in bundle
    sources = names_in(files[f"kube-efs-{VERSION}-source.tar.gz"])
    assert f"kube-efs-{VERSION}/pyproject.toml" in sources
    objects = list(yaml.safe_load_all(files["kube-efs-csi.yaml"]))
    assert {"DaemonSet", "Deployment", "CSIDriver"} <= {one["kind"] for one in objects}


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseRefused, match=f"pyproject.toml has version {VERSION}, not 9.9.9"):
        checked_release("9.9.9", tmp_path)
    with pytest.raises(ReleaseRefused, match="has no section"):
        release_notes("9.9.9")
    with pytest.raises(ReleaseRefused, match="the date 'unreleased'"):
        release_notes("0.1.0")


def test_notes_end_where_the_next_section_begins() -> None:
    notes = release_notes(VERSION)
    assert "Not tried" in notes
    assert "## [" not in notes


# --- architectures of the image


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of an amd64 machine whose kernel accepts no emulator, before all others on PATH."""
    for name, script in {
        "uname": "echo x86_64",
        "arch-test": "exit 1",
        "qemu-aarch64-static": "exit 1",
        "mount": "echo 'mount: permission denied' >&2; exit 32",
        "tee": "echo 'tee: Permission denied' >&2; exit 1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.usefixtures("programs")
def test_release_omits_the_image_that_cannot_be_emulated(capfd: pytest.CaptureFixture[str]) -> None:
    assert release.architectures_here() == ["amd64"]
    said = capfd.readouterr().err
    assert "This machine cannot run programs of arm64: its kernel did not accept qemu" in said
    assert "or use a machine with arm64" in said
    assert said.endswith("The release has no image for arm64; see above.\n")


def test_release_has_an_image_of_each_architecture(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (programs / "arch-test").write_text("#!/bin/sh\n[ $1 = arm64 ]\n")
    assert release.architectures_here() == ["amd64", "arm64"]
    assert capfd.readouterr().err == ""


def test_other_architectures_are_refused() -> None:
    done = subprocess.run(
        [ROOT / "scripts/emulate", "s390x"], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The architecture must be amd64 or arm64, not 's390x'.\n"


# --- the bill of materials


def image(root: Path, *, metadata: str) -> Path:
    """A file system with a package of Debian and one of Python."""
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(
        "Package: tini\nStatus: install ok installed\nArchitecture: amd64\nVersion: 0.19.0-3\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
    )
    (root / "usr/share/doc/tini").mkdir(parents=True)
    (root / "usr/share/doc/tini/copyright").write_text("Files: *\nLicense: MIT\n text\n\nLicense: MIT\n")
    info = root / "opt/kube-efs/lib/python3.13/site-packages/PyYAML-6.0.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: PyYAML\nVersion: 6.0.3\n{metadata}")
    return root


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        pytest.param("License-Expression: MIT\n", {"license": {"id": "MIT"}}, id="identifier"),
        pytest.param(
            "License-Expression: MIT AND Apache-2.0\n", {"expression": "MIT AND Apache-2.0"}, id="expression"
        ),
        pytest.param(
            "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n",
            {"license": {"name": "MIT License"}},
            id="classifier",
        ),
        pytest.param("License: Apache 2\n", {"license": {"name": "Apache 2"}}, id="text"),
    ],
)
def test_bill_has_each_installed_part_with_its_license(
    tmp_path: Path, metadata: str, named: dict[str, object]
) -> None:
    root = image(tmp_path, metadata=metadata)
    text = bill_of_materials(root, name="kube-efs", version=VERSION)
    assert bill_of_materials(root, name="kube-efs", version=VERSION) == text
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    described = {"bom-ref": "image", "name": "kube-efs", "type": "container", "version": VERSION}
    assert bill["metadata"]["component"] == described
    found = {one["purl"]: one for one in bill["components"]}
    assert found.keys() == {"pkg:deb/debian/tini@0.19.0-3?arch=amd64", "pkg:pypi/pyyaml@6.0.3"}
    assert found["pkg:pypi/pyyaml@6.0.3"]["licenses"] == [named]
    debian = found["pkg:deb/debian/tini@0.19.0-3?arch=amd64"]
    assert debian["licenses"] == [{"license": {"name": "MIT"}}]
    assert debian["properties"] == [{"name": "copyright", "value": "/usr/share/doc/tini/copyright"}]


def test_part_without_a_license_is_an_error(tmp_path: Path) -> None:
    root = image(tmp_path, metadata="License: UNKNOWN\n")
    with pytest.raises(LicenseMissing, match="no license is known of PyYAML"):
        bill_of_materials(root, name="kube-efs", version=VERSION)
