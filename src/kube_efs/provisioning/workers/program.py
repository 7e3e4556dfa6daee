"""The program inside a worker pod: ``kube-efs worker ACTION --root DIR -- ITEM…``.

It works on every item, even if others fail. It reports the outcome with the exit code (0 all done, 1 some
failed, 2 wrong usage) and, as JSON, with the pod's termination message. Lists, sizes, the rest of the trash
and the progress of a copy are in the pod's log, because a termination message is too small. ``remove`` only
moves directories into the trash of the file system. ``empty`` deletes the contents of the trash in a limited
time; its only item is ``/``. ``copy`` copies the directory ``--source`` into its only item.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kube_efs.model.copies import Copied, CopyProgress, CopyTerms
from kube_efs.model.efs.directories import Directory, Permissions, parse_directory
from kube_efs.model.errors import (
    CopyDiffers,
    GidTaken,
    InvalidValue,
    KubeEfsError,
    RemovalRefused,
    WorkerRefused,
    public_text,
)
from kube_efs.model.secrets import text_without_secrets
from kube_efs.provisioning.workers import file_system
from kube_efs.provisioning.workers.orders import (
    DEFAULT_MODE,
    Action,
    MeasuringTerms,
    parse_item,
    parse_owner,
    path_in,
    render_children,
    render_copied,
    render_measured,
    render_progress,
    render_report,
    render_trash,
)
from kube_efs.provisioning.workers.tree_size import measure_all
from kube_efs.telemetry.uncaught import log_uncaught

TERMINATION_LOG = Path("/dev/termination-log")
_PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str], *, termination_log: Path = TERMINATION_LOG) -> int:
    """Run the action of the arguments; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.action is Action.MEASURE:
        _measure(options)
        return 0
    failed: dict[str, str] = {}
    refused: set[str] = set()
    taken: set[str] = set()
    copied: Copied | None = None
    with _no_umask():
        for item in options.items:
            problem, copied = _attempt(options, item)
            if problem is not None:
                failed[path_in(item)] = _reason(problem)
            if isinstance(problem, (RemovalRefused, WorkerRefused)):
                refused.add(path_in(item))
            if isinstance(problem, (GidTaken, CopyDiffers)):
                taken.add(path_in(item))
            _print(f"{options.action} {item}: {_reason(problem) if problem else 'done'}")
    _leave(termination_log, render_copied(copied) if copied else render_report(failed, refused, taken))
    return 1 if failed else 0


def _measure(options: argparse.Namespace) -> None:
    """Print the size of each directory while time is left; an unreadable one is not a failure."""
    terms = MeasuringTerms(
        entries_per_second=options.rate,
        directory_seconds=options.seconds,
        total_seconds=options.total_seconds,
    )
    for found in measure_all(options.root, map(parse_directory, options.items), terms):
        _print(render_measured(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kube-efs worker",
        description="Create, remove, list, measure or copy directories of a file system, or empty its trash.",
    )
    parser.add_argument("action", type=Action, choices=list(Action))
    parser.add_argument("--root", type=Path, required=True, help="mount path of the file system")
    parser.add_argument(
        "--base", type=_directory, default=Directory(), help="remove only below this directory"
    )
    parser.add_argument("--mode", type=_mode, default=DEFAULT_MODE, help="mode of new directories, octal")
    parser.add_argument(
        "--enforce", action="store_true", help="also set mode and owners of existing directories"
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="also clear the setuid and setgid bits of existing directories that get no owners",
    )
    parser.add_argument(
        "--own-group",
        action="store_true",
        help="do not assign a group ID that another directory was created with",
    )
    terms = MeasuringTerms()
    parser.add_argument(
        "--rate",
        type=int,
        default=terms.entries_per_second,
        help="maximum number of files to measure in a second",
    )
    parser.add_argument(
        "--seconds", type=int, default=terms.directory_seconds, help="maximum seconds to measure a directory"
    )
    parser.add_argument(
        "--total-seconds",
        type=int,
        default=terms.total_seconds,
        help="maximum seconds to measure all of them, or to empty the trash",
    )
    parser.add_argument("--source", type=_directory, help="directory to copy")
    parser.add_argument("--key", type=_key, help="name of the copy, which continues later")
    parser.add_argument(
        "--source-owner", metavar="UID:GID", help="owner of the source, if not that of its directory"
    )
    parser.add_argument(
        "--source-may-be-missing", action="store_true", help="a missing source is an empty one"
    )
    parser.add_argument(
        "--map-owner", action="store_true", help="files of the source's owner get the owner of the copy"
    )
    parser.add_argument(
        "--in-use", action="store_true", help="others use the directory, so it is not replaced"
    )
    parser.add_argument(
        "items",
        nargs="+",
        metavar="ITEM",
        help="[UID:GID:][@TENANT:]/directory inside the file system; / to empty its trash",
    )
    return parser


def _directory(text: str) -> Directory:
    try:
        return parse_directory(text)
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _key(text: str) -> str:
    try:
        return (Directory() / text).parts[-1]
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _mode(text: str) -> int:
    mode = int(text, 8)
    if not 0 <= mode <= 0o7777:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 7777")
    return mode


@contextmanager
def _no_umask() -> Iterator[None]:
    """Lets mkdir set the complete mode, so that a crash cannot leave a directory with another mode."""
    former = os.umask(0)
    try:
        yield
    finally:
        os.umask(former)


def _attempt(options: argparse.Namespace, item: str) -> tuple[Exception | None, Copied | None]:
    """The problem with the item, if there is one, and the result of a copy."""
    try:
        if options.action is Action.COPY:
            return None, _copied(options, parse_directory(item))
        _do(options, item)
    except (KubeEfsError, OSError) as error:
        return error, None
    except Exception as error:  # noqa: BLE001 - the other items are still done
        log_uncaught(error, place=f"{options.action} {item}")
        return error, None
    return None, None


def _reason(problem: Exception) -> str:
    """The text for the termination message; errors of the file system have the kernel's text."""
    return text_without_secrets(str(problem)) if isinstance(problem, OSError) else public_text(problem)


def _do(options: argparse.Namespace, item: str) -> None:
    match options.action:
        case Action.MAKE:
            wanted = parse_item(item)
            permissions = Permissions(
                mode=options.mode,
                uid=wanted.uid,
                gid=wanted.gid,
                enforced=options.enforce,
                exact=options.exact,
                own_group=options.own_group,
            )
            file_system.make_directory(options.root, wanted.directory, permissions)
        case Action.REMOVE:
            wanted = parse_item(item)
            if wanted.uid is not None or wanted.gid is not None:
                raise InvalidValue(
                    "has owners, but is removed", field="item", value=item, remedy="omit UID:GID:"
                )
            file_system.move_to_trash(options.root, wanted.directory, base=options.base, tenant=wanted.tenant)
        case Action.LIST:
            for line in render_children(file_system.list_children(options.root, parse_directory(item))):
                _print(line)
        case Action.EMPTY:
            if not parse_directory(item).is_root:
                raise InvalidValue(
                    "is not the root of the file system", field="item", value=item, remedy="use /"
                )
            deadline = time.monotonic() + options.total_seconds
            report = file_system.empty_trash(options.root, lambda: time.monotonic() < deadline)
            _print(render_trash(report))


def _copied(options: argparse.Namespace, target: Directory) -> Copied:
    if options.source is None or not options.key:
        raise InvalidValue("is missing", field="copy", value=str(target), remedy="give --source and --key")
    terms = CopyTerms(
        key=options.key,
        source=options.source,
        owner=parse_owner(options.source_owner) if options.source_owner else None,
        may_be_missing=options.source_may_be_missing,
        maps_owner=options.map_owner,
        in_use=options.in_use,
    )
    due = time.monotonic() + _PROGRESS_SECONDS

    def report(progress: CopyProgress) -> None:
        nonlocal due
        # Several threads call this; at worst, a line appears twice.
        if time.monotonic() >= due:
            due = time.monotonic() + _PROGRESS_SECONDS
            _print(render_progress(progress))

    return file_system.copy_directory(options.root, target, terms, report)


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the pod's log


def _leave(termination_log: Path, message: str) -> None:
    try:
        # Not created when missing: outside a pod, nothing reads it.
        descriptor = os.open(termination_log, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
