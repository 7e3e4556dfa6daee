"""The command line as a separate process: its exit status and output."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

# Nobody listens on port 1.
_NOBODY = """
apiVersion: v1
kind: Config
current-context: nobody
contexts: [{name: nobody, context: {cluster: nobody, user: nobody}}]
clusters: [{name: nobody, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
"""


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kube_efs", *arguments],
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **variables},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_help_lists_the_commands_and_hides_the_worker() -> None:
    answer = _run("--help")
    assert answer.returncode == 0
    for command in ("controller", "tunnel", "up", "demo", "status"):
        assert f" {command} " in answer.stdout
    assert " worker " not in answer.stdout


def test_version_matches_the_package() -> None:
    assert _run("--version").stdout == f"kube-efs {version('kube-efs')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["mount"], id="unknown command"),
        pytest.param(["status", "--loud"], id="unknown option"),
        pytest.param(["demo", "--output", "xml"], id="unknown format"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    answer = _run(*arguments)
    assert answer.returncode == 2
    assert "Usage:" in answer.stderr


@pytest.mark.parametrize("command", ["controller", "tunnel"])
def test_bad_settings_exit_with_2_and_no_traceback(command: str) -> None:
    answer = _run(command, KUBE_EFS_HEALTH_PORT="http", LOGGING_LEVEL="LOUD")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: 2 settings are not valid:")
    assert "KUBE_EFS_HEALTH_PORT: 'http'" in answer.stderr
    assert "LOGGING_LEVEL: 'LOUD'" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_missing_kubeconfig_exits_with_2_and_names_the_file() -> None:
    answer = _run("status", "--kubeconfig", "/nowhere/kubeconfig")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: KUBECONFIG: ")
    assert "/nowhere/kubeconfig not found" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_unresponsive_cluster_exits_with_1_and_one_line(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(_NOBODY)
    answer = _run("status", "--kubeconfig", str(kubeconfig))
    assert answer.returncode == 1
    assert re.match(r"error: .+: could not be reached", answer.stderr)
    assert len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["asyncio", "pydantic", "lightkube", "kopf", "aiobotocore", "rich.table"])
def test_help_imports_no_heavy_modules(module: str) -> None:
    code = f"import sys, kube_efs.cli; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


def test_worker_pod_imports_few_modules(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.argv = ['kube-efs', 'worker', 'make', '--root', {str(tmp_path)!r}, '--', '/a']\n"
        "from kube_efs.__main__ import main\n"
        "status = main()\n"
        "heavy = {'asyncio', 'kube_efs.cli', 'pydantic', 'rich', 'structlog', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)), status)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert answer.stdout == "make /a: done\n[] 0\n", answer.stderr
    assert (tmp_path / "a").is_dir()
