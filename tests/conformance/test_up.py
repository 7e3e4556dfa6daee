"""``kube-efs up`` and ``kube-efs demo`` on a real control plane."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.conformance.programs import PROGRAMS
from tests.docs.blocks import commands_for

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"
)

_SECONDS = 270.0


def _option() -> str:
    """The option as documented in the page."""
    [command] = commands_for("docs/embedded.md", "tests/conformance/test_up.py")
    *program, option, _ = command.text.split()
    assert program == ["kube-efs", "up"]
    return option


def test_every_check_of_the_demo_succeeds() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "kube_efs", "demo", "--output", "json", _option(), str(PROGRAMS)],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert answer.stdout, answer.stderr
    document = json.loads(answer.stdout)
    assert [check for check in document["checks"] if not check["ok"]] == []
    assert answer.returncode == 0


def test_up_starts_and_stops_the_real_control_plane_of_the_variable(tmp_path: Path) -> None:
    kubeconfig, output = tmp_path / "kubeconfig", tmp_path / "output"
    with output.open("w") as written:
        up = subprocess.Popen(
            [sys.executable, "-m", "kube_efs", "up", "--kubeconfig", str(kubeconfig)],
            env={**os.environ, "KUBEBUILDER_ASSETS": str(PROGRAMS)},
            stdout=written,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + _SECONDS
        while "Ctrl-C ends everything" not in output.read_text():
            assert up.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        # Only a real one has leases of its API servers.
        found = subprocess.run(
            ["kubectl", "--kubeconfig", str(kubeconfig), "get", "lease", "-n", "kube-system", "-o", "name"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert "lease.coordination.k8s.io/apiserver-" in found.stdout
        # The controller's own permissions suffice for its page.
        [page] = [line.split()[-1] for line in output.read_text().splitlines() if "status page" in line]
        while True:  # the controller may not have found the file systems yet
            status = json.loads(urllib.request.urlopen(f"{page}status.json", timeout=30).read())
            if (len(status["file_systems"]), status["problems"]) == (2, []):
                break
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
        up.send_signal(signal.SIGINT)
        assert up.wait(_SECONDS) == 0, output.read_text()
        assert not kubeconfig.exists()
    finally:
        up.kill()
        up.wait()


def test_error_names_the_directory_without_the_programs(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "kube_efs", "up", _option(), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: program: '{tmp_path}/etcd'")
    assert "Traceback" not in answer.stderr
