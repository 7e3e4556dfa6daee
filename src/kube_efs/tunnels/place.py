"""Where this node is, remembered on its disk.

Mounts wait for an agent that is started again. It must not depend on the instance's metadata just then, which
may leave calls unanswered when a whole node comes up at once; and a node does not move.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import structlog

from kube_efs.aws.location import NodeLocation
from kube_efs.model.errors import AwsError, InvalidSetting, InvalidValue
from kube_efs.model.ids import parse_region, parse_subnet_id, parse_zone_name
from kube_efs.tunnels.files import write_atomically

log = structlog.get_logger()


async def find_place(path: Path, ask: Callable[[], Awaitable[NodeLocation]]) -> NodeLocation:
    """What ``ask`` gives, or gave the last time if it cannot tell now.

    Raises InvalidSetting and AwsError, as ``ask`` does, when nothing is remembered at ``path``.
    """
    known = await asyncio.to_thread(_load, path)
    try:
        place = await ask()
    except (InvalidSetting, AwsError) as error:
        if known is None:
            raise
        log.warning("place-remembered", region=known.region, zone=known.zone, reason=str(error))
        return known
    if place != known:
        await asyncio.to_thread(_save, path, place)
    return place


def _load(path: Path) -> NodeLocation | None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return NodeLocation(
            region=parse_region(state["region"]),
            zone=parse_zone_name(state["zone"]),
            subnets=tuple(map(parse_subnet_id, state["subnets"])),
            zone_id=parse_zone_name(state["zone_id"]) if state["zone_id"] else None,
            instance_id=state["instance_id"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, InvalidValue) as error:
        log.warning("remembered-place-ignored", path=str(path), reason=str(error) or type(error).__name__)
        return None


def _save(path: Path, place: NodeLocation) -> None:
    try:
        write_atomically(path, json.dumps(asdict(place)))
    except OSError as error:
        log.warning("place-not-remembered", path=str(path), reason=error.strerror)
