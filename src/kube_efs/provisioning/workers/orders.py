"""The work of a worker pod, as values and arguments; and its report, in termination message and log.

An item is ``[UID:GID:][@TENANT:]/path``. ``UID`` or ``GID`` is empty if that owner is not set.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kube_efs.model.copies import Copied, CopyProgress, CopyTerms, FileOwner
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, parse_directory
from kube_efs.model.errors import InvalidValue
from kube_efs.model.secrets import shortened
from kube_efs.model.trash import StuckEntry, TrashReport
from kube_efs.model.usage import MeasuredDirectory, TreeSize

DEFAULT_MODE = Permissions().mode

_ITEM = re.compile(r"(?:([0-9]{0,10}):([0-9]{0,10}):)?(?:@([a-z0-9]{1,12}):)?(/.*)", re.DOTALL)
_TENANT = re.compile(r"[a-z0-9]{0,12}")
# The next number means "no change" to chown(2).
_ID_MAX = 2**32 - 2
# Kubernetes truncates a termination message at 4096 bytes.
_MESSAGE_MAX_BYTES = 4096
_REASON_MAX_CHARACTERS = 300


class Action(StrEnum):
    """What a worker does with its directories."""

    MAKE = "make"
    REMOVE = "remove"
    LIST = "list"
    MEASURE = "measure"
    EMPTY = "empty"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringTerms:
    """Limits of a measurement: files per second, seconds for each directory, and seconds in total."""

    entries_per_second: int = 1000
    directory_seconds: int = 120
    total_seconds: int = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyingTerms:
    """The maximum of seconds for emptying the trash of a file system."""

    seconds: int = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The common properties of all items of a pod; each action uses only its own fields."""

    action: Action
    mode: int = DEFAULT_MODE
    enforced: bool = False
    exact: bool = False
    own_group: bool = False
    base: Directory = field(default_factory=Directory)
    terms: MeasuringTerms = field(default_factory=MeasuringTerms)
    emptying: EmptyingTerms = field(default_factory=EmptyingTerms)
    copying: CopyTerms = field(default_factory=CopyTerms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One directory, its owners if they are set, and the tenant of its trash.

    Raises InvalidValue unless the tenant consists of up to 12 lower-case letters and digits.
    """

    directory: Directory
    uid: int | None = None
    gid: int | None = None
    tenant: str = ""

    def __post_init__(self) -> None:
        if not _TENANT.fullmatch(self.tenant):
            remedy = "use up to 12 lower-case letters and digits"
            raise InvalidValue("is not a valid tenant", field="tenant", value=self.tenant, remedy=remedy)

    def __str__(self) -> str:
        tenant = f"@{self.tenant}:" if self.tenant else ""
        owned = self.uid is not None or self.gid is not None
        owners = f"{_written(self.uid)}:{_written(self.gid)}:" if owned else ""
        return f"{owners}{tenant}{self.directory}"


def _written(owner: int | None) -> str:
    return "" if owner is None else str(owner)


def render_arguments(job: Job, items: Iterable[Item], *, root: str) -> Sequence[str]:
    """The arguments of ``kube-efs`` for this work on the file system mounted at ``root``."""
    options = ["--root", root]
    if job.mode != DEFAULT_MODE:
        options += ["--mode", f"{job.mode:04o}"]
    if job.enforced:
        options += ["--enforce"]
    if job.exact:
        options += ["--exact"]
    if job.own_group:
        options += ["--own-group"]
    if not job.base.is_root:
        options += ["--base", str(job.base)]
    if job.action is Action.MEASURE:
        terms = job.terms
        options += ["--rate", str(terms.entries_per_second), "--seconds", str(terms.directory_seconds)]
        options += ["--total-seconds", str(terms.total_seconds)]
    if job.action is Action.EMPTY:
        options += ["--total-seconds", str(job.emptying.seconds)]
    if job.action is Action.COPY:
        options += _copy_options(job.copying)
    return ["worker", str(job.action), *options, "--", *map(str, items)]


def _copy_options(terms: CopyTerms) -> list[str]:
    options = ["--key", terms.key, "--source", str(terms.source)]
    if terms.owner is not None:
        options += ["--source-owner", f"{terms.owner.uid}:{terms.owner.gid}"]
    if terms.may_be_missing:
        options += ["--source-may-be-missing"]
    if terms.maps_owner:
        options += ["--map-owner"]
    if terms.in_use:
        options += ["--in-use"]
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """What a worker with some arguments does: None for what is unknown.

    ``directories`` are those that it works on, and ``source`` is the one that it copies.
    """

    action: Action | None = None
    directories: tuple[Directory, ...] | None = None
    source: Directory | None = None


def parse_order(arguments: Sequence[str]) -> PodOrder:
    """The order of a worker with these arguments."""
    match arguments:
        case ["worker", str(word), *options] if word in set(Action) and "--" in options:
            end = options.index("--")
            action, named = Action(word), options[:end]
            try:
                source = parse_directory(named[named.index("--source") + 1]) if "--source" in named else None
                directories = tuple(parse_directory(path_in(item)) for item in options[end + 1 :])
            except (InvalidValue, IndexError):
                return PodOrder(action=action)
            return PodOrder(action=action, directories=directories, source=source)
    return PodOrder()


def parse_owner(text: str) -> FileOwner:
    """The owner in ``UID:GID``; raises InvalidValue."""
    item = parse_item(f"{text}:/")
    if item.uid is None or item.gid is None:
        raise InvalidValue("is not a user and a group", field="owner", value=text, remedy="give UID:GID")
    return FileOwner(uid=item.uid, gid=item.gid)


def path_in(text: str) -> str:
    """The path in an item's text; the text itself when it is not an item."""
    match = _ITEM.fullmatch(text)
    return match[4] if match else text


def parse_item(text: str) -> Item:
    """The item; raises InvalidValue."""
    match = _ITEM.fullmatch(text)
    if match is None:
        return Item(directory=parse_directory(text))
    uid, gid, tenant, path = match.groups()
    return Item(
        directory=parse_directory(path), uid=_id(uid, "uid"), gid=_id(gid, "gid"), tenant=tenant or ""
    )


def _id(digits: str | None, owner: str) -> int | None:
    if not digits:
        return None
    if int(digits) > _ID_MAX:
        raise InvalidValue("is too large", field=owner, value=digits, remedy=f"use at most {_ID_MAX}")
    return int(digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The results of a worker's directories.

    ``failed`` contains the reason for each failed directory. When ``complete`` is false, the message had no
    room for all of them, so a directory that is not in ``failed`` may have failed, too. Of the failed
    directories, a guard has refused those in ``refused``, and those in ``taken`` have a group ID that another
    directory has, or the name of a copy of another one. ``copied`` is the result of a copy. ``children``,
    ``measured`` and ``trash`` are the results of the other actions; they come from the log, not from the
    termination message.
    """

    failed: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    complete: bool = True
    children: tuple[FoundDirectory, ...] = ()
    measured: tuple[MeasuredDirectory, ...] = ()
    trash: TrashReport | None = None
    copied: Copied | None = None


def render_report(
    failed: Mapping[str, str], refused: Collection[str] = (), taken: Collection[str] = ()
) -> str:
    """The termination message for these failures, with as many of them as fit."""
    kept: dict[str, str] = {}
    text = json.dumps({"complete": not failed, "failed": kept})
    for path, reason in failed.items():
        kept[path] = shortened(reason, _REASON_MAX_CHARACTERS)
        body = {"complete": len(kept) == len(failed), "failed": kept}
        kinds = {"refused": refused, "taken": taken}
        marked = {kind: [path for path in kept if path in those] for kind, those in kinds.items() if those}
        longer = json.dumps({**body, **marked})
        if len(longer.encode()) > _MESSAGE_MAX_BYTES:
            break
        text = longer
    return text


def parse_report(message: str) -> WorkerReport | None:
    """The report in a termination message; None when it contains none, for example after a kill."""
    try:
        body = json.loads(message)
        failed = {str(path): str(reason) for path, reason in body["failed"].items()}
        refused = frozenset(map(str, body.get("refused", ())))
        taken = frozenset(map(str, body.get("taken", ())))
        return WorkerReport(failed=failed, refused=refused, taken=taken, complete=bool(body["complete"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def render_children(children: Sequence[FoundDirectory]) -> Iterator[str]:
    """One line for each, and one with their number, which shows whether the log was truncated."""
    for child in children:
        yield json.dumps({"name": child.name, "gid": child.gid})
    yield json.dumps({"children": len(children)})


def parse_children(lines: Iterable[str]) -> tuple[FoundDirectory, ...] | None:
    """The children in a worker's log, among other lines; None when some are missing."""
    found, expected = [], None
    for line in lines:
        match _json(line):
            case {"name": str(name), "gid": int(gid)}:
                found.append(FoundDirectory(name=name, gid=gid))
            case {"children": int(number)}:
                expected = number
    return tuple(found) if len(found) == expected else None


def render_measured(found: MeasuredDirectory) -> str:
    """The line for one directory."""
    body: dict[str, object] = {"measured": str(found.directory)}
    if found.size is None:
        return json.dumps({**body, "problem": found.problem})
    size = found.size
    return json.dumps({**body, "bytes": size.used_bytes, "entries": size.entries, "complete": size.complete})


def parse_measured(lines: Iterable[str]) -> tuple[MeasuredDirectory, ...]:
    """The measured directories in a worker's log, among other lines."""
    found = []
    for line in lines:
        match _json(line):
            case {
                "measured": str(path),
                "bytes": int(used),
                "entries": int(entries),
                "complete": bool(complete),
            }:
                size = TreeSize(used_bytes=used, entries=entries, complete=complete)
                found.append(MeasuredDirectory(directory=parse_directory(path), size=size))
            case {"measured": str(path), "problem": str(problem)}:
                found.append(MeasuredDirectory(directory=parse_directory(path), problem=problem))
    return tuple(found)


def render_trash(report: TrashReport) -> str:
    """The line about the rest of the trash."""
    examples = [[one.entry, one.path, one.reason] for one in report.examples]
    return json.dumps(
        {
            "trash": report.entries,
            "stuck": report.stuck,
            "removed": report.removed,
            "examples": examples,
        }
    )


def parse_trash(lines: Iterable[str]) -> TrashReport | None:
    """The report about the trash in a worker's log, among other lines; None when it is missing."""
    for line in lines:
        match _json(line):
            case {"trash": int(entries), "stuck": int(stuck), "removed": int(removed), "examples": [*found]}:
                examples = [
                    StuckEntry(entry=str(entry), path=str(path), reason=str(reason))
                    for entry, path, reason in found
                ]
                return TrashReport(entries=entries, stuck=stuck, removed=removed, examples=tuple(examples))
    return None


def render_progress(progress: CopyProgress) -> str:
    """The line about a copy that continues."""
    return json.dumps({"entries": progress.entries, "copied": progress.copied_bytes})


def parse_progress(lines: Iterable[str]) -> CopyProgress | None:
    """The newest progress in a worker's log, among other lines; None when it is missing."""
    newest = None
    for line in lines:
        match _json(line):
            case {"entries": int(entries), "copied": int(copied)}:
                newest = CopyProgress(entries=entries, copied_bytes=copied)
    return newest


def render_copied(copied: Copied) -> str:
    """The termination message for a complete copy."""
    progress = copied.progress
    return json.dumps(
        {"entries": progress.entries, "copied": progress.copied_bytes, "finished": copied.finished}
    )


def parse_copied(message: str) -> Copied | None:
    """The complete copy in a termination message; None when it contains none."""
    match _json(message):
        case {"entries": int(entries), "copied": int(copied), "finished": float(finished)}:
            progress = CopyProgress(entries=entries, copied_bytes=copied)
            return Copied(progress=progress, finished=finished)
    return None


def _json(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
