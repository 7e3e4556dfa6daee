"""The targets of the ConfigMap that a node serves, and their copy on the disk.

A tunnel in use is never closed, and its port never leads to another file system: a mounted volume would then
read the data of another volume. A target that leaves the document therefore lingers until it is unused, and
a new target with the same port waits until then. A target that no volume uses any more lingers, too.

The last valid document is stored, so that tunnels start without the API server. A second file has the one
before. If the first file cannot be used, the running processes of the data planes know what the earlier agent
served, and that stays until the next document (``with_running``).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import structlog

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.target_entries import TARGETS_KEY
from kube_efs.model.efs.targets import (
    Rejection,
    TunnelTarget,
    TunnelTargets,
    parse_targets,
    render_json_entry,
    render_s3_files,
    render_unused,
    render_zones,
)
from kube_efs.model.errors import InvalidValue
from kube_efs.tunnels.changes import Incremental
from kube_efs.tunnels.files import keep_previous, write_atomically

log = structlog.get_logger()

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The last valid document, its rejected entries, and the lingering targets of earlier documents."""

    document: TunnelTargets = field(default_factory=TunnelTargets)
    rejections: tuple[Rejection, ...] = ()
    lingering: tuple[TunnelTarget, ...] = ()

    @property
    def waiting(self) -> tuple[TunnelTarget, ...]:
        """Targets of the document whose port still belongs to a lingering tunnel."""
        held = self.lingering_ports
        return tuple(target for target in used_targets(self.document) if target.port in held)

    @property
    def current(self) -> tuple[TunnelTarget, ...]:
        """Targets of the document that can be served."""
        held = self.lingering_ports
        return tuple(target for target in used_targets(self.document) if target.port not in held)

    @property
    def lingering_ports(self) -> frozenset[int]:
        """The ports that other targets cannot have yet."""
        return frozenset(target.port for target in self.lingering)


def apply_document(served: Served, document: TunnelTargets, rejections: Iterable[Rejection]) -> Served:
    """What to serve after a new document."""
    document, rejections = _keep_unreadable_entries(served.document, document, tuple(rejections))
    wanted = {_identity(target) for target in used_targets(document)}
    # Only what was served lingers. A target that still waited for its port never had a tunnel, so no mount
    # depends on it.
    lingering = (*served.lingering, *served.current)
    return Served(
        document=document,
        rejections=rejections,
        lingering=tuple(target for target in lingering if _identity(target) not in wanted),
    )


def used_targets(document: TunnelTargets) -> tuple[TunnelTarget, ...]:
    """The targets whose ports the node must open."""
    return tuple(target for fs, target in document.targets.items() if fs not in document.unused)


def drop_lingering(served: Served, unused_ports: Collection[int]) -> Served:
    """Without the lingering tunnels of these ports."""
    return replace(
        served, lingering=tuple(target for target in served.lingering if target.port not in unused_ports)
    )


def with_running(served: Served, running: Iterable[TunnelTarget]) -> Served:
    """Also with the targets that the processes of the node serve; they are right about the ports.

    A target that the document does not have becomes a part of it, so that nothing closes it before the next
    document is known. If the document has its file system or its port for something else, it lingers. Of one
    that it has, the addresses stay, because only the document has their subnets.
    """
    running = tuple(running)
    ports = {one.port for one in running}
    targets = dict(served.document.targets)
    lingering = [one for one in served.lingering if one.port not in ports]
    for one in running:
        known = targets.get(one.file_system_id)
        is_taken = any(target.port == one.port for target in targets.values())
        if known is None and not is_taken:
            targets[one.file_system_id] = one
        elif known is None or known.port != one.port or one.file_system_id in served.document.unused:
            lingering.append(one)
    document = replace(served.document, targets=MappingProxyType(targets))
    return replace(served, document=document, lingering=tuple(lingering))


def _identity(target: TunnelTarget) -> tuple[str, int]:
    return target.file_system_id, target.port


def _keep_unreadable_entries(
    before: TunnelTargets, document: TunnelTargets, rejections: tuple[Rejection, ...]
) -> tuple[TunnelTargets, tuple[Rejection, ...]]:
    """The document, in which an entry that is no longer readable stays as it was, with its port."""
    unreadable = {rejection.entry for rejection in rejections}
    kept = {fs: target for fs, target in before.targets.items() if fs in unreadable}
    owners = {target.port: fs for fs, target in kept.items()}
    conflicting = {fs: target for fs, target in document.targets.items() if target.port in owners}
    refused = tuple(
        Rejection(
            entry=fs,
            error=InvalidValue(
                f"is the port of {owners[target.port]}", field=f"{fs}.stunnel_port", value=target.port
            ),
        )
        for fs, target in conflicting.items()
    )
    targets = {fs: target for fs, target in document.targets.items() if fs not in conflicting} | kept
    return replace(document, targets=MappingProxyType(targets)), (*rejections, *refused)


def new_texts() -> Incremental[TunnelTarget, str]:
    """The texts for ``save_served``, of a writer that writes one state after the other."""
    return Incremental(render_json_entry)


def save_served(path: Path, served: Served, *, texts: Incremental[TunnelTarget, str] | None = None) -> None:
    """Store the document and the lingering tunnels; raises OSError.

    With the ``texts`` of the last call, only changed targets are rendered.
    """
    state = {
        "version": _VERSION,
        "targets": _render(served.document.targets, texts or new_texts()),
        "zones": render_zones(served.document),
        "unused": render_unused(served.document),
        "s3_files": render_s3_files(served.document.s3_files),
        "lingering": [_render({one.file_system_id: one}, new_texts()) for one in served.lingering],
    }
    # TypeError: JSON that is no object, such as null.
    with suppress(OSError, ValueError, TypeError):
        if "targets" in json.loads(path.read_bytes()):
            keep_previous(path)
    write_atomically(path, json.dumps(state))


def load_served(path: Path) -> Served | None:
    """The stored targets; None without a file, or if it cannot be used, which is logged.

    Of a file of another version, the known parts are read.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["version"] != _VERSION:
            log.warning("stored-targets-of-another-version", path=str(path), version=state["version"])
        return _parse(state)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, InvalidValue) as error:
        log.warning("stored-targets-ignored", path=str(path), reason=str(error) or type(error).__name__)
        return None


def _parse(state: Mapping[str, Any]) -> Served:
    # Earlier versions did not store these two.
    unused, s3_files = _text(state.get("unused", "")), _text(state.get("s3_files", ""))
    document, rejections = parse_targets(
        _text(state["targets"]), _text(state["zones"]), unused_text=unused, s3_files_text=s3_files
    )
    lingering = [parse_targets(_text(one))[0] for one in state["lingering"]]
    return Served(
        document=document,
        rejections=rejections,
        lingering=tuple(target for one in lingering for target in one.targets.values()),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue("is not text", value=value)
    return value


def _render(targets: Mapping[FileSystemId, TunnelTarget], texts: Incremental[TunnelTarget, str]) -> str:
    # JSON, because YAML needs ten times as long for reading and writing.
    return f'{{"{TARGETS_KEY}": {{{", ".join(texts.results(targets))}}}}}'
