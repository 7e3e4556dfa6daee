"""The images of the node: our own with the address of the embedded AWS, and a small one with busybox.

They are unpacked on this machine, into the directory of a containerd that runs for no longer than that: in
the guest it would take a minute.
"""

import asyncio
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.scenarios.steps import eventually

from fake_efs.process import ChildProcess

# The kubelet's infrastructure container of each pod, and a shell for pods of users.
PAUSE = "localhost/pause:1"
SHELL = "localhost/busybox:1"


def write_busybox(
    archive: Path,
    *,
    names: Sequence[str] = (PAUSE, SHELL),
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = ("/bin/sleep", "2147483647"),
    files: Mapping[str, Path] | None = None,
) -> None:
    """Write an archive, in the format of Docker, of an image that is the machine's own busybox.

    The ``files`` of this machine are added at the paths in the image.
    """
    program = shutil.which("busybox")
    assert program is not None
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for directory in ("bin", "tmp", "etc", "root", "var", "dev", "proc", "sys"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            tar.addfile(info)
        tar.add(program, "bin/busybox")
        for name in subprocess.check_output([program, "--list"], text=True).split():
            if name != "busybox":
                info = tarfile.TarInfo(f"bin/{name}")
                info.type, info.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(info)
        for path, file in (files or {}).items():
            tar.add(file.resolve(), path)
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Cmd": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"],
            },
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": list(names), "Layers": ["layer.tar"]}]
    members = {
        "config.json": configuration,
        "layer.tar": layer.getvalue(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(archive, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def write_own(
    archive: Path, image: str, *, names: Sequence[str], environment: Mapping[str, str], ca_file: Path
) -> None:
    """Write an archive of our image for a cluster beside the embedded AWS.

    A layer is added: the authority of the embedded EFS in place of Amazon's, and the ``environment``. With
    it, the manifests are word for word those of administrators. Each of the ``names`` gets a configuration of
    its own, as images of other versions have.
    """
    for number, name in enumerate(names):
        container = _buildah("from", "--pull-never", image)
        try:
            _buildah("copy", "--quiet", container, str(ca_file), "/etc/amazon/efs/efs-utils.crt")
            variables = {**environment, "KUBE_EFS_TESTED_IMAGE": str(number)}
            flags = [text for key, value in variables.items() for text in ("--env", f"{key}={value}")]
            _buildah("config", *flags, container)
            _buildah("commit", "--quiet", container, f"docker-archive:{archive}-{number}:{name}")
        finally:
            _buildah("rm", container)


async def unpack(archives: Sequence[Path], directory: Path) -> None:
    """Make what the directory of a containerd contains that has pulled the images of these archives."""
    work = directory.with_name(f"{directory.name}-unpacking")
    work.mkdir()
    socket, configuration = work / "socket", work / "containerd.toml"
    configuration.write_text(
        f'version = 2\nroot = "{directory}"\nstate = "{work / "state"}"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\naddress = "{socket}"\n'
    )
    containerd = await ChildProcess.start(
        "containerd", "--config", str(configuration), log_file=work / "containerd.log"
    )

    async def ctr(*arguments: str | Path) -> bool:
        process = await asyncio.create_subprocess_exec(
            "ctr", "--address", socket, "--namespace", "k8s.io", *arguments, stdout=asyncio.subprocess.DEVNULL
        )
        return await process.wait() == 0

    try:
        await eventually(lambda: ctr("version"), what="containerd answers", seconds=600)
        for archive in archives:
            assert await ctr("images", "import", archive), (work / "containerd.log").read_text()
    finally:
        await containerd.stop()
    shutil.rmtree(work)


def _buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], check=True, capture_output=True, text=True).stdout.strip()
