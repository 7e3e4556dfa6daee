import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.unit.provisioning.world import EFS, World, claim

from kube_efs.controllers import queue as queue_module
from kube_efs.controllers import volumes as volumes_module
from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.volumes import VolumeController
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import KubeUnavailable, LeftAlone
from kube_efs.model.volumes import FINALIZER, NfsSource, Volume, VolumePhase
from kube_efs.provisioning.engine import Reclaimed
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics

pytestmark = pytest.mark.virtual_time


class Told(ProvisioningEvents):
    """Records events instead of publishing them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def reclaimed(self, done: Reclaimed) -> None:
        self.lines.append(f"{done.data} {done.location}")

    def volume_left_alone(self, volume: Volume, reason: LeftAlone) -> None:
        self.lines.append(f"left alone {reason}")

    def not_reclaimed(self, volume: Volume, error: Exception) -> None:
        self.lines.append(f"not {error}")


class Scene:
    def __init__(self, backoff_seconds: float) -> None:
        self.world = World()
        self.told = Told()
        self.registry = CollectorRegistry()
        self.volumes = VolumeController(
            engine=self.world.engine,
            index=self.world.index,
            events=self.told,
            metrics=ControllerMetrics(self.registry),
            duties=Duties(self.registry),
            backoff_seconds=backoff_seconds,
        )

    async def bound(self, *uids: str) -> list[Volume]:
        """Create volumes and bind them."""
        made = [await self.world.provision(claim(uid)) for uid in uids]
        bound = [replace(volume, phase=VolumePhase.BOUND) for volume in made]
        self.world.add(*bound)
        return bound

    async def release(self, *volumes: Volume) -> None:
        """Delete the claims of the volumes; the watch shows it."""
        for volume in volumes:
            released = replace(volume, phase=VolumePhase.RELEASED)
            self.world.store.volumes[volume.name] = released
            self.volumes.seen(released)
        await self.rest()

    async def rest(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    @property
    def there(self) -> list[str]:
        return sorted(self.world.store.volumes)

    def count(self, outcome: str) -> float | None:
        labels = {"provisioner": EFS.provisioner, "outcome": outcome}
        return self.registry.get_sample_value("kube_efs_deletions_total", labels)


@asynccontextmanager
async def scene(backoff_seconds: float = 3600, timeout_seconds: float = 10) -> AsyncIterator[Scene]:
    made = Scene(backoff_seconds)
    async with asyncio.timeout(timeout_seconds), made.volumes:
        yield made


async def test_released_volume_is_removed() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        here.volumes.seen(volume)
        await here.rest()
        assert here.there == [volume.name]
        await here.release(volume)
        assert (here.there, here.told.lines) == ([], ["removed fs-1:/team/example"])
        assert here.count("succeeded") == 1


async def test_late_event_of_a_deleted_volume_changes_nothing() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        await here.release(volume)
        await here.release(volume)
        here.world.store.volumes.clear()
        here.volumes.gone(volume)
        await here.rest()
        assert here.told.lines == ["removed fs-1:/team/example"]
        assert not here.world.index.volumes


async def test_volume_released_without_a_watch_is_removed() -> None:
    async with scene() as here:
        one, other = await here.bound("u1", "u2")
        released = replace(one, phase=VolumePhase.RELEASED)
        here.world.store.volumes[one.name] = released
        here.volumes.listed([released, other])
        await here.rest()
        assert here.there == [other.name]
        assert here.told.lines == ["shared fs-1:/team/example"]


async def test_volume_missing_from_a_list_is_deleted() -> None:
    async with scene() as here:
        one, other = await here.bound("u1", "u2")
        here.volumes.listed([other])
        assert set(here.world.index.volumes) == {other.name}
        assert one.name not in here.world.index.volumes


async def test_retained_volume_is_kept_without_an_event() -> None:
    async with scene() as here:
        volume = await here.world.provision(claim(policy="Retain"))
        await here.release(volume)
        assert (here.there, here.told.lines) == ([volume.name], [])


async def test_failed_removal_is_retried_after_the_backoff() -> None:
    async with scene(backoff_seconds=0.3) as here:
        (volume,) = await here.bound("u1")
        faults = iter([KubeUnavailable("is down")])

        def fail_once(_: str) -> int:
            if fault := next(faults, None):
                raise fault
            return 0

        here.world.moment.on_moment = fail_once
        await here.release(volume)
        assert here.told.lines == ["not is down"]
        assert here.count("retried") == 1
        while here.there:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await here.rest()
        assert here.told.lines == ["not is down", "removed fs-1:/team/example"]


async def test_deleted_file_system_is_looked_up_at_the_pace_of_the_backoff() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        here.world.index.targets = TunnelTargets()
        await here.release(volume)
        assert len(here.told.lines) == 1
        assert here.told.lines[0].startswith("not file system: 'fs-1' is not known")


def below(volume: Volume) -> Volume:
    """A volume with a directory inside that of the other one."""
    source = NfsSource(server="127.0.0.1", path="/team/example/deep")
    return replace(volume, name="near", uid="n", provisioned_by=None, claim=None, nfs=source)


async def test_refused_volume_is_retried_when_another_is_deleted() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        near = below(volume)
        here.world.add(near)
        await here.release(volume)
        assert here.there == sorted(["near", volume.name])
        (line,) = here.told.lines
        assert "contains the directory of volume near" in line
        assert here.count("refused") == 1
        del here.world.store.volumes["near"]
        here.volumes.gone(near)
        await here.rest()
        assert (here.there, here.told.lines[1:]) == ([], ["removed fs-1:/team/example"])


async def test_deletion_of_an_unrelated_volume_does_not_repeat_a_refused_removal() -> None:
    """Users of any namespace can delete volumes, and each attempt is a call to AWS and an event."""
    async with scene(timeout_seconds=60) as here:
        (volume,) = await here.bound("u1")
        others = [Volume(name=f"of-another-driver-{number}", uid=f"{number}") for number in range(20)]
        here.world.add(below(volume), *others)
        await here.release(volume)
        for other in others:
            del here.world.store.volumes[other.name]
            here.volumes.gone(other)
            await asyncio.sleep(1)
        assert (len(here.told.lines), here.count("refused")) == (1, 1)


async def test_blocking_volume_that_comes_again_and_again_repeats_a_removal_ever_less() -> None:
    """A SharedVolume of a user makes such volumes, as many as the user wants."""
    async with scene(backoff_seconds=60, timeout_seconds=200) as here:
        (volume,) = await here.bound("u1")
        near = below(volume)
        here.world.add(near)
        await here.release(volume)
        for _ in range(100):
            del here.world.store.volumes["near"]
            here.volumes.gone(near)
            here.world.add(near)
            await asyncio.sleep(1)
        # At once, and then 1, 2, 4, 8, 16 and 32 seconds after a deletion.
        assert (len(here.told.lines), here.count("refused")) == (1, 8)


async def test_refusal_is_published_again_when_its_text_changes_or_after_a_while() -> None:
    async with scene(timeout_seconds=1000) as here:
        (volume,) = await here.bound("u1")
        near = below(volume)
        here.world.add(near, replace(near, name="nearer", uid="o"))
        await here.release(volume)
        del here.world.store.volumes["near"]
        here.volumes.gone(near)
        await here.rest()
        assert ["volume near, volume nearer" in line for line in here.told.lines] == [True, False]
        for after_seconds, lines in ((500, 2), (200, 3)):
            await asyncio.sleep(after_seconds)
            changed = replace(here.world.store.volumes[volume.name], labels={"after": f"{after_seconds}"})
            here.volumes.seen(changed)
            await here.rest()
            assert len(here.told.lines) == lines


async def test_refused_volume_is_retried_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes_module, "_REFUSED_AGAIN_SECONDS", 0.01)
    async with scene() as here:
        (volume,) = await here.bound("u1")
        inside = AccessPoint(
            access_point_id=AccessPointId("fsap-00000001"),
            file_system_id=FileSystemId("fs-1"),
            directory=parse_directory("/team/example/deep"),
        )
        here.world.access_points.append(inside)
        await here.release(volume)
        assert "contains the directory of access point fsap-00000001" in here.told.lines[0]
        here.world.access_points.clear()
        while here.there:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await here.rest()
        assert here.told.lines[-1] == "removed fs-1:/team/example"


async def test_internal_error_is_reported_and_the_volume_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: Volume) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(queue_module, "FAULT_DELAY_SECONDS", 0.5)
    async with scene() as here:
        (volume,) = await here.bound("u1")
        with monkeypatch.context() as patched:
            patched.setattr(here.world.engine, "reclaim", fail)
            await here.release(volume)
        assert here.told.lines == ["not a mistake"]
        await asyncio.sleep(1)
        await here.rest()
        assert (here.there, here.told.lines[1:]) == ([], ["removed fs-1:/team/example"])


async def test_deletion_just_after_the_check_is_not_missed() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        near = below(volume)
        here.world.add(near)
        gets = 0

        def last_of(moment: str) -> int:
            nonlocal gets
            gets += moment == "after get"
            if gets == 2 and "near" in here.world.store.volumes:  # the first is the volume itself
                del here.world.store.volumes["near"]
                here.volumes.gone(near)
            return 0

        here.world.moment.on_moment = last_of
        await here.release(volume)
        assert here.there == []
        refused, removed = here.told.lines
        assert "contains the directory of volume near" in refused
        assert removed == "removed fs-1:/team/example"


# --- the finalizer


async def test_volumes_of_older_systems_get_the_finalizer_after_the_first_list() -> None:
    async with scene() as here:
        volumes = [replace(one, finalizers=()) for one in await here.bound("u1", "u2")]
        foreign = replace(volumes[0], name="foreign", uid="f", provisioned_by="other.example/efs")
        here.world.add(*volumes, foreign)
        here.volumes.listed([*volumes, foreign])
        await here.rest()
        assert {name: volume.finalizers for name, volume in here.world.store.volumes.items()} == {
            **{volume.name: (FINALIZER,) for volume in volumes},
            "foreign": (),
        }
        assert here.told.lines == []


async def test_failed_write_of_the_finalizer_is_retried() -> None:
    async with scene(backoff_seconds=0.01) as here:
        (volume,) = await here.bound("u1")
        volume = replace(volume, finalizers=())
        here.world.add(volume)
        faults = iter([KubeUnavailable("is down")])

        def fail_once(_: str) -> int:
            if fault := next(faults, None):
                raise fault
            return 0

        here.world.moment.on_moment = fail_once
        with capture_logs() as logs:
            here.volumes.listed([volume])
            await here.rest()
        while here.world.store.volumes[volume.name].finalizers != (FINALIZER,):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert [(line["event"], line["reason"]) for line in logs] == [("volume-not-protected", "is down")]
        assert here.told.lines == []


async def test_volume_with_the_finalizer_is_not_written() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        here.world.moment.passed.clear()
        here.volumes.listed([volume])
        here.volumes.seen(replace(volume, labels={"a": "b"}))
        await here.rest()
        assert here.world.moment.passed == []


async def test_deleted_volume_is_removed_after_its_claim() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        deleted = replace(volume, deleting=True)
        here.world.store.volumes[volume.name] = deleted
        here.volumes.seen(deleted)
        await here.rest()
        assert (here.there, here.told.lines) == ([volume.name], [])
        await here.release(deleted)
        assert (here.there, here.told.lines) == ([], ["removed fs-1:/team/example"])


async def test_finalizer_of_a_deleted_retained_volume_is_removed() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        await here.release(replace(volume, deleting=True, reclaim_policy=ReclaimPolicy.RETAIN))
        assert (here.there, here.told.lines) == ([], ["kept None"])
        assert here.world.folders.removed == []


async def test_failed_volume_is_reported_and_kept() -> None:
    async with scene() as here:
        (volume,) = await here.bound("u1")
        here.volumes.seen(replace(volume, phase=VolumePhase.FAILED))
        await here.rest()
        assert here.there == [volume.name]
        (line,) = here.told.lines
        assert line == (
            "left alone status.phase: 'Failed' is not removed automatically; save its data if it is needed, "
            "then delete the volume; its directory is kept"
        )
