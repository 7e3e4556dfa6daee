"""The programs of our image, whose OpenSSL gives the kernel both keys of TLS 1.3."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from tests.kernel.guest.contract import run_contract
from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import Node, start
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import run, working

from fake_efs.process import ChildProcess
from kube_efs.tunnels.options import relay_socket

_COPIED = 8 * 1024 * 1024


async def contract_with_tls_1_3(machine: Machine) -> None:
    await run_contract(machine, "-k", "kernel", relay_python=await _python_of_image(machine))


async def mounts_use_tls_1_3_after_an_upgrade(machine: Machine) -> None:
    """The agent of the image takes over a relay, and replaces it after its end."""
    python = await _python_of_image(machine)

    async def start_of_image(
        module: str, *arguments: str, environment: Mapping[str, str], log_file: Path
    ) -> ChildProcess:
        return await ChildProcess.start(
            str(python),
            *("-m", module, *arguments),
            environment=environment,
            log_file=log_file,
            death_signal="TERM",
        )

    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    served = machine.efs.path(fs, "/data")
    original = machine.folder / "original"
    original.write_bytes(os.urandom(_COPIED))
    async with machine.node(KUBE_EFS_DATA_PLANE="kernel") as node:
        target = await node.publish(volume, "pod")
        port = nfs_mount(target).port
        first = node.data_planes()
        async with working(target / "work", served / "work") as work:
            await node.replace_tunnel_agent(start_of_image)
            await work.continues()
            assert node.data_planes() == first

            os.kill(first[relay_socket(node.conf)], signal.SIGKILL)
            await work.continues()
            await until(lambda: _has_tls_1_3(node, port), "the next relay uses TLS 1.3")
            copying = asyncio.create_task(run("cp", str(original), str(target / "copy")))
            await node.tunnel.kill()
            await work.continues()
            await start(node.tunnel)
            await copying
            await work.continues()
        assert nfs_mount(target).port == port
        assert (served / "copy").read_bytes() == original.read_bytes()
        # Not from the cache of the node.
        other = await node.publish(volume, "other")
        await run("cmp", str(original), str(other / "copy"))
        for one in (target, other):
            await node.unpublish(volume, one)


async def _has_tls_1_3(node: Node, port: int) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{node.tunnel.health_url}/tunnels") as answer:
        status = json.loads(await answer.text())
    return any(one["port"] == port and one["tls_version"] == "TLSv1.3" for one in status["tunnels"])


async def _python_of_image(machine: Machine) -> Path:
    """A program that is the Python of the image, with the files of this guest that it needs."""
    root = os.environ["IMAGE_ROOT"]
    if not await asyncio.to_thread(os.path.ismount, f"{root}/tmp"):
        await run("mount", "--make-shared", "/tmp")
        for directory in ("/tmp", "/proc", "/dev"):
            await run("mount", "--rbind", directory, f"{root}{directory}")
    python = machine.folder / "python"
    python.write_text(f'#!/bin/sh\nexec chroot {root} /opt/kube-efs/bin/python "$@"\n')
    python.chmod(0o755)
    return python
