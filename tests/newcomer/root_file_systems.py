"""Fresh root file systems of distributions, made of their packages, and commands that run in them.

How the packages are reached is taken from this machine: its sources of apt, its settings of apt and pip, its
certificates and its variables. What is downloaded stays in ``.cache/newcomer``.
"""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
CACHE = TOP / ".cache/newcomer"
CHECKOUT = "/srv/kube-efs"
NEWCOMER = 1000  # not root

_CONFIGURATION = ("/etc/resolv.conf", "/etc/pip.conf", "/root/.config/pip/pip.conf", "/root/.pip/pip.conf")
_CERTIFICATES = "usr/local/share/ca-certificates"
_VARIABLES = re.compile(r"PIP_\w+|\w+_proxy|\w+_PROXY|SSL_CERT_\w+|\w+_CA_BUNDLE")
_INCLUDED = "ca-certificates,git,make"
# All mounts and processes end with the first process of the namespaces. The root is a mount, because worker
# pods make the mounts below "/" private. /tmp is in memory, as in Debian 13.
_ENTER = """
set -e
root=$1 user=$2; shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
for directory in /dev /sys; do mount --rbind $directory "$root$directory"; done
while [ "$1" != -- ]; do mkdir -p "$1" "$root$2"; mount --bind "$1" "$root$2"; shift 2; done
shift
exec chroot --userspec="$user:$user" "$root" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of a distribution."""

    distribution: str  # the origin of its packages, as apt has it
    suite: str
    packages: str = _INCLUDED
    options: tuple[str, ...] = ()  # of mmdebstrap


# Debian 13 has no directories /bin and /lib, which the mmdebstrap of Debian 12 does not know.
_MERGED = ("--include=usr-is-merged", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr")
DEBIAN_11 = Release(distribution="Debian", suite="bullseye", packages=f"{_INCLUDED},python3")
DEBIAN_12 = Release(distribution="Debian", suite="bookworm")
DEBIAN_13 = Release(distribution="Debian", suite="trixie", options=_MERGED)
UBUNTU_24_04 = Release(distribution="Ubuntu", suite="noble")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said on both outputs, and its exit status."""

    code: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root file system with a clone of this repository, which nothing was installed in."""

    folder: Path
    release: Release

    async def run(
        self,
        *command: str,
        seconds: float,
        user: int = 0,
        launcher: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        cached: bool = True,
        pass_fds: tuple[int, ...] = (),
    ) -> Answer:
        """Run it in the directory of the clone; ``launcher`` is what the network namespace is made with."""
        downloads = {CACHE / "pip": "/root/.cache/pip", CACHE / self.release.suite: "/var/cache/apt/archives"}
        binds = [str(path) for pair in downloads.items() for path in pair] if cached else []
        enter = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh")
        in_clone = ("sh", "-c", f'cd {CHECKOUT}; exec "$@"', "sh")
        process = await asyncio.create_subprocess_exec(
            *launcher,
            *enter,
            str(self.folder),
            str(user),
            *binds,
            "--",
            *in_clone,
            *command,
            env={**_environment(), "HOME": "/root" if user == 0 else CHECKOUT, **(environment or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=pass_fds,
        )
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Answer(code=process.returncode, text=output.decode())


def unpack(release: Release, folder: Path) -> Root:
    """A fresh root file system in ``folder``. Skips the test if this machine's apt has no such packages."""
    archive = CACHE / f"{release.suite}.tar"
    if not archive.exists():
        _make(release, archive)
    _output("tar", "-xf", str(archive), "-C", str(folder))
    for name in _CONFIGURATION:
        source, target = Path(name.replace("/root", str(Path.home()))), folder / name.lstrip("/")
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    (folder / "etc/apt/apt.conf.d/99machine").write_text(_output("apt-config", "dump", "Acquire"))
    if Path("/", _CERTIFICATES).is_dir():
        shutil.copytree(Path("/", _CERTIFICATES), folder / _CERTIFICATES, dirs_exist_ok=True)
        _output("chroot", str(folder), "update-ca-certificates")
    # What is not committed is not part of it.
    _output("git", "clone", "--quiet", "--no-hardlinks", str(TOP), f"{folder}{CHECKOUT}")
    return Root(folder=folder, release=release)


def _make(release: Release, archive: Path) -> None:
    lines = _output(
        *("apt-get", "indextargets", "--format", "deb $(SITE) $(RELEASE) $(COMPONENT)"),
        *("Created-By: Packages", f"Origin: {release.distribution}"),
    )
    sources = re.sub(r"(?m)^(deb \S+) [a-z]+(-updates|-security)? ", rf"\1 {release.suite}\2 ", lines)
    if not sources:
        pytest.skip(f"apt of this machine has no packages of {release.distribution}")
    CACHE.mkdir(parents=True, exist_ok=True)
    source_list, unfinished = archive.with_suffix(".list"), archive.with_suffix(".part.tar")
    source_list.write_text("\n".join(sorted(set(sources.splitlines()))) + "\n")
    options = ("--mode=root", "--variant=apt", "--dpkgopt=force-unsafe-io", *release.options)
    packages = f"--include={release.packages}"
    _output("mmdebstrap", *options, packages, release.suite, str(unfinished), str(source_list))
    unfinished.rename(archive)


def _environment() -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **passed}


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]}: {done.stderr[-3000:]}"
    return done.stdout
