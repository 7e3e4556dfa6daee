"""A controller killed at critical moments: each claim still gets one directory, and none is left behind."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from tests.scenarios import directory_steps, faulty_api, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.faulty_api import Call, Exchange, Fault, FaultyApi
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Other modules leave claims in this cluster, by other names.
PREFIX = "crashed"
NAMES = [f"{PREFIX}-{number}" for number in range(6)]
KEPT, ORPHAN, NEXT = f"{PREFIX}-kept", f"{PREFIX}-orphan", f"{PREFIX}-next"
WITHOUT_VOLUME = "kube_efs_directories_without_volume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A call of the controller that gets no answer; ``done``: the server carries it out."""

    method: str
    resource: str
    done: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fault(self, call: Call) -> Fault | None:
        """Hold every call of this kind; the first one is the moment."""
        is_it = (call.method, call.resource) == (self.method, self.resource)
        return self._hold if is_it else None

    async def _hold(self, exchange: Exchange) -> web.StreamResponse:
        if next(self._numbers) == 0:
            if self.done:
                await exchange.carry_out()
            self.reached.set()
        await asyncio.Event().wait()  # until the controller is dead
        return exchange.cut()


MakeMoment = Callable[[], Moment]


async def _killed_at(cluster: Cluster, api: FaultyApi, moment: Moment) -> None:
    """Kill the controller at the moment."""
    async with asyncio.timeout(steps.DEADLINE_SECONDS):
        await moment.reached.wait()
    await cluster.controller.kill()
    api.fault = faulty_api.no_fault


def _directories(cluster: Cluster) -> set[str]:
    """The directories for claims of this module."""
    root = cluster.efs.folder(directory_steps.file_system(cluster))
    return {found.name for found in root.glob(f"{PREFIX}-*")}


PROVISIONING: dict[str, MakeMoment] = {
    "while a worker creates directories": lambda: Moment(method="POST", resource="pods", done=True),
    "between mkdir and the volume": lambda: Moment(method="POST", resource="persistentvolumes", done=False),
    "after the first volume": lambda: Moment(method="POST", resource="persistentvolumes", done=True),
}


@pytest.mark.parametrize("moment", PROVISIONING.values(), ids=PROVISIONING.keys())
async def test_controller_killed_during_provisioning_creates_each_volume_once(
    cluster: Cluster, api: FaultyApi, moment: MakeMoment
) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client)
    at = moment()
    api.fault = at.fault
    await claims.create(name, *NAMES)
    await _killed_at(cluster, api, at)
    if at.resource == "persistentvolumes":
        assert len(_directories(cluster)) >= 1
        assert len(await claims.volumes()) == int(at.done)

    await cluster.controller.start()

    volumes = await claims.all_bound(len(NAMES))
    assert len({volume.gid for volume in volumes}) == len(NAMES)
    assert _directories(cluster) == {directory_steps.folder(cluster, volume).name for volume in volumes}
    for volume in volumes:
        found = directory_steps.folder(cluster, volume).stat()
        assert (found.st_gid, oct(found.st_mode & 0o7777)) == (volume.gid, "0o2771")
    await claims.delete(*NAMES)
    await claims.no_volumes()
    assert not _directories(cluster)


REMOVING: dict[str, MakeMoment] = {
    "while a worker removes directories": lambda: Moment(method="POST", resource="pods", done=True),
    "between removal and the volume's deletion": lambda: Moment(
        method="DELETE", resource="persistentvolumes", done=False
    ),
    "between the volume's deletion and its finalizer's": lambda: Moment(
        method="DELETE", resource="persistentvolumes", done=True
    ),
    "after the finalizer's deletion": lambda: Moment(method="PATCH", resource="persistentvolumes", done=True),
}


@pytest.mark.parametrize("moment", REMOVING.values(), ids=REMOVING.keys())
async def test_controller_killed_during_removals_removes_only_deleted_volumes(
    cluster: Cluster, api: FaultyApi, moment: MakeMoment
) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client)
    await claims.create(name, KEPT, *NAMES)
    await claims.all_bound(len(NAMES) + 1)
    kept = await claims.bound(KEPT)
    precious = directory_steps.folder(cluster, kept) / "precious"
    precious.write_text("kept")
    at = moment()
    api.fault = at.fault
    await claims.delete(*NAMES)
    await _killed_at(cluster, api, at)

    await cluster.controller.start()

    async def only_one_is_left() -> bool:
        return [volume.name for volume in await claims.volumes()] == [kept.name]

    await steps.eventually(only_one_is_left, what="only the volume of the claim that is kept is left")
    assert _directories(cluster) == {precious.parent.name}
    assert precious.read_text() == "kept"
    root = cluster.efs.folder(directory_steps.file_system(cluster))
    await steps.trash_is_empty(root)
    await claims.removed(KEPT)


async def test_directory_without_a_volume_after_a_crash_is_reported_and_kept(
    cluster: Cluster, api: FaultyApi
) -> None:
    claims, one_gid = await Claims.of(cluster), {"gidMin": "9000", "gidMax": "9000"}
    name = await directory_steps.new_class(cluster.client, **one_gid)
    at = Moment(method="POST", resource="persistentvolumes", done=False)
    api.fault = at.fault
    await claims.create(name, ORPHAN)
    await _killed_at(cluster, api, at)
    (left,) = _directories(cluster)
    await claims.delete(ORPHAN)

    await cluster.controller.start()

    place = f"{directory_steps.file_system(cluster)}:/{left}"
    await directory_steps.has_logged(cluster.controller, "directory-without-volume", location=place)
    counted = f'{WITHOUT_VOLUME}{{provisioner="{directory_steps.PROVISIONER}"}}'
    assert await steps.metric(cluster.controller, counted) == 1
    await claims.create(name, NEXT)
    assert "'9000' has no free group ID" in await claims.warning(NEXT, "no free group ID")
    assert _directories(cluster) == {left}

    # Somebody has looked at it.
    (cluster.efs.folder(directory_steps.file_system(cluster)) / left).rmdir()
    await directory_steps.restarted(cluster.controller)
    assert (await claims.bound(NEXT)).gid == 9000

    async def none_is_counted() -> bool:
        return await steps.metric(cluster.controller, counted) == 0

    await steps.eventually(none_is_counted, what="no directory is without a volume")
