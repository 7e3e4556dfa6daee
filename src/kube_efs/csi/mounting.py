"""Volumes on this node: mounted where they are wanted, through a tunnel that each mount holds.

``publish`` does four things in this order. It looks what is mounted at the target, and is done if that is
the volume already. It sees that a volume for one pod is nowhere else. It asks the tunnel agent for a tunnel,
which from then on is held in the name of this mount. It mounts. If one of the last two fails, both are
undone. ``unpublish`` goes the other way: it unmounts, removes the target, and lets the tunnel go last.

So whatever is mounted holds its tunnel, at every moment and through every crash. The reverse is not so: a
crash can leave a holder without a mount. ``reconcile`` finds it, when several readings of the mount table do
not show its target.

A volume for one pod (ReadWriteOncePod) is at one target. A call that is about to mount a volume first notes
so, in the same step in which it looks for notes of others. So of several at once the first continues, and the
others are refused until it has ended, whatever its end. A publish that comes later finds the first at its
target: by what this process has published, and, as a driver that was restarted knows nothing of that, by the
holders of tunnels or the sources in the mount table, which outlive it. What is found counts only while it is
mounted.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import quote, unquote

import structlog

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.csi.place import NodePlace
from kube_efs.model.csi.errors import ExistingVolumeDiffers, InvalidArgument, NoMountTarget, VolumeInUse
from kube_efs.model.csi.mount_options import MountPlan
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.errors import KubeEfsError, MountFailed, MountUnfinished, shown
from kube_efs.mounts.mount import Mounter, to_its_end
from kube_efs.mounts.mountinfo import MountEntry
from kube_efs.tunnels.api.client import TunnelOnDemand
from kube_efs.tunnels.promises import Holder, TunnelSpec

log = structlog.get_logger()

_LOOPBACK: Final = "127.0.0.1"
# An agent that is away must not hold up what does not need it: its holders are reconciled later.
_RELEASE_SECONDS: Final = 5.0
_FORCED: Final = 4
# Of the mount table, before a holder counts as one without a mount.
_READINGS: Final = 5
_READING_PAUSE_SECONDS: Final = 0.2
_MODE: Final = 0o755
_LINK: Final = ("is a link", "remove the link")
# Errors that only another path cures: what is wrong with this one, and the remedy.
_FAULTS_OF_PATHS: Final = MappingProxyType(
    {
        errno.ENAMETOOLONG: ("is too long", "give a shorter path"),
        errno.ENOTDIR: ("is below a file", "remove the file"),
        errno.ELOOP: ("is below a link that leads back to itself", "remove the link"),
    }
)


class Tunnels(Protocol):
    """The tunnel agent of this node; see TunnelClient for what is raised."""

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        """The loopback port of a tunnel, which is reserved for the holder until its release."""

    async def release(self, holder: Holder) -> None:
        """Release what the holder holds."""

    async def tunnels(self) -> Collection[TunnelOnDemand]:
        """Every tunnel with its holders."""

    async def reconcile(self, holders: Collection[Holder]) -> Collection[Holder]:
        """Say who all the holders are; gives those that were forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMount:
    """A volume at a target of this node, whose path has no links."""

    volume_id: str
    target: Path

    @property
    def volume(self) -> str:
        """What the id means, whichever of its spellings it has: the same for what is one volume."""
        return _volume(self.volume_id)

    @property
    def holder(self) -> Holder:
        """The name: the volume, without blanks, and the target."""
        return Holder(f"{quote(self.volume_id, safe=':/')} {self.target}")


@lru_cache(maxsize=2048)
def _volume(volume_id: str) -> str:
    try:
        return str(replace(parse_volume_handle(volume_id), base=None))
    except InvalidArgument:
        return volume_id


def mount_of(holder: Holder) -> NodeMount | None:
    """The mount that has this name; None if it is the name of none."""
    volume_id, _, target = holder.partition(" ")
    mount = NodeMount(volume_id=unquote(volume_id), target=Path(target))
    return mount if mount.holder == holder and mount.target.is_absolute() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A volume at a target; one that is for one pod, only if no other target has the volume."""

    mount: NodeMount
    is_for_one_pod: bool = False

    def excludes(self, other: "Use") -> bool:
        """Whether the two must not be there at the same time."""
        is_for_one_pod = self.is_for_one_pod or other.is_for_one_pod
        is_elsewhere = self.mount.target != other.mount.target
        return is_for_one_pod and is_elsewhere and self.mount.volume == other.mount.volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A use that is wanted, and how to mount the volume for it."""

    use: Use
    plan: MountPlan

    @property
    def mount(self) -> NodeMount:
        """The volume and the target."""
        return self.use.mount


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmountTerms:
    """How long unmounting may take, and whether what takes longer is then unmounted by force."""

    timeout_seconds: float = 30.0
    force: bool = False

    @property
    def pause_seconds(self) -> float:
        """Between two attempts; all that are made by force fit into the time."""
        return min(1.0, self.timeout_seconds / (2 * _FORCED))


class NodeVolumes:
    """Publishes and unpublishes; the caller sees to it that there is one call for a target at a time."""

    def __init__(
        self, mounter: Mounter, tunnels: Tunnels, place: NodePlace, terms: UnmountTerms | None = None
    ) -> None:
        self._mounter = mounter
        self._tunnels = tunnels
        self._place = place
        self._terms = terms or UnmountTerms()
        # By target: what is being mounted there, and what this process has mounted there.
        self._publishing: dict[Path, Use] = {}
        self._published: dict[Path, Use] = {}

    async def publish(self, wanted: Publication, *, timeout_seconds: float) -> None:
        """Mount the volume unless it is mounted there already.

        Raises ExistingVolumeDiffers when something else is, VolumeInUse when the volume is for one pod and at
        another target, InvalidArgument for a target that cannot be a directory, MountFailed, what the tunnel
        agent raises, and InvalidValue or NoMountTarget for what leads nowhere.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                there = await self._mounter.table.mounted_at(wanted.mount.target)
                if there is None:
                    with self._noted(wanted.use):
                        await self._refuse_second(wanted)
                        await self._mount(wanted)
                else:
                    await self._check_same(wanted, there)
                    self._published[wanted.mount.target] = wanted.use
        except TimeoutError as error:
            raise _unfinished("mounted", wanted.mount.target, timeout_seconds) from error

    async def unpublish(self, mount: NodeMount, *, timeout_seconds: float) -> None:
        """Unmount what is mounted there, and remove the target; nothing there is not an error.

        Raises MountFailed, and InvalidArgument for a target that cannot be a directory.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while await self.is_mounted(mount.target):
                    await self._unmount(mount.target)
        except TimeoutError as error:
            raise _unfinished("unmounted", mount.target, timeout_seconds) from error
        if not await to_its_end(asyncio.to_thread(remove_target, mount.target)):
            raise MountFailed(
                "is still a mount point after unmounting", field="target_path", value=str(mount.target)
            )
        self._published.pop(mount.target, None)
        await self._let_go(mount.holder)
        log.info("volume-unmounted", volume=mount.volume_id, target=str(mount.target))

    async def is_mounted(self, target: Path) -> bool:
        """Whether anything is mounted there; raises PlatformError when the mount table cannot be read."""
        return await self._mounter.table.is_mounted(target)

    async def reconcile(self) -> None:
        """Tell the agent which of its holders are mounted, or are being mounted.

        It forgets the others, those too that have the name of no mount, when they are missing time and
        again. Raises PlatformError when the mount table cannot be read, and what the agent raises; nothing
        is forgotten then.
        """
        held = {one: mount.target for one in await self._holders() if (mount := mount_of(one))}
        points = await self._mounter.table.mounted_among(
            set(held.values()), readings=_READINGS, pause_seconds=_READING_PAUSE_SECONDS
        )
        mounted = {holder for holder, target in held.items() if target in points}
        publishing = {use.mount.holder for use in self._publishing.values()}
        for holder in await self._tunnels.reconcile(mounted | publishing):
            log.warning("tunnel-holder-without-mount", holder=holder)

    async def _holders(self) -> frozenset[Holder]:
        return frozenset(one for tunnel in await self._tunnels.tunnels() for one in tunnel.holders)

    async def _mount(self, wanted: Publication) -> None:
        plan, target = wanted.plan, wanted.mount.target
        if plan.attributes.is_far_from(*self._place.zones):
            log.warning("mount-target-of-another-zone", volume=wanted.mount.volume_id, zone=self._place.zone)
        self._published[target] = wanted.use
        try:
            await to_its_end(asyncio.to_thread(make_target, target))
            if plan.encrypted:
                spec = tunnel_spec(plan, self._place)
                server, port = _LOOPBACK, await self._tunnels.ensure(spec, wanted.mount.holder)
            else:
                server, port = direct_server(plan, self._place), None
            await self._mounter.mount(plan.source(server), target, plan.options(port))
        except (KubeEfsError, asyncio.CancelledError):
            await to_its_end(self._undo(wanted))
            raise
        log.info(
            "volume-mounted", volume=wanted.mount.volume_id, target=str(target), server=server, port=port
        )

    async def _undo(self, wanted: Publication) -> None:
        """Leave nothing behind of a failed mount. A mount that succeeded late keeps its tunnel."""
        with suppress(KubeEfsError):
            is_gone = not await self.is_mounted(wanted.mount.target)
            if is_gone and await asyncio.to_thread(remove_target, wanted.mount.target):
                self._published.pop(wanted.mount.target, None)
                if wanted.plan.encrypted:
                    await self._let_go(wanted.mount.holder)

    @contextmanager
    def _noted(self, wanted: Use) -> Iterator[None]:
        """While it is being mounted; raises VolumeInUse when what another call mounts excludes it."""
        for other in self._publishing.values():
            if wanted.excludes(other):
                raise _in_use(wanted, f"is being mounted at {shown(str(other.mount.target))}")
        self._publishing[wanted.mount.target] = wanted
        try:
            yield
        finally:
            del self._publishing[wanted.mount.target]

    async def _refuse_second(self, wanted: Publication) -> None:
        """Raise VolumeInUse when the volume is mounted at a target that excludes this one."""
        others = {one.mount.target for one in self._published.values() if wanted.use.excludes(one)}
        if wanted.use.is_for_one_pod:
            # Where it is or was mounted, by an earlier process of ours too.
            if wanted.plan.encrypted:
                mounts = filter(None, map(mount_of, await self._holders()))
                places = {one.target for one in mounts if one.volume == wanted.mount.volume}
            else:
                source = wanted.plan.source(direct_server(wanted.plan, self._place))
                places = {one.mount_point for one in await self._mounter.table.mounted_from(source)}
            others |= places - {wanted.mount.target}
        for other in sorted(others):
            if await self.is_mounted(other):
                raise _in_use(wanted.use, f"is mounted at {shown(str(other))}")

    async def _check_same(self, wanted: Publication, there: MountEntry) -> None:
        """Raise ExistingVolumeDiffers unless that is the volume, reached and used as is wanted now."""
        plan = wanted.plan
        source = plan.source(_LOOPBACK if plan.encrypted else direct_server(plan, self._place))
        if not there.file_system_type.startswith("nfs") or there.source != source:
            difference = f"{there.source} ({there.file_system_type}) is mounted there, not {source}"
        elif there.is_read_only != plan.read_only:
            difference = f"{source} is mounted {'read-only' if there.is_read_only else 'for writing'} there"
        elif not await self._leads_the_same_way(wanted, there):
            difference = (
                f"{source} is mounted there, but through {'another' if plan.encrypted else 'a'} tunnel"
            )
        else:
            return
        raise ExistingVolumeDiffers(
            f"is in use: {difference}",
            field="target_path",
            value=str(wanted.mount.target),
            remedy="unpublish that volume first",
        )

    async def _leads_the_same_way(self, wanted: Publication, there: MountEntry) -> bool:
        ports = {option for option in there.super_options if option.startswith("port=")}
        if not wanted.plan.encrypted:
            return ports <= {"port=2049"}
        spec = tunnel_spec(wanted.plan, self._place)
        for tunnel in await self._tunnels.tunnels():
            has_spec = tunnel.spec == replace(spec, region=spec.region or tunnel.spec.region)
            if has_spec and f"port={tunnel.port}" in ports:
                # It is there, so this only makes sure that the mount holds it.
                return await self._tunnels.ensure(spec, wanted.mount.holder) == tunnel.port
        return False

    async def _unmount(self, target: Path) -> None:
        is_gone = await self._is_gone_by(self._unmount_in_order, target)
        if not is_gone and self._terms.force:
            log.warning("unmount-forced", target=str(target), seconds=self._terms.timeout_seconds)
            is_gone = await self._is_gone_by(self._force, target)
        if not is_gone:
            how = "unmounted by force" if self._terms.force else "unmounted"
            raise _unfinished(how, target, self._terms.timeout_seconds)

    async def _is_gone_by(self, unmount: Callable[[Path], Awaitable[None]], target: Path) -> bool:
        """Unmount it this way; gives whether that was done in its time."""
        try:
            async with asyncio.timeout(self._terms.timeout_seconds):
                await unmount(target)
        except TimeoutError:
            # What is not written keeps umount(8) waiting, but not always the mount.
            return not await self.is_mounted(target)
        return True

    async def _unmount_in_order(self, target: Path) -> None:
        """Unmount it; what is in use is waited for where it may be unmounted by force in the end."""
        while True:
            try:
                return await self._mounter.unmount(target)
            except MountFailed:
                if not self._terms.force or not await self.is_mounted(target):
                    raise
            await asyncio.sleep(self._terms.pause_seconds)

    async def _force(self, target: Path) -> None:
        # Each time, what waits for the server just then is given up: a dying process that has written and
        # then closes its file needs two. Who is alive and has a file open keeps that, but not the mount.
        for _ in range(_FORCED):
            try:
                return await self._mounter.unmount(target, force=True)
            except MountFailed:
                await asyncio.sleep(self._terms.pause_seconds)
        return await self._mounter.unmount(target, force=True, lazy=True)

    async def _let_go(self, holder: Holder) -> None:
        """Release the holder's tunnel; an agent that is away learns of it by reconciliation."""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._tunnels.release(holder)
        except (KubeEfsError, TimeoutError) as error:
            log.warning("tunnel-not-released", holder=holder, reason=str(error) or "no answer")


def _in_use(wanted: Use, where: str) -> VolumeInUse:
    return VolumeInUse(
        f"has access mode ReadWriteOncePod and {where}",
        field="volume_id",
        value=wanted.mount.volume_id,
        remedy="wait until the pod that uses it has ended",
    )


def _unfinished(what: str, target: Path, seconds: float) -> MountUnfinished:
    return MountUnfinished(
        f"is not {what} within {seconds:g} s",
        field="target_path",
        value=str(target),
        remedy="check that the file system's mount targets are reachable from this node",
    )


def tunnel_spec(plan: MountPlan, place: NodePlace) -> TunnelSpec:
    """What the plan asks of the tunnel agent; raises InvalidValue for what excludes each other."""
    address = plan.attributes.address_in(*place.zones)
    iam = None
    if plan.iam is not None:
        iam = IamOptions(profile=plan.iam.profile, role_arn=plan.iam.role_arn, token_file=plan.iam.token_file)
    return TunnelSpec(
        file_system_id=plan.handle.file_system_id,
        access_point_id=plan.handle.access_point_id,
        iam=iam,
        region=plan.region,
        address=address,
        # An address says it all, and mounts that say the same share a tunnel.
        zone=plan.zone if address is None else None,
        cross_account=plan.attributes.cross_account,
        checks_revocation=plan.checks_revocation,
    )


def direct_server(plan: MountPlan, place: NodePlace) -> str:
    """The mount target for a mount without TLS: its address or its name; raises NoMountTarget."""
    address = plan.attributes.address_in(*place.zones)
    if address is not None:
        return address
    region = plan.region or place.region
    if region is None:
        raise _unknown("region", "AWS_REGION")
    is_own = plan.region in {None, place.region}
    name = dns_name(plan.handle.file_system_id, region, place.dns_suffix if is_own else None)
    if plan.attributes.cross_account and place.zone_id is None:
        raise _unknown("zone id", "KUBE_EFS_ZONE_ID")
    zone = place.zone_id if plan.attributes.cross_account else plan.zone
    return f"{zone}.{name}" if zone else name


def _unknown(what: str, setting: str) -> NoMountTarget:
    return NoMountTarget("is not known", field=f"this node's {what}", remedy=f"set {setting}")


def make_target(target: Path) -> None:
    """Make the directory unless it exists. Nothing must be mounted there.

    Raises InvalidArgument for a path at which no directory can be, MountFailed for every other obstacle.
    """
    try:
        with suppress(FileExistsError):  # which does not say what it is
            target.mkdir(mode=_MODE, parents=True)
        mode = target.lstat().st_mode
    except OSError as error:
        if fault := _FAULTS_OF_PATHS.get(error.errno or 0):
            raise _refused(target, *fault) from error
        problem = f"cannot be made ({error.strerror})"
        raise MountFailed(problem, field="target_path", value=str(target)) from error
    if stat.S_ISLNK(mode):  # mount(8) would follow it
        raise _refused(target, *_LINK)
    if not stat.S_ISDIR(mode):
        raise _refused(target, "is a file", "remove it")


def remove_target(target: Path) -> bool:
    """Remove the directory, unless something is in it: that is user data. A file stays, too.

    Gives whether nothing is mounted on it, of which rmdir(2) is sure: it looks at that first, and not into
    what is mounted. Raises InvalidArgument for a path at which no directory can be.
    """
    try:
        target.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        fault = _FAULTS_OF_PATHS.get(error.errno or 0)
        if fault and not os.path.lexists(target):
            raise _refused(target, *fault) from error
        if target.is_symlink():
            raise _refused(target, *_LINK) from error
        log.warning("target-not-removed", target=str(target), reason=error.strerror)
    return True


def _refused(target: Path, problem: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(problem, field="target_path", value=str(target), remedy=remedy)
