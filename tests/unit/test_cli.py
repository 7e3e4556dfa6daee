"""The command line as a separate process: its exit status and output."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kube_efs.exit_status import exit_status_of
from kube_efs.model.errors import KubeUnavailable
from kube_efs.settings.controller import efs_provisioner_defaults

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
        timeout=120,
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


def test_texts_in_an_error_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise KubeUnavailable("\x1b]0;owned\x07\u202e", field="event", value="a")

    assert exit_status_of(fail) == 1
    told = capsys.readouterr().err
    assert r"\x1b]0;owned\x07\u202e" in told
    assert not {"\x1b", "\x07", "\u202e"} & set(told)


def test_help_imports_no_heavy_modules() -> None:
    heavy = {"asyncio", "lightkube", "kopf", "aiobotocore", "rich.table"}
    code = f"import sys, kube_efs.cli; print(sorted({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=120, check=False)
    assert ended.stdout == b"[]\n"


def test_worker_pod_imports_few_modules(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.argv = ['kube-efs', 'worker', 'make', '--root', {str(tmp_path)!r}, '--', '/a']\n"
        "from kube_efs.__main__ import main\n"
        "status = main()\n"
        "heavy = {'asyncio', 'kube_efs.cli', 'rich', 'structlog', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)), status)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.stdout == "make /a: done\n[] 0\n", answer.stderr
    assert (tmp_path / "a").is_dir()


@pytest.mark.parametrize(
    "given", [{"FILE_SYSTEM_ID": "fs-47a2c22e"}, {"PROVISIONER_NAME": "example.com/aws-efs"}]
)
def test_without_arguments_and_half_of_its_environment_efs_provisioner_names_the_rest(
    given: dict[str, str],
) -> None:
    answer = _run(**given)
    assert answer.returncode == 2
    (missing,) = {"FILE_SYSTEM_ID", "PROVISIONER_NAME"} - given.keys()
    assert f"{missing} must be set for directory volumes" in answer.stderr


def test_without_arguments_the_help_is_printed() -> None:
    assert "Usage:" in _run().stdout


@pytest.mark.parametrize(
    ("environment", "defaults"),
    [
        pytest.param(
            {"PROVISIONER_NAME": "example.com/aws-efs", "KUBE_EFS_LEASE_NAME": ""},
            {
                "KUBE_EFS_BACKENDS": "directory",
                "KUBE_EFS_OLDER_PERMISSIONS": "true",
                "KUBE_EFS_LEASE_NAME": "example.com-aws-efs",
            },
            id="environment of efs-provisioner",
        ),
        pytest.param(
            {"KUBE_EFS_OLDER_PERMISSIONS": "false", "KUBE_EFS_LEASE_NAME": "lock"},
            {"KUBE_EFS_BACKENDS": "directory"},
            id="settings of kube-efs come first",
        ),
    ],
)
def test_efs_provisioner_has_its_own_defaults(environment: dict[str, str], defaults: dict[str, str]) -> None:
    assert efs_provisioner_defaults(environment) == defaults
