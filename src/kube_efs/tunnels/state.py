"""What the node served last, kept on its disk, so that tunnels come up without the API server."""

import json
from datetime import UTC, datetime
from pathlib import Path

import structlog

from kube_efs.model.errors import InvalidValue
from kube_efs.model.targets import TunnelTarget, TunnelTargets, parse_targets, render_targets, render_zones
from kube_efs.tunnels.files import write_atomically
from kube_efs.tunnels.served import Served

log = structlog.get_logger()

_VERSION = 1
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def save_served(path: Path, served: Served) -> None:
    """Remember the document and the lingering tunnels; raises OSError."""
    state = {
        "version": _VERSION,
        "targets": _render(served.document),
        "zones": render_zones(served.document),
        "lingering": [_render(_only(target)) for target in served.lingering],
    }
    write_atomically(path, json.dumps(state))


def load_served(path: Path) -> Served | None:
    """What was remembered; None when there is nothing or it cannot be used, which is logged."""
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, InvalidValue) as error:
        log.warning("remembered-targets-ignored", path=str(path), reason=str(error) or type(error).__name__)
        return None


def _parse(text: str) -> Served:
    state = json.loads(text)
    if state["version"] != _VERSION:
        raise InvalidValue("is written by another version", field="version", value=state["version"])
    document, rejections = parse_targets(_text(state["targets"]), _text(state["zones"]))
    lingering = [parse_targets(_text(one))[0] for one in state["lingering"]]
    return Served(
        document=document,
        rejections=rejections,
        lingering=tuple(target for one in lingering for target in one.targets.values()),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue("is no text", value=value)
    return value


def _render(targets: TunnelTargets) -> str:
    return render_targets(targets, last_update=_NEVER)


def _only(target: TunnelTarget) -> TunnelTargets:
    return TunnelTargets(targets={target.file_system_id: target})
