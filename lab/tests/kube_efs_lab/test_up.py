"""``kube-efs up`` as a person runs it: kubectl and status work against it, Ctrl-C ends it all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.child_processes import children_with
from tests.docs.blocks import commands_for

from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs_lab.manifests import (
    ACCESS_POINT_CLAIM,
    ACCESS_POINT_POD,
    EXAMPLE_CLAIM,
    STORAGE_CLASS,
    STORAGE_CLASS_NAME,
)
from kube_efs_lab.programs import NAMES

_KUBECTL = shutil.which("kubectl")
_COMMANDS = commands_for("docs/embedded.md", "lab/tests/kube_efs_lab/test_up.py")


def _until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


class _Up:
    def __init__(self, folder: Path, *options: str) -> None:
        assert _COMMANDS[0].text == "kube-efs up"
        self.kubeconfig = folder / (options[-1] if "--kubeconfig" in options else ".kube-efs/kubeconfig")
        self._output = folder / "output"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kube_efs", "up", *options],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def output(self) -> str:
        return self._output.read_text()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.output()
        return "Ctrl-C ends everything" in self.output()

    def run(self, *command: str, text: str = "") -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        answer = subprocess.run(
            command, env=environment, input=text, capture_output=True, text=True, timeout=120, check=False
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def run_elsewhere(self, *commands: str) -> str:
        """The output of commands in another terminal, which has none of this test's variables."""
        environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        script = "\n".join(("set -e", *commands))
        folder = self.kubeconfig.parents[1]
        return subprocess.check_output(
            ["sh", "-c", script], env=environment, cwd=folder, text=True, timeout=120
        )

    def kubectl(self, *arguments: str, text: str = "") -> str:
        assert _KUBECTL, "kubectl is not installed; make setup installs it"
        return self.run(_KUBECTL, *arguments, text=text)


@pytest.fixture
def up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[_Up]:
    running = _Up(tmp_path, *getattr(request, "param", ()))
    try:
        _until(running.is_ready, 120, "the cluster is up")
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        try:
            running.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()


def test_a_claim_applied_with_kubectl_is_bound_and_ctrl_c_ends_everything(up: _Up) -> None:
    up.kubectl("apply", "-f", "-", text=EXAMPLE_CLAIM)
    up.kubectl("wait", "pvc/efs-example", "--for=jsonpath={.status.phase}=Bound", "--timeout=90s")
    assert "efs-example" in up.kubectl("get", "pvc,pv,sc,events", "-o", "wide")
    assert "ProvisioningSucceeded" in up.kubectl("describe", "pvc", "efs-example")
    assert "example.com/aws-efs" in up.output()
    assert "example.com/aws-efs" in up.kubectl("get", "storageclass", "slow")

    status = json.loads(up.run(sys.executable, "-m", "kube_efs", "status", "--output", "json"))
    assert [claim["phase"] for claim in status["claims"]] == ["Bound"]
    assert len(status["file_systems"]) == 2
    assert "127.0.0.1:" in up.run(sys.executable, "-m", "kube_efs", "status")

    children = psutil.Process(up.process.pid).children(recursive=True)
    assert _stunnels(up)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(timeout=60) == 0, up.output()
    assert [child for child in children if child.is_running()] == []
    assert list(up.kubeconfig.parent.iterdir()) == []


def _stunnels(up: _Up) -> list[psutil.Process]:
    above = psutil.Process(up.process.pid)
    return list(children_with(lambda line: "stunnel" in "".join(line[:1]), above, recursive=True))


def test_a_pod_of_the_csi_driver_ends_with_the_cluster_and_leaves_nothing(up: _Up) -> None:
    claim = ACCESS_POINT_CLAIM + "---\n" + ACCESS_POINT_POD
    up.kubectl("apply", "-f", "-", text=claim)
    up.kubectl("wait", "pod/efs-app-1", "--for=condition=Ready", "--timeout=90s")
    assert "efs.csi.aws.com" in up.kubectl("get", "csidriver,csinode,sc", "-o", "wide")
    folder = up.output().partition("logs of all parts are in ")[2].partition(". ")[0]
    below = {one.mount_point for one in read_mountinfo() if one.mount_point.is_relative_to(folder)}
    [mounted] = [point for point in below if point.name == "mount"]
    stunnels = _stunnels(up)
    assert stunnels

    up.process.send_signal(signal.SIGINT)

    assert up.process.wait(timeout=60) == 0, up.output()
    assert not any(stunnel.is_running() for stunnel in stunnels)
    assert not below & {entry.mount_point for entry in read_mountinfo()}
    assert not mounted.exists()


def test_another_terminal_has_what_it_needs_and_the_doctor_leaves_nothing_unchecked(up: _Up) -> None:
    load, *others = _COMMANDS[1:]
    for command in others:
        assert command.missing(up.run_elsewhere(load.text, command.text)) == []
    [doctor] = [line.strip() for line in up.output().splitlines() if "doctor node" in line]
    found = up.run_elsewhere(load.text, doctor)
    assert "TLS handshakes" in found
    assert found.endswith("No problems were found in node embedded.\n")

    addresses = [line.split()[-1] for line in up.output().splitlines() if "  http://" in line]
    page, *metrics = [urllib.request.urlopen(address, timeout=60).read().decode() for address in addresses]
    assert "<title>kube-efs status</title>" in page
    assert all("kube_efs_" in one for one in metrics)
    assert len(metrics) == 3


def test_a_killed_process_is_started_again_and_the_class_can_be_applied_again(up: _Up) -> None:
    assert up.kubectl("apply", "-f", "-", text=STORAGE_CLASS) == (
        f"storageclass.storage.k8s.io/{STORAGE_CLASS_NAME} unchanged\n"
    )
    up_itself = psutil.Process(up.process.pid)
    [controller] = children_with(lambda line: line[-1:] == ["controller"], up_itself)
    controller.kill()

    _until(lambda: "kube-efs controller has ended (exit code -9)" in up.output(), 60, "its end is reported")
    _until(lambda: "kube-efs controller serves its metrics at" in up.output(), 120, "it serves again")
    up.kubectl("apply", "-f", "-", text=EXAMPLE_CLAIM)
    up.kubectl("wait", "pvc/efs-example", "--for=jsonpath={.status.phase}=Bound", "--timeout=90s")


@pytest.mark.parametrize("up", [("--empty", "--kubeconfig", "elsewhere")], indirect=True)
def test_an_empty_cluster_can_have_kube_efs_installed(up: _Up) -> None:
    assert "fs-" in up.output()
    assert NAMES.namespace not in up.kubectl("get", "namespaces,storageclasses,crd", "-o", "name")
    manifests = up.run(sys.executable, "-m", "kube_efs", "render", "--for", "kubernetes")
    up.kubectl("apply", "-f", "-", text=manifests)
    daemon_set = ("rollout", "status", "-n", NAMES.namespace, f"daemonset/{NAMES.tunnel}")
    assert "successfully rolled out" in up.kubectl(*daemon_set, "--timeout=90s")
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(timeout=60) == 0, up.output()
