"""Asks kubectl itself, which knows its own files, contexts and plug-ins for credentials."""

import subprocess
from typing import Final

from kube_efs.model.errors import InvalidSetting, PlatformError

# kubectl may ask a slow API server for names.
_SECONDS: Final = 30.0


def names_of(kind: str, *, kubeconfig: str | None, context: str | None, namespace: str | None) -> list[str]:
    """The names of the objects of a kind; empty if they cannot be listed."""
    options = options_of(kubeconfig=kubeconfig, context=context, namespace=namespace)
    try:
        found = ask("get", kind, "--output=name", *options)
    except (InvalidSetting, PlatformError):
        return []
    return [line.partition("/")[2] for line in found.splitlines()]


def contexts(kubeconfig: str | None) -> list[str]:
    """The names of the contexts; empty if they cannot be read."""
    try:
        return ask("config", "get-contexts", "--output=name", *options_of(kubeconfig=kubeconfig)).splitlines()
    except (InvalidSetting, PlatformError):
        return []


def options_of(**values: str | None) -> list[str]:
    """Options with these values, without those that have none."""
    return [f"--{name}={value}" for name, value in values.items() if value]


def ask(*arguments: str) -> str:
    """The output of kubectl with these arguments; raises InvalidSetting when it fails, or PlatformError."""
    try:
        answer = subprocess.run(
            ["kubectl", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        remedy = "install it, or use the command kube-efs"
        raise PlatformError(
            f"cannot be run: {type(error).__name__}", field="program", value="kubectl", remedy=remedy
        ) from error
    if answer.returncode:
        raise InvalidSetting(_problem(answer.stderr), field="kubectl", value=" ".join(arguments[:2]))
    return answer.stdout


def _problem(text: str) -> str:
    last = text.strip().splitlines()[-1:] or ["failed"]
    return last[0].removeprefix("error: ")
