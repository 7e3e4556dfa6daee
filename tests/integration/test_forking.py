"""Forked processes of scenarios: what they inherit, and when they end."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
from tests.scenarios.forking import fork_module

from fake_efs.process import ChildProcess
from tinykube.api import ApiServer

# Loading all modules of kube-efs and moto takes seconds of processor time.
SECONDS = 120

PARENT = """
import asyncio, json, sys
from pathlib import Path
from tests.scenarios.forking import fork_module
async def main():
    environment, log_file = json.loads(sys.argv[1]), Path(sys.argv[2])
    process = await fork_module("kube_efs", "controller", environment=environment, log_file=log_file)
    await process.listening_port(timeout_seconds=120)
    print(process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def forked(environment: Mapping[str, str], folder: Path) -> ChildProcess:
    return await fork_module("kube_efs", "controller", environment=environment, log_file=folder / "log")


async def test_fork_has_the_given_environment(tmp_path: Path) -> None:
    async with asyncio.timeout(SECONDS):
        process = await forked({"EFS_POLLING_INTERVAL": "never"}, tmp_path)
        assert await process.wait() == 2
    assert (tmp_path / "log").read_text().startswith("error: EFS_POLLING_INTERVAL: 'never'")


async def test_fork_has_nothing_of_the_environment_of_its_parent(tmp_path: Path) -> None:
    environment = {"KUBECONFIG": str(tmp_path / "none"), "AWS_REGION": "us-east-1"}
    arguments = (json.dumps(environment), str(tmp_path / "log"))
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, *arguments),
        env={**os.environ, "EFS_POLLING_INTERVAL": "never"},
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(SECONDS):
        assert await parent.wait() == 1  # since no port is opened
    said = (tmp_path / "log").read_text()
    assert "EFS_POLLING_INTERVAL" not in said
    assert "error: KUBECONFIG" in said


async def test_fork_ends_when_its_parent_is_killed(api_server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(api_server.kubeconfig())
    environment = {
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "us-east-1",
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
    }
    arguments = (json.dumps(environment), str(tmp_path / "log"))
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout
    async with asyncio.timeout(SECONDS):
        process = psutil.Process(int(await parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        await parent.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        await asyncio.to_thread(process.wait, SECONDS)
    assert not process.is_running()
