"""The image of ``make image``, run by podman as by a kubelet: read-only, on the host's network."""

import asyncio
import json
import resource
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# On an emulated processor, commands of kube-efs take minutes.
_SECONDS = 600.0
_FILES = 20_000
_PROCESSES = 4096


async def podman(*arguments: str) -> str:
    """The output of a podman command, which must succeed."""
    # crun, the usual runtime, refuses machines with control groups of both versions.
    runtime = ("--runtime", "runc") if shutil.which("runc") else ()
    process = await asyncio.create_subprocess_exec(
        "podman", *runtime, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(_SECONDS):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


@dataclass(frozen=True, slots=True)
class Container:
    """A running or ended container."""

    name: str

    async def inspect(self) -> Any:
        """The output of ``podman inspect``."""
        (found,) = json.loads(await podman("container", "inspect", self.name))
        return found

    async def first_process(self) -> psutil.Process:
        """The first process of the container."""
        return psutil.Process((await self.inspect())["State"]["Pid"])

    async def stop(self) -> int:
        """Stop it as a kubelet does; returns its exit status."""
        await podman("stop", "--time", "10", self.name)
        return int((await self.inspect())["State"]["ExitCode"])

    async def logs(self) -> str:
        """Its output."""
        return await podman("logs", self.name)


def _options(*, privileged: bool = False) -> tuple[str, ...]:
    # podman's defaults are more than some machines let anybody have.
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], _FILES)
    limits = ("--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={_PROCESSES}:{_PROCESSES}")
    common = (*limits, "--read-only", "--tmpfs", "/tmp:mode=1777", "--network", "host")
    if privileged:
        return (*common, "--privileged", "--user", "0")
    return (*common, "--cap-drop", "all", "--security-opt", "no-new-privileges")


async def output_of(image: str, *command: str, entry_point: str | None = None) -> str:
    """The output of a command in a container of the image."""
    other = ("--entrypoint", entry_point) if entry_point else ()
    return await podman("run", "--rm", "--pull", "never", *_options(), *other, image, *command)


@asynccontextmanager
async def running(
    name: str,
    image: str,
    command: str,
    *,
    environment: Mapping[str, str],
    folders: Sequence[Path],
    privileged: bool = False,
) -> AsyncIterator[Container]:
    """A container of ``kube-efs COMMAND`` with these directories of the machine."""
    variables = [text for key, value in environment.items() for text in ("--env", f"{key}={value}")]
    mounted = [text for folder in folders for text in ("--volume", f"{folder}:{folder}")]
    await podman(
        "run",
        "--detach",
        "--name",
        name,
        *_options(privileged=privileged),
        *variables,
        *mounted,
        image,
        command,
    )
    try:
        yield Container(name)
    finally:
        await podman("rm", "--force", "--time", "1", name)
