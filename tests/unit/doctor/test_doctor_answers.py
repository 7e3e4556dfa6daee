"""Output of findings, exit status of the command, and failed reads."""

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console
from tests.unit.doctor import examples as ex
from typer.testing import CliRunner

from kube_efs.cli import app, installation
from kube_efs.doctor.checks.common import csi_option, render_command
from kube_efs.doctor.checks.installation import OLDER_SYSTEMS
from kube_efs.doctor.checks.rights import needed_grants
from kube_efs.doctor.diagnosis import diagnose, is_broken
from kube_efs.doctor.facts import Area, Gap, NodeObject, PodFacts, Workload
from kube_efs.doctor.findings import FindingSubject
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.objects import read_node, read_pod, read_workload
from kube_efs.doctor.grants import AccountName, Grant, Right, grants_of
from kube_efs.doctor.registry import TOPICS
from kube_efs.doctor.rendering import render_findings, render_tunnels, to_json
from kube_efs.doctor.shell import command
from kube_efs.model.errors import KubeDenied
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs.operator.takeover import OLDER_WORKLOADS
from kube_efs.report.tables import make_console
from kube_efs.tunnels.probe import ProbeResult

NAMES = NEW_INSTALLATION.names
ROOT = Path(__file__).parents[3]
_LEAK = replace(
    ex.cluster(classes=(), claims=(), volumes=()),
    gaps=(Gap(what="logs", reason="password=hunter2 was refused"),),
)


def _shown(facts: object) -> str:
    console = make_console()
    with console.capture() as capture:
        console.print(facts)
    return capture.get()


def test_page_lists_every_kind_of_finding() -> None:
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+/[a-z-]+)` \| (\w+) \| (.*) \|$", page, flags=re.MULTILINE)
    kinds = [(one.id, str(one.severity), one.meaning) for topic in TOPICS for one in topic.kinds]
    assert rows == kinds


def test_table_lists_findings_and_their_number() -> None:
    shown = _shown(render_findings(diagnose(_LEAK), what="cluster a"))
    assert "Findings about cluster a" in shown
    assert "doctor/not-checked" in shown
    assert "hunter2" not in shown
    assert shown.rstrip().endswith("1 unchecked.")


def test_commands_are_complete_lines_without_secrets() -> None:
    long = command("kubectl -n efs get pods --field-selector {}", "x" * 200)
    # The end of the quote is a part of the secret, and not of the command.
    secret, safe = command("a {}", "--token='hunter2; reboot"), command("a {}", "--token='[removed]'")
    finding = replace(diagnose(_LEAK)[0], commands=(long, secret))
    console = make_console()
    with console.capture() as capture:
        console.print(render_findings((finding, finding), what="cluster a"), crop=False)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert lines[-4:-1] == ["# doctor/not-checked, Doctor logs", str(long), str(safe)]


def test_texts_of_tenants_do_not_control_the_terminal() -> None:
    sequences = "\x1b[2J\u202e"
    finding = replace(
        diagnose(_LEAK)[0],
        subject=FindingSubject("Pod", f"a\nreboot{sequences}"),
        evidence=(sequences,),
        commands=(command("kubectl get pod {}", f"a\nreboot{sequences}"),),
    )
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(render_findings((finding,), what=sequences), crop=False)
        console.print(render_findings((), what=sequences))
    shown = capture.get()
    assert not {"\x1b", "\u202e"} & set(shown)
    assert shown.count(r"\x1b[2J\u202e") == 6
    # The comment is one line, and the command, too: neither begins a line with another command.
    assert r"# doctor/not-checked, Pod a\nreboot\x1b[2J\u202e" in shown
    assert r"kubectl get pod 'a\nreboot\x1b[2J\u202e'" in shown
    (told,) = json.loads(to_json((finding,), what="a", now=ex.NOW))["findings"]
    assert told["evidence"] == [sequences]


def test_table_without_findings_is_one_line() -> None:
    shown = _shown(render_findings((), what="node one"))
    assert shown == "No problems were found in node one.\n"


def test_json_is_complete_and_contains_no_secret() -> None:
    document = json.loads(to_json(diagnose(_LEAK), what="cluster a", now=ex.NOW))
    assert document["about"] == "cluster a"
    assert document["time"] == "2026-01-02T03:04:05Z"
    assert document["findings"] == [
        {
            "id": "doctor/not-checked",
            "severity": "unchecked",
            "subject": {"kind": "Doctor", "name": "logs"},
            "problem": "could not be checked",
            "evidence": ["password=[removed] was refused"],
            "remedy": "give the doctor the permission to read it, and run it again",
            "commands": ["kubectl auth whoami"],
        }
    ]


def test_measurements_of_a_node_are_shown() -> None:
    shown = _shown(render_tunnels(ex.ON_NODE))
    assert "one: region us-east-1 (settings), zone us-east-1a (Node object)" in shown
    assert re.search(r"fs-11111111 +20490 +2\.0 ms +10\.0\.1\.5: done", shown)
    document = json.loads(to_json((), what="node one", now=ex.NOW, node=ex.ON_NODE))
    assert document["findings"] == []
    assert document["tunnels"] == [
        {
            "name": "fs-11111111",
            "port": 20490,
            "null_call_seconds": 0.002,
            "handshakes": {"10.0.1.5": "done"},
        }
    ]


def test_tunnel_without_an_answer_shows_a_reason_instead_of_a_time() -> None:
    failed = ex.tunnel(null_call=ProbeResult(ok=False, seconds=8.0, reason="no answer within 8 s"))
    assert failed.node is not None
    assert "no answer within 8 s" in _shown(render_tunnels(failed.node))
    (measured,) = json.loads(to_json((), what="a", now=ex.NOW, node=failed.node))["tunnels"]
    assert measured["null_call_seconds"] is None


def test_only_broken_findings_change_the_exit_status() -> None:
    assert not is_broken(diagnose(_LEAK))
    assert is_broken(diagnose(ex.cluster(leases=())))


async def test_failed_read_becomes_a_gap() -> None:
    attempts = Attempts(timeout_seconds=0.05)

    async def refuse() -> str:
        raise KubeDenied("answered 403", field="pods")

    async def stumble() -> str:
        body: dict[str, str] = {}
        return body["metadata"]

    async def give() -> str:
        return "answer"

    assert await attempts.look("a", refuse(), area=Area.AWS) is None
    assert await attempts.look("b", stumble()) is None
    assert await attempts.look("c", asyncio.sleep(60, "late")) is None
    assert await attempts.look("d", give()) == "answer"
    assert attempts.gaps == (
        Gap(what="a", reason="pods: answered 403", area=Area.AWS),
        Gap(what="b", reason="internal error (KeyError); the log has the details"),
        Gap(what="c", reason="no answer within 0.05 s"),
    )


def test_expected_permissions_are_those_of_the_manifests() -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES, namespace="efs"))
    grants = grants_of(manifests)
    manager = AccountName(namespace="efs", name=NAMES.controller_account)
    lease = Right(
        verb="update",
        group="coordination.k8s.io",
        resource="leases",
        namespace="efs",
        name="kube-efs-controller",
    )
    assert Grant(account=manager, right=lease) in grants
    assert Grant(account=manager, right=Right(verb="watch", resource="persistentvolumes")) in grants
    assert {one.account.name for one in grants} == {NAMES.controller_account, NAMES.tunnel_account}
    assert str(lease) == "update leases.coordination.k8s.io kube-efs-controller in efs"
    assert manager.user == f"system:serviceaccount:efs:{NAMES.controller_account}"


@pytest.mark.parametrize(
    ("csi", "csi_only", "option"), [(False, False, ""), (True, False, " --csi"), (True, True, " --csi-only")]
)
def test_permissions_are_compared_with_an_installation_of_the_same_kind(
    csi: bool, csi_only: bool, option: str
) -> None:
    rendered = render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=csi, csi_only=csi_only))
    workloads = tuple(
        read_workload(one["kind"], one) for one in rendered if "template" in one.get("spec", {})
    )
    cluster = replace(ex.CLUSTER, names=NAMES, workloads=workloads)
    wanted = needed_grants(cluster, grants_of(installation(NAMES, csi_option(cluster))))
    assert wanted
    assert set(wanted) <= set(grants_of(rendered))
    options = f"--for kubernetes{option} --names kube-efs --namespace kube-efs"
    assert str(render_command(cluster)) == f"kube-efs render {options} | kubectl diff -f -"


def test_every_older_workload_of_the_operator_is_recognized() -> None:
    assert set(OLDER_WORKLOADS) <= OLDER_SYSTEMS.keys()


def test_incomplete_objects_are_read() -> None:
    meta = {"name": "a", "namespace": "b"}
    assert read_pod({"metadata": meta}) == PodFacts(namespace="b", name="a")
    assert read_workload("DaemonSet", {"metadata": meta}) == Workload(
        kind="DaemonSet", namespace="b", name="a", account="default"
    )
    assert read_node({"metadata": {"name": "a"}}, {}) == NodeObject(name="a", ready=False)


def test_failure_of_a_deployment_is_read() -> None:
    conditions = [
        {"type": "Available", "status": "False", "message": "not enough"},
        {"type": "ReplicaFailure", "status": "True", "message": "pods are forbidden: exceeded quota"},
    ]
    body = {"metadata": {"name": "a", "uid": "1"}, "status": {"conditions": conditions}}
    found = read_workload("Deployment", body)
    assert (found.failure, found.uid) == ("pods are forbidden: exceeded quota", "1")


def test_private_addresses_of_nodes_are_used() -> None:
    addresses = [
        {"type": "ExternalIP", "address": "203.0.113.7"},
        {"type": "InternalIP", "address": "10.0.0.7"},
        {"type": "Hostname", "address": "a"},
    ]
    body = {"metadata": {"name": "a"}, "status": {"addresses": addresses}}
    assert read_node(body, {}).addresses == ("10.0.0.7",)


def test_instance_id_is_read_from_the_provider_id() -> None:
    body = {"metadata": {"name": "a"}, "spec": {"providerID": "aws:///us-east-1a/i-0123"}}
    assert read_node(body, {}).instance_id == "i-0123"


def test_claims_and_waiting_reasons_of_a_pod_are_read() -> None:
    found = read_pod(
        {
            "metadata": {"name": "a", "namespace": "b", "labels": {"component": "efs-worker"}},
            "spec": {
                "volumes": [
                    {"name": "x", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "y", "ephemeral": {}},
                    {"name": "z", "ephemeral": {"volumeClaimTemplate": {}}},
                ]
            },
            "status": {
                "containerStatuses": [
                    {"name": "one", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
                ]
            },
        }
    )
    assert found.claims == ("data", "a-z")
    assert found.waiting == ("container one: ImagePullBackOff (no)",)
    assert found.component == "efs-worker"


def test_end_of_a_pod_is_that_of_its_last_container() -> None:
    ends = ("2026-01-02T03:04:05Z", "2026-01-02T03:04:04Z")
    ended = [{"name": str(end), "state": {"terminated": {"finishedAt": end}}} for end in ends]
    body = {"metadata": {"name": "a"}, "status": {"phase": "Failed", "containerStatuses": ended}}
    assert read_pod(body).finished == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    running = {"name": "b", "state": {"running": {}}}
    body = {"metadata": {"name": "a"}, "status": {"containerStatuses": [*ended, running]}}
    assert read_pod(body).finished is None


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "kube_efs", "doctor", *arguments],
        env={**kept, "NO_COLOR": "1", "COLUMNS": "120", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["everything"], id="unknown command"),
        pytest.param(["claim"], id="no claim"),
        pytest.param(["node", "--region", "us-east-1"], id="option of another command"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    answer = CliRunner().invoke(app, ["doctor", *arguments])
    assert answer.exit_code == 2
    assert "Usage:" in answer.stderr


@pytest.mark.parametrize("command", [["doctor", "cluster"], ["create-file-system", "x"], ["destroy", "x"]])
def test_malformed_region_is_wrong_usage(command: list[str]) -> None:
    answer = CliRunner().invoke(app, [*command, "--region", "US-EAST"])
    assert answer.exit_code == 2
    assert "Invalid value for '--region'" in answer.stderr


def test_missing_kubeconfig_exits_with_2_and_names_the_file() -> None:
    answer = _run("cluster", "--kubeconfig", "/nowhere/kubeconfig")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: KUBECONFIG: ")
    assert "/nowhere/kubeconfig not found" in answer.stderr


def _kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: x, users: [{name: x, user: {}}],"
        " contexts: [{name: x, context: {cluster: x, user: x}}],"
        f" clusters: [{{name: x, cluster: {{server: '{server}'}}}}]}}"
    )
    return path


async def test_time_is_that_of_the_api_server(tmp_path: Path) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=403, headers={"Date": "Fri, 02 Jan 2026 03:04:05 GMT"})

    server = web.Application()
    server.router.add_route("*", "/{path:.*}", refuse)
    async with TestServer(server) as running:
        kubeconfig = _kubeconfig(tmp_path, str(running.make_url("")))
        arguments = ("cluster", "--kubeconfig", str(kubeconfig), "--namespace", "efs", "--output", "json")
        answer = await asyncio.to_thread(_run, *arguments)
    assert json.loads(answer.stdout)["time"] == "2026-01-02T03:04:05Z", answer.stderr


async def test_missing_permissions_of_a_user_without_any_are_named(tmp_path: Path) -> None:
    async def refuse(_: web.Request) -> web.Response:
        status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "x cannot list it"}
        return web.json_response(status, status=403)

    server = web.Application()
    server.router.add_route("*", "/{path:.*}", refuse)
    async with TestServer(server) as running:
        kubeconfig = _kubeconfig(tmp_path, str(running.make_url("")))
        arguments = ("cluster", "--kubeconfig", str(kubeconfig), "--output", "json")
        answer = await asyncio.to_thread(_run, *arguments)
    (finding,) = json.loads(answer.stdout)["findings"]
    assert (finding["id"], finding["problem"]) == ("kubernetes/no-answer", "denies every request")
    assert finding["remedy"].startswith("give your user the permissions to read ")
    assert {"pods", "claims", "volumes"} <= set(finding["remedy"].split(", "))


def test_unresponsive_cluster_is_a_finding(tmp_path: Path) -> None:
    kubeconfig = _kubeconfig(tmp_path, "http://127.0.0.1:1")
    answer = _run("cluster", "--kubeconfig", str(kubeconfig), "--output", "json")
    assert answer.returncode == 1, answer.stderr
    findings = json.loads(answer.stdout)["findings"]
    assert [one["id"] for one in findings] == ["kubernetes/no-answer"]
    assert "could not be reached" in findings[0]["evidence"][0]
