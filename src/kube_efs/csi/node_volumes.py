"""Publishes and unpublishes volumes on this node, each mount through a tunnel that it holds.

``publish`` has four steps, in this order. It checks what is mounted at the target, and returns if that is the
volume already. It refuses a volume for one pod that another target uses. It requests a tunnel from the tunnel
agent, which reserves it for this mount from then on. It mounts. If one of the last two steps fails, it undoes
both. ``unpublish`` has the reverse order: it unmounts, removes the target, and releases the tunnel last.

Every mount therefore holds its tunnel, at every moment and after every crash. Without the tunnel, the agent
could reserve the port for another file system, and the mount would read the data of another volume. The
reverse is harmless: after a crash, a holder can exist without a mount. ``reconcile`` finds it, if several
readings of the mount table do not show its target.

A volume for one pod (ReadWriteOncePod) has one target. Before a call mounts such a volume, it records this
in the same step, without an await, in which it checks the records of other calls. Of several calls at the
same time, the first one therefore continues, and the others are refused until it ends. A later call finds
the target of the first one among the volumes that this process has published. A restarted driver has no such
list: the holders of tunnels, or the sources in the mount table, outlive it. Whatever a call finds counts
only while it is mounted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.publication import (
    FORCED_ATTEMPTS,
    NodeMount,
    Publication,
    UnmountOptions,
    VolumeUse,
    direct_server,
    parse_mount,
    tunnel_spec,
)
from kube_efs.csi.target import make_target, remove_target
from kube_efs.model.csi.errors import ExistingVolumeDiffers, VolumeInUse
from kube_efs.model.errors import KubeEfsError, MountFailed, MountUnfinished, shown
from kube_efs.mounts.mount import Mounter, run_to_completion
from kube_efs.mounts.mountinfo import MountEntry
from kube_efs.tunnels.api.client import TunnelOnDemand
from kube_efs.tunnels.reservations import Holder, TunnelSpec

log = structlog.get_logger()

_LOOPBACK: Final = "127.0.0.1"
# An agent that does not answer must not delay an unmount: reconciliation releases the holder later.
_RELEASE_SECONDS: Final = 5.0
# Of the mount table, before a holder counts as one without a mount.
_READINGS: Final = 5
_READING_PAUSE_SECONDS: Final = 0.2


class Tunnels(Protocol):
    """The tunnel agent of this node; see TunnelClient for what is raised."""

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        """The loopback port of a tunnel, which is reserved for the holder until its release."""

    async def release(self, holder: Holder) -> None:
        """Release what the holder holds."""

    async def tunnels(self) -> Collection[TunnelOnDemand]:
        """Every tunnel with its holders."""

    async def reconcile(self, holders: Collection[Holder]) -> Collection[Holder]:
        """Send the full list of holders; returns those that the agent removed."""


class NodeVolumes:
    """Publishes and unpublishes. The caller allows one call at a time for each target."""

    def __init__(
        self,
        mounter: Mounter,
        tunnels: Tunnels,
        node_info: NodeInfo,
        unmount_options: UnmountOptions | None = None,
    ) -> None:
        self._mounter = mounter
        self._tunnels = tunnels
        self._node_info = node_info
        self._unmount_options = unmount_options or UnmountOptions()
        # By target: the volumes that calls are mounting, and those that this process has mounted.
        self._publishing: dict[Path, VolumeUse] = {}
        self._published: dict[Path, VolumeUse] = {}

    async def publish(self, wanted: Publication, *, timeout_seconds: float) -> None:
        """Mount the volume unless it is mounted there already.

        Raises ExistingVolumeDiffers when another volume is mounted there, VolumeInUse when the volume is for
        one pod and another target uses it, InvalidArgument for a target that cannot be a directory,
        InvalidValue or NoMountTarget when the plan leads to no mount target, MountFailed, and the errors of
        the tunnel agent.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                mounted = await self._mounter.table.mounted_at(wanted.mount.target)
                if mounted is None:
                    with self._recorded(wanted.use):
                        await self._check_other_targets(wanted)
                        await self._mount(wanted)
                else:
                    await self._check_same_volume(wanted, mounted)
                    self._published[wanted.mount.target] = wanted.use
        except TimeoutError as error:
            raise _unfinished("mounted", wanted.mount.target, timeout_seconds) from error

    async def unpublish(self, mount: NodeMount, *, timeout_seconds: float) -> None:
        """Unmount the target and remove it; a target that does not exist is not an error.

        Raises MountFailed, and InvalidArgument for a target that cannot be a directory.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while await self.is_mounted(mount.target):
                    await self._unmount(mount.target)
        except TimeoutError as error:
            raise _unfinished("unmounted", mount.target, timeout_seconds) from error
        if not await run_to_completion(asyncio.to_thread(remove_target, mount.target)):
            raise MountFailed(
                "is still a mount point after unmounting", field="target_path", value=str(mount.target)
            )
        self._published.pop(mount.target, None)
        await self._release_tunnel(mount.holder)
        log.info("volume-unmounted", volume=mount.volume_id, target=str(mount.target))

    async def is_mounted(self, target: Path) -> bool:
        """Whether anything is mounted there; raises PlatformError when the mount table cannot be read."""
        return await self._mounter.table.is_mounted(target)

    async def reconcile(self) -> None:
        """Send the agent those of its holders that are mounted, or that a call is mounting.

        After two such lists without a holder, the agent removes it, also if its name is not that of a mount.
        Raises PlatformError when the mount table cannot be read, and the errors of the agent; then the agent
        removes no holder.
        """
        held = {one: mount.target for one in await self._holders() if (mount := parse_mount(one))}
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
        if plan.attributes.is_far_from(*self._node_info.zones):
            log.warning(
                "mount-target-of-another-zone", volume=wanted.mount.volume_id, zone=self._node_info.zone
            )
        self._published[target] = wanted.use
        try:
            await run_to_completion(asyncio.to_thread(make_target, target))
            if plan.encrypted:
                spec = tunnel_spec(plan, self._node_info)
                server, port = _LOOPBACK, await self._tunnels.ensure(spec, wanted.mount.holder)
            else:
                server, port = direct_server(plan, self._node_info), None
            await self._mounter.mount(plan.source(server), target, plan.options(port))
        except (KubeEfsError, asyncio.CancelledError):
            await run_to_completion(self._undo(wanted))
            raise
        log.info(
            "volume-mounted", volume=wanted.mount.volume_id, target=str(target), server=server, port=port
        )

    async def _undo(self, wanted: Publication) -> None:
        """Remove the target and release the tunnel of a failed mount, but not of one that succeeded late."""
        with suppress(KubeEfsError):
            is_unmounted = not await self.is_mounted(wanted.mount.target)
            if is_unmounted and await asyncio.to_thread(remove_target, wanted.mount.target):
                self._published.pop(wanted.mount.target, None)
                if wanted.plan.encrypted:
                    await self._release_tunnel(wanted.mount.holder)

    @contextmanager
    def _recorded(self, wanted: VolumeUse) -> Iterator[None]:
        """Record what this call mounts; raises VolumeInUse when another call mounts what excludes it."""
        for other in self._publishing.values():
            if wanted.excludes(other):
                raise _volume_in_use(wanted, f"is being mounted at {shown(str(other.mount.target))}")
        self._publishing[wanted.mount.target] = wanted
        try:
            yield
        finally:
            del self._publishing[wanted.mount.target]

    async def _check_other_targets(self, wanted: Publication) -> None:
        """Raise VolumeInUse when another target uses a volume for one pod."""
        others = {one.mount.target for one in self._published.values() if wanted.use.excludes(one)}
        if wanted.use.is_for_one_pod:
            # Also the targets of earlier processes of this driver.
            if wanted.plan.encrypted:
                mounts = filter(None, map(parse_mount, await self._holders()))
                places = {one.target for one in mounts if one.volume == wanted.mount.volume}
            else:
                source = wanted.plan.source(direct_server(wanted.plan, self._node_info))
                places = {one.mount_point for one in await self._mounter.table.mounted_from(source)}
            others |= places - {wanted.mount.target}
        for other in sorted(others):
            if await self.is_mounted(other):
                raise _volume_in_use(wanted.use, f"is mounted at {shown(str(other))}")

    async def _check_same_volume(self, wanted: Publication, mounted: MountEntry) -> None:
        """Raise ExistingVolumeDiffers unless the same volume is mounted, in the same way."""
        plan = wanted.plan
        source = plan.source(_LOOPBACK if plan.encrypted else direct_server(plan, self._node_info))
        if not mounted.file_system_type.startswith("nfs") or mounted.source != source:
            difference = f"{mounted.source} ({mounted.file_system_type}) is mounted there, not {source}"
        elif mounted.is_read_only != plan.read_only:
            difference = f"{source} is mounted {'read-only' if mounted.is_read_only else 'for writing'} there"
        elif not await self._uses_wanted_tunnel(wanted, mounted):
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

    async def _uses_wanted_tunnel(self, wanted: Publication, mounted: MountEntry) -> bool:
        ports = {option for option in mounted.super_options if option.startswith("port=")}
        if not wanted.plan.encrypted:
            return ports <= {"port=2049"}
        spec = tunnel_spec(wanted.plan, self._node_info)
        for tunnel in await self._tunnels.tunnels():
            has_spec = tunnel.spec == replace(spec, region=spec.region or tunnel.spec.region)
            if has_spec and f"port={tunnel.port}" in ports:
                # The tunnel exists; this call only ensures that this mount holds it.
                return await self._tunnels.ensure(spec, wanted.mount.holder) == tunnel.port
        return False

    async def _unmount(self, target: Path) -> None:
        is_unmounted = await self._unmount_in_time(self._unmount_when_unused, target)
        if not is_unmounted and self._unmount_options.force:
            log.warning("unmount-forced", target=str(target), seconds=self._unmount_options.timeout_seconds)
            is_unmounted = await self._unmount_in_time(self._unmount_by_force, target)
        if not is_unmounted:
            how = "unmounted by force" if self._unmount_options.force else "unmounted"
            raise _unfinished(how, target, self._unmount_options.timeout_seconds)

    async def _unmount_in_time(self, unmount: Callable[[Path], Awaitable[None]], target: Path) -> bool:
        """Unmount in this way; returns whether the target was unmounted before the timeout."""
        try:
            async with asyncio.timeout(self._unmount_options.timeout_seconds):
                await unmount(target)
        except TimeoutError:
            # umount(8) waits for unwritten data, but the mount may be removed already.
            return not await self.is_mounted(target)
        return True

    async def _unmount_when_unused(self, target: Path) -> None:
        """Unmount it. If force is allowed later, retry first while the target is in use."""
        while True:
            try:
                return await self._mounter.unmount(target)
            except MountFailed:
                if not self._unmount_options.force or not await self.is_mounted(target):
                    raise
            await asyncio.sleep(self._unmount_options.pause_seconds)

    async def _unmount_by_force(self, target: Path) -> None:
        # Each attempt aborts the requests that wait for the server at that moment. A dying process that has
        # written and then closes its file needs two attempts. A living process keeps its open files, but not
        # the mount.
        for _ in range(FORCED_ATTEMPTS):
            try:
                return await self._mounter.unmount(target, force=True)
            except MountFailed:
                await asyncio.sleep(self._unmount_options.pause_seconds)
        return await self._mounter.unmount(target, force=True, lazy=True)

    async def _release_tunnel(self, holder: Holder) -> None:
        """Release the holder's tunnel; if the agent does not answer, reconciliation releases it later."""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._tunnels.release(holder)
        except (KubeEfsError, TimeoutError) as error:
            log.warning("tunnel-not-released", holder=holder, reason=str(error) or "no answer")


def _volume_in_use(wanted: VolumeUse, where: str) -> VolumeInUse:
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
