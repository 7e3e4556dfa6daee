"""``kubectl efs`` with the real kubectl, on the embedded API server."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import typer
import yaml
from lightkube.models.core_v1 import (
    CSIPersistentVolumeSource,
    ObjectReference,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass

from kube_efs.kube.client import connect, load_config
from kube_efs.kubectl.completion import complete
from kube_efs.kubectl.plugin import app
from kube_efs.model.volumes import DRIVER
from tinykube.api import ApiServer

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl cannot be found; make setup installs it")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubectl keeps a cache there."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest_asyncio.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    """A kubeconfig of a cluster with the claims web/data and default/logs, and their volumes."""
    file = tmp_path / "config"
    async with ApiServer() as api:
        api.write_kubeconfig(file)
        async with connect(load_config(file)) as client:
            await client.create(Namespace(metadata=ObjectMeta(name="web")))
            await client.create(StorageClass(metadata=ObjectMeta(name="efs-sc"), provisioner=DRIVER))
            for namespace, name in (("web", "data"), ("default", "logs")):
                spec = PersistentVolumeClaimSpec(
                    accessModes=["ReadWriteMany"],
                    resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
                    storageClassName="efs-sc",
                )
                metadata = ObjectMeta(name=name, namespace=namespace)
                await client.create(PersistentVolumeClaim(metadata=metadata, spec=spec))
                volume = PersistentVolumeSpec(
                    accessModes=["ReadWriteMany"],
                    capacity={"storage": "1Gi"},
                    csi=CSIPersistentVolumeSource(
                        driver=DRIVER, volumeHandle=f"fs-0123456789abcdef0:/{name}"
                    ),
                    claimRef=ObjectReference(namespace=namespace, name=name),
                )
                await client.create(PersistentVolume(metadata=ObjectMeta(name=f"of-{name}"), spec=volume))
        yield file


def environment_with(**variables: str) -> dict[str, str]:
    """The environment of the programs."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": os.environ["HOME"], **variables}


async def run(
    *arguments: str, program: str = "kubectl-efs", **variables: str
) -> subprocess.CompletedProcess[str]:
    """One of the two programs, as kubectl runs it."""
    return await asyncio.to_thread(
        subprocess.run,
        ["kubectl", "efs", *arguments] if program == "kubectl-efs" else [program, *arguments],
        env=environment_with(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param([""], ["doctor", "migrate", "status", "top"], id="command"),
        pytest.param(["st"], ["status"], id="part of a command"),
        pytest.param(["doctor", ""], ["claim", "cluster"], id="command of the doctor"),
        pytest.param(["top", "--so"], ["--sort"], id="option"),
        pytest.param(["top", "--sort", "g"], ["growth"], id="value"),
        pytest.param(["top", "--watch", "--lim"], ["--limit"], id="option after a flag"),
        pytest.param(["top", "--limit", ""], [], id="number"),
        pytest.param(["nonsense", ""], ["doctor", "migrate", "status", "top"], id="unknown command"),
        pytest.param([], ["doctor", "migrate", "status", "top"], id="nothing"),
    ],
)
def test_command_line_is_completed(line: list[str], found: list[str]) -> None:
    assert complete(typer.main.get_command(app), line).splitlines() == [*found, ":4"]


async def test_names_of_the_cluster_are_completed(kubeconfig: Path) -> None:
    async def completed(*line: str) -> list[str]:
        answer = await run(*line, program="kubectl_complete-efs", KUBECONFIG=str(kubeconfig))
        assert answer.stdout.splitlines()[-1] == ":4", answer.stderr
        return answer.stdout.splitlines()[:-1]

    assert await completed("doctor", "claim", "") == ["logs"]
    assert await completed("doctor", "claim", "-n", "web", "d") == ["data"]
    assert await completed("migrate", "--namespace=web", "--claim", "") == ["data"]
    assert "web" in await completed("top", "--namespace", "w")
    [context] = await completed("top", "--context", "")
    assert await completed("top", "--context", context[:2]) == [context]
    assert await completed("top", "--kubeconfig", "/nowhere", "-n", "") == []


def _write_context(kubeconfig: Path, file: Path, *, name: str, namespace: str) -> None:
    """A file with another context for the cluster and user of a kubeconfig."""
    [context] = yaml.safe_load(kubeconfig.read_text())["contexts"]
    other = {"name": name, "context": {**context["context"], "namespace": namespace}}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "contexts": [other]}))


async def test_context_of_several_files_and_its_namespace_are_those_of_kubectl(
    kubeconfig: Path, tmp_path: Path
) -> None:
    contexts = tmp_path / "contexts"
    _write_context(kubeconfig, contexts, name="placed", namespace="web")
    both = {"KUBECONFIG": f"{kubeconfig}:{contexts}"}

    async def about(*options: str) -> str:
        answer = await run("doctor", "claim", "data", "--region", "us-east-1", *options, **both)
        assert answer.returncode == 1, answer.stderr
        return words(answer.stdout)

    assert "claim default/data" in await about()
    assert "claim web/data" in await about("--context", "placed")
    assert "claim other/data" in await about("--context=placed", "-n", "other")


async def test_migration_without_a_namespace_is_that_of_the_context(kubeconfig: Path) -> None:
    [answer, everywhere] = [
        await run("migrate", *options, KUBECONFIG=str(kubeconfig)) for options in ((), ("-A",))
    ]
    # The cluster has no CSI driver, which is found before any claim.
    assert "efs.csi.aws.com" in answer.stderr
    assert answer.returncode == everywhere.returncode == 1


async def test_only_claims_of_the_namespace_are_shown(kubeconfig: Path) -> None:
    async def found(*arguments: str) -> Any:
        answer = await run(*arguments, "--output", "json", KUBECONFIG=str(kubeconfig))
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    for options, names in (((), {"data", "logs"}), (("-n", "web"), {"data"})):
        status, top = await found("status", *options), await found("top", *options)
        assert {one["name"] for one in status["claims"]} == names
        volumes = {f"of-{name}" for name in names}
        assert {one["name"] for one in status["volumes"]} == volumes
        assert {one["volume"]["name"] for one in top["volumes"]} == volumes


async def test_top_is_shown_again_until_it_is_interrupted(kubeconfig: Path) -> None:
    options = ("--watch", "--interval", "1", "--output", "json")
    process = await asyncio.create_subprocess_exec(
        *("kubectl", "efs", "top", *options),
        env=environment_with(KUBECONFIG=str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    try:
        async with asyncio.timeout(60):
            first, second = [json.loads(await process.stdout.readline()) for _ in range(2)]
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, errors) == (0, b"")
    assert {one["volume"]["name"] for one in second["volumes"]} == {"of-data", "of-logs"}
    assert first["time"] < second["time"]


async def test_unknown_context_is_wrong_usage(kubeconfig: Path) -> None:
    answer = await run("status", "--context", "nowhere", KUBECONFIG=str(kubeconfig))
    assert answer.returncode == 2
    assert "cannot locate context nowhere" in answer.stderr
    assert "Traceback" not in answer.stderr


async def test_usage_names_the_plug_in() -> None:
    answer = await run("top", "--help")
    assert "Usage: kubectl efs top" in words(answer.stdout)
    assert "--system-namespace" in answer.stdout
