"""The program inside a worker pod: ``kube-efs worker make|remove --root DIR PATH…``.

It does every path it is given, whatever becomes of the others, and leaves the outcome where the
controller finds it: the exit code (0 all done, 1 some failed, 2 wrong usage) and, as JSON, the pod's
termination message.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kube_efs.model.directories import Directory, parse_directory
from kube_efs.model.errors import InvalidValue, KubeEfsError
from kube_efs.provisioning import file_system

TERMINATION_LOG = Path("/dev/termination-log")

# Kubernetes cuts a termination message at 4096 bytes.
_MESSAGE_MAX_BYTES = 4096
_REASON_MAX_CHARACTERS = 300


class Action(StrEnum):
    """What a worker does with its directories."""

    MAKE = "make"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What became of a worker's directories.

    ``failed`` has the reason for each directory that was not done; when ``complete`` is false there
    was no room for all of them, and only a directory that is known to be done counts as done.
    """

    failed: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True


def render_report(failed: Mapping[str, str]) -> str:
    """The termination message for these failures, with as many of them as fit."""
    kept: dict[str, str] = {}
    text = json.dumps({"complete": not failed, "failed": kept})
    for path, reason in failed.items():
        kept[path] = reason[:_REASON_MAX_CHARACTERS]
        longer = json.dumps({"complete": len(kept) == len(failed), "failed": kept})
        if len(longer.encode()) > _MESSAGE_MAX_BYTES:
            break
        text = longer
    return text


def parse_report(message: str) -> WorkerReport | None:
    """The report in a termination message; None when the worker left none (it was killed, say)."""
    try:
        body = json.loads(message)
        failed = {str(path): str(reason) for path, reason in body["failed"].items()}
        return WorkerReport(failed=failed, complete=bool(body["complete"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def main(arguments: Sequence[str], *, termination_log: Path = TERMINATION_LOG) -> int:
    """Do what the arguments say; gives the exit code."""
    options = _parser().parse_args(arguments)
    failed: dict[str, str] = {}
    for path in options.paths:
        problem = _attempt(_action(options), path)
        if problem is not None:
            failed[path] = problem
        print(f"{options.action} {path}: {problem or 'done'}", flush=True)  # noqa: T201 - the pod's log
    _leave(termination_log, render_report(failed))
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kube-efs worker", description="Make or remove directories of a volume."
    )
    parser.add_argument("action", type=Action, choices=list(Action))
    parser.add_argument("--root", type=Path, required=True, help="where the file system is mounted")
    parser.add_argument("--base", type=_directory, default=Directory(), help="remove only below this")
    parser.add_argument(
        "--mode", type=lambda text: int(text, 8), default=0o777, help="mode of new directories, octal"
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="directory inside the file system")
    return parser


def _directory(text: str) -> Directory:
    try:
        return parse_directory(text)
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _action(options: argparse.Namespace) -> Callable[[Directory], object]:
    if options.action is Action.MAKE:
        return lambda directory: file_system.make_directory(options.root, directory, mode=options.mode)
    return lambda directory: file_system.remove_directory(options.root, directory, base=options.base)


def _attempt(action: Callable[[Directory], object], path: str) -> str | None:
    try:
        action(parse_directory(path))
    except (KubeEfsError, OSError) as error:
        return str(error)
    return None


def _leave(termination_log: Path, message: str) -> None:
    try:
        # Not created when missing: outside a pod there is nobody to read it.
        descriptor = os.open(termination_log, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
