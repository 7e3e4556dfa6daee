"""The output of the command, and its arguments."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import MappingProxyType

import pytest
from lightkube import AsyncClient
from rich.console import Console

from kube_efs.migration.cluster import MigrationStore
from kube_efs.migration.errors import ClaimInUse, MigrationRefused
from kube_efs.migration.journal import Journal
from kube_efs.migration.outcomes import State, as_json, done, failed, planned, refused, render
from kube_efs.migration.plan import Direction, Migration, MigrationRefusal
from kube_efs.migration.run import parse_servers
from kube_efs.migration.steps import MigrationStep, Wait
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.errors import InvalidSetting, KubeDenied
from kube_efs_lab.manifests import CSI_DRIVER, apply

_SILENT = """
apiVersion: v1
kind: Config
current-context: silent
contexts: [{name: silent, context: {cluster: silent, user: silent}}]
clusters: [{name: silent, cluster: {server: "http://127.0.0.1:PORT"}}]
users: [{name: silent, user: {}}]
"""
DELETE = ReclaimPolicy.DELETE
MIGRATION = Migration(
    namespace="team",
    claim="data",
    nfs="old",
    csi="old-csi",
    place="fs-1:/team/data",
    direction=Direction.FORWARD,
    source_policy=ReclaimPolicy.DELETE,
    journal=Journal(
        claim={"metadata": {}, "spec": {}},
        volume={"metadata": {"name": "old"}, "spec": {"persistentVolumeReclaimPolicy": "Delete"}},
        policy=ReclaimPolicy.DELETE,
    ),
    csi_volume={"metadata": {}, "spec": {}},
    notes=("[bold] becomes what it is",),
)
IN_USE = ClaimInUse("is in use", field="claim team/data", value="web", remedy="end these pods")
REFUSAL = MigrationRefusal(
    namespace="team", claim="logs", volume="other", error=MigrationRefused("is not valid")
)


def test_json_contains_everything() -> None:
    outcomes = [planned(MIGRATION, MigrationStep.MAKE_TARGET, DELETE), refused(REFUSAL)]
    assert json.loads(json.dumps(as_json(outcomes))) == {
        "ok": False,
        "claims": [
            {
                "namespace": "team",
                "claim": "data",
                "source": "old",
                "target": "old-csi",
                "data": "fs-1:/team/data",
                "reclaim_policy": "Delete",
                "state": "to do",
                "next_step": "create the new volume, reserved for the claim",
                "reason": "",
                "notes": ["[bold] becomes what it is"],
            },
            {
                "namespace": "team",
                "claim": "logs",
                "source": "other",
                "target": "",
                "data": "",
                "reclaim_policy": "",
                "state": "failed",
                "next_step": "",
                "reason": "is not valid",
                "notes": [],
            },
        ],
    }


@pytest.mark.parametrize(
    ("outcome", "state", "ok"),
    [
        pytest.param(
            planned(MIGRATION, MigrationStep.KEEP_SOURCE, DELETE),
            State.TO_DO,
            True,
            id="planned",
        ),
        pytest.param(
            planned(MIGRATION, Wait(for_what="it is bound"), DELETE),
            State.TO_DO,
            True,
            id="waiting",
        ),
        pytest.param(planned(MIGRATION, None, DELETE), State.DONE, True, id="nothing to do"),
        pytest.param(done(MIGRATION, DELETE), State.DONE, True, id="done"),
        pytest.param(failed(MIGRATION, IN_USE), State.IN_USE, False, id="in use"),
        pytest.param(failed(MIGRATION, KubeDenied("answered 403")), State.FAILED, False, id="failed"),
        pytest.param(refused(REFUSAL), State.FAILED, False, id="refused"),
    ],
)
def test_outcome_has_its_state(outcome: object, state: State, ok: bool) -> None:
    assert (outcome.state, outcome.state.is_well) == (state, ok)  # type: ignore[attr-defined]


def test_reasons_and_notes_are_not_markup() -> None:
    file = StringIO()
    Console(width=160, file=file).print(render([failed(MIGRATION, IN_USE)]))
    text = file.getvalue()
    assert "team/data: [bold] becomes what it is" in text
    assert "! claim team/data: 'web' is in use; end these pods" in text


def test_server_options_are_parsed() -> None:
    assert parse_servers(["efs.example.com=fs-12"]) == MappingProxyType({"efs.example.com": "fs-12"})
    for text in ("efs.example.com", "=fs-12", "efs.example.com=", "efs.example.com=12"):
        with pytest.raises(InvalidSetting) as caught:
            parse_servers([text])
        assert caught.value.field == "--server"


@pytest.mark.parametrize("name", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST."])
def test_server_option_does_not_accept_the_server_of_all_tunnels(name: str) -> None:
    """Else each of them would get the same file system, whatever its annotation or port."""
    with pytest.raises(InvalidSetting) as caught:
        parse_servers([f"{name}=fs-12"])
    assert (caught.value.field, caught.value.value) == ("--server", name)
    assert "efs-stunnel.gnuthought.com/file-system-id" in caught.value.remedy


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--server", "nonsense"], id="invalid server"),
        pytest.param(["--server", "127.0.0.1=fs-12"], id="server of all tunnels"),
        pytest.param(["--wait", "-1"], id="negative time"),
        pytest.param(["--output", "xml"], id="unknown format"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "kube_efs", "migrate", *arguments],
        env={**os.environ, "KUBECONFIG": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 2
    assert arguments[0] in answer.stderr
    assert "Traceback" not in answer.stderr


async def test_cluster_without_the_driver_is_refused(kube: AsyncClient) -> None:
    store = MigrationStore(kube)
    with pytest.raises(MigrationRefused, match=r"CSIDriver: 'efs\.csi\.aws\.com' does not exist"):
        await store.check_driver()
    await apply(kube, [CSI_DRIVER])
    await store.check_driver()


async def test_interrupted_command_shows_how_to_continue(tmp_path: Path) -> None:
    asked, hung_up = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
            writer.close()
            await writer.wait_closed()
        hung_up.set()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    kubeconfig = tmp_path / "kubeconfig"
    port = server.sockets[0].getsockname()[1]
    kubeconfig.write_text(_SILENT.replace("PORT", str(port)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kube_efs", "migrate", "--yes", "--kubeconfig", str(kubeconfig)),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await asyncio.wait_for(asked.wait(), 60)
        process.send_signal(signal.SIGINT)
        _, told = await asyncio.wait_for(process.communicate(), 60)
        await asyncio.wait_for(hung_up.wait(), 60)
    finally:
        server.close()
    assert process.returncode not in {0, 2}
    assert b"Run the same command again to continue, or with --rollback to undo." in told
    assert b"Traceback" not in told
