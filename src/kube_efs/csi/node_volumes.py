"""Publishes and unpublishes volumes on this node, each mount through a tunnel that it holds.

``publish`` has four steps, in this order. It checks what is mounted at the target, and returns if that is the
volume already. It refuses a volume for one pod that another target uses. It requests a tunnel from the tunnel
agent, which reserves it for this mount from then on. It mounts. If one of the last two steps fails, it undoes
both. ``refresh`` recognizes the repeated call of the kubelet for a mount that this process has checked, so
that it costs nearly nothing. ``unpublish`` has the reverse order: it unmounts, removes the target, and
releases the tunnel last.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import structlog
from lightkube import AsyncClient

from kube_efs.aws.credential_sources import ServiceAccountIdentity
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.pod_tokens import read_identity
from kube_efs.csi.publication import (
    FORCED_ATTEMPTS,
    NodeMount,
    Publication,
    UnmountOptions,
    VolumeUse,
    direct_server,
    direct_servers,
    parse_mount,
    tunnel_spec,
)
from kube_efs.csi.target import make_target, remove_target
from kube_efs.model.csi.errors import ExistingVolumeDiffers, VolumeInUse
from kube_efs.model.csi.mount_options import MountPlan
from kube_efs.model.errors import (
    AwsIdentityLate,
    AwsThrottled,
    KubeEfsError,
    MountFailed,
    MountUnfinished,
    TunnelError,
    shown,
)
from kube_efs.mounts.mount import Mounter
from kube_efs.mounts.mountinfo import MountEntry
from kube_efs.run_to_completion import run_to_completion
from kube_efs.telemetry.traces import span
from kube_efs.tunnels.api.client import TunnelOnDemand
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.sockets.ports import nfs_client_ports

log = structlog.get_logger()

_LOOPBACK: Final = "127.0.0.1"
# An agent that does not answer must not delay an unmount: reconciliation releases the holder later.
_RELEASE_SECONDS: Final = 5.0
_DOWN_REMEDY: Final = (
    "check that the access point exists and that the policy of the file system allows the connection;"
    " kube-efs doctor node in the tunnel agent's pod shows more"
)
# Of the mount table, before a holder counts as one without a mount.
_READINGS: Final = 5
_READING_PAUSE_SECONDS: Final = 0.2


class Tunnels(Protocol):
    """The tunnel agent of this node; see TunnelClient for what is raised."""

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        """The loopback port of a tunnel, which is reserved for the holder until its release."""

    async def ensure_for_pod(self, spec: TunnelSpec, holder: Holder, token: str) -> int:
        """The same for a tunnel with the service account of a pod, with a token of it."""

    async def release(self, holder: Holder) -> None:
        """Release what the holder holds."""

    async def tunnels(self) -> Collection[TunnelOnDemand]:
        """Every tunnel with its holders."""

    async def reconcile(self, holders: Collection[Holder]) -> Collection[Holder]:
        """Send the full list of holders; returns those that the agent removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tunnel:
    """The tunnel of a mount."""

    spec: TunnelSpec
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """What this process has mounted or found mounted at a target; ``tunnel`` None without TLS."""

    purpose: Publication
    tunnel: _Tunnel | None


class NodeVolumes:
    """Publishes and unpublishes. The caller allows one call at a time for each target."""

    def __init__(
        self,
        mounter: Mounter,
        tunnels: Tunnels,
        node_info: NodeInfo,
        unmount_options: UnmountOptions | None = None,
        client: AsyncClient | None = None,
    ) -> None:
        self._mounter = mounter
        self._tunnels = tunnels
        self._node_info = node_info
        self._unmount_options = unmount_options or UnmountOptions()
        self._client = client
        # By target: the volumes that calls are mounting, and those that this process has mounted.
        self._publishing: dict[Path, VolumeUse] = {}
        self._published: dict[Path, VolumeUse] = {}
        self._checked: dict[Path, _Checked] = {}
        # Mounts through tunnels whose connection was not checked, or is that of another identity; also those
        # that a call is making.
        self._unchecked: set[Path] = set()

    async def refresh(self, wanted: Publication) -> bool:
        """Whether this process has mounted or checked the same publication, and the target is mounted.

        Gives new tokens of the pod to the tunnel agent; raises its errors, also that of a failed renewal.
        They reach the pod as an event, and do not affect the mount.
        """
        known = self._checked.get(wanted.mount.target)
        if known is None or known.purpose != wanted.purpose:
            return False
        async with self._uncertain_while_mounted(wanted.mount.target):
            if not await self.is_mounted(wanted.mount.target):
                return False
            if wanted.tokens is None or known.tunnel is None:
                return True
            identity = known.tunnel.spec.iam
            if not isinstance(identity, ServiceAccountIdentity) or not wanted.tokens.belong_to(identity):
                return False
            return await self._hold_tunnel(wanted, known.tunnel.spec) == known.tunnel

    async def publish(self, wanted: Publication, *, timeout_seconds: float) -> None:
        """Mount the volume unless it is mounted there already.

        Raises ExistingVolumeDiffers when another volume is mounted there, VolumeInUse when the volume is for
        one pod and another target uses it, InvalidArgument for a target that cannot be a directory,
        InvalidValue or NoMountTarget when the plan leads to no mount target, MountFailed, and the errors of
        the tunnel agent. If the target is mounted nevertheless, the error has ``outcome_unknown``.
        """
        target = wanted.mount.target
        # Whatever ends this call early, the next one for the target checks everything again.
        self._checked.pop(target, None)
        try:
            async with asyncio.timeout(timeout_seconds), self._uncertain_while_mounted(target):
                mounted = await self._mounter.table.mounted_at(target)
                if mounted is None:
                    with self._recorded(wanted.use):
                        await self._check_other_targets(wanted)
                        tunnel = await self._mount(wanted)
                else:
                    tunnel = await self._check_same_volume(wanted, mounted)
                    self._published[target] = wanted.use
                self._checked[target] = _Checked(purpose=wanted.purpose, tunnel=tunnel)
        except TimeoutError as error:
            reason = await self._reason_of_tunnel(wanted)
            raise _unfinished("mounted", target, timeout_seconds, reason) from error

    @asynccontextmanager
    async def _uncertain_while_mounted(self, target: Path) -> AsyncIterator[None]:
        """Mark an error inside with ``outcome_unknown`` unless the target is known not to be mounted.

        After any other error, the kubelet takes the volume for not mounted, and never unmounts it (its
        isFinalError and markVolumeErrorState). The mount and the holder of its tunnel would stay on the node,
        also if this call only finds what an earlier one has mounted too late. ExistingVolumeDiffers has
        it if the mount is one of this volume. Otherwise the CSI specification wants its code.
        """
        try:
            yield
        except ExistingVolumeDiffers:
            raise
        except KubeEfsError as error:
            may_be_mounted = True
            with suppress(KubeEfsError):
                may_be_mounted = await self.is_mounted(target)
            error.outcome_unknown = error.outcome_unknown or may_be_mounted
            raise

    async def _reason_of_tunnel(self, wanted: Publication) -> str:
        """Why the tunnel for this mount is not up; empty if it is up, or if the agent does not answer."""
        if not wanted.plan.encrypted:
            return ""
        with suppress(KubeEfsError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                for tunnel in await self._tunnels.tunnels():
                    if tunnel.reason and self._wanted_spec(wanted, tunnel):
                        return tunnel.reason
        return ""

    async def unpublish(self, mount: NodeMount, *, timeout_seconds: float) -> None:
        """Unmount the target and remove it; a target that does not exist is not an error.

        Raises MountFailed, and InvalidArgument for a target that cannot be a directory.
        """
        self._checked.pop(mount.target, None)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_seconds
        try:
            async with asyncio.timeout_at(ends_at):
                while await self.is_mounted(mount.target):
                    await self._unmount(mount.target, self._unmount_options.within(ends_at - loop.time()))
        except TimeoutError as error:
            raise _unfinished("unmounted", mount.target, timeout_seconds) from error
        if not await run_to_completion(asyncio.to_thread(remove_target, mount.target)):
            raise MountFailed(
                "is still a mount point after unmounting", field="target_path", value=str(mount.target)
            )
        # Only now: as long as the mount may be there, it needs its tunnel.
        self._published.pop(mount.target, None)
        self._unchecked.discard(mount.target)
        await self._release_tunnel(mount.holder)
        log.info("volume-unmounted", volume=mount.volume_id, target=str(mount.target))

    async def is_mounted(self, target: Path) -> bool:
        """Whether anything is mounted there; raises PlatformError when the mount table cannot be read."""
        return await self._mounter.table.is_mounted(target)

    async def reconcile(self) -> None:
        """Send the agent those of its holders that are mounted, or that a call is mounting.

        After two such lists without a holder, the agent removes it, also if its name is not that of a mount.
        Raises PlatformError when the mount table cannot be read, and the errors of the agent; then the agent
        removes no holder. If the agent has lost a holder, the next publication of the mount holds it again.
        """
        holders = await self._holders()
        self._forget_lost(holders)
        held = {one: mount.target for one in holders if (mount := parse_mount(one))}
        points = await self._mounter.table.mounted_among(
            set(held.values()), readings=_READINGS, pause_seconds=_READING_PAUSE_SECONDS
        )
        mounted = {holder for holder, target in held.items() if target in points}
        # A call that began after the list of holders and has ended by now is in neither set. Its holder is
        # missing in one list only, and the agent removes none of these.
        publishing = {use.mount.holder for use in self._publishing.values()}
        for holder in await self._tunnels.reconcile(mounted | publishing):
            log.warning("tunnel-holder-without-mount", holder=holder)

    def _forget_lost(self, holders: Collection[Holder]) -> None:
        """Have the next calls for these mounts ask the agent: it is another one, or has lost its state."""
        for target, known in list(self._checked.items()):
            if known.tunnel is not None and known.purpose.mount.holder not in holders:
                del self._checked[target]

    async def _holders(self) -> frozenset[Holder]:
        return frozenset(one for tunnel in await self._tunnels.tunnels() for one in tunnel.holders)

    async def _mount(self, wanted: Publication) -> _Tunnel | None:
        plan, target = wanted.plan, wanted.mount.target
        if plan.attributes.is_far_from(*self._node_info.zones):
            log.warning(
                "mount-target-of-another-zone", volume=wanted.mount.volume_id, zone=self._node_info.zone
            )
        # Before the mount: it can still succeed after the call was cancelled. It must then exclude others,
        # and the next call has to check its connection.
        self._published[target] = wanted.use
        if plan.encrypted:
            self._unchecked.add(target)
        try:
            await run_to_completion(asyncio.to_thread(make_target, target))
            tunnel, server = await self._try(wanted, plan.attempts)
            if tunnel is not None:
                await self._keep_if_connected(wanted.mount, tunnel)
        except (KubeEfsError, asyncio.CancelledError):
            await run_to_completion(self._undo(wanted))
            raise
        log.info(
            "volume-mounted",
            volume=wanted.mount.volume_id,
            target=str(target),
            server=server,
            port=tunnel.port if tunnel else None,
        )
        return tunnel

    async def _hold_tunnel(self, wanted: Publication, spec: TunnelSpec) -> _Tunnel:
        holder, tokens = wanted.mount.holder, wanted.tokens
        if tokens is not None and isinstance(spec.iam, ServiceAccountIdentity):
            port = await self._tunnels.ensure_for_pod(spec, holder, tokens.token_for(spec.iam))
        else:
            port = await self._tunnels.ensure(spec, holder)
        return _Tunnel(spec=spec, port=port)

    async def _try(self, wanted: Publication, plans: Sequence[MountPlan]) -> "tuple[_Tunnel | None, str]":
        """Mount by the first plan that works; returns its tunnel, None without TLS, and the server."""
        mount, (plan, *others) = wanted.mount, plans
        tunnel: _Tunnel | None = None
        try:
            if plan.encrypted:
                identity = await read_identity(self._client, wanted.tokens) if wanted.tokens else None
                tunnel = await self._hold_tunnel(wanted, tunnel_spec(plan, self._node_info, identity))
            server = _LOOPBACK if tunnel else direct_server(plan, self._node_info)
            options = plan.options(tunnel.port if tunnel else None)
            source = plan.source(server)
            with span("mount", volume=mount.volume_id, source=source, target=str(mount.target)):
                await self._mounter.mount(source, mount.target, options)
        except (AwsIdentityLate, AwsThrottled, MountUnfinished, TunnelError):
            # The mount may still succeed, or something is only slow, for example on a busy node. A mount
            # without the identity would keep the permissions of anonymous clients until its end.
            raise
        except KubeEfsError as error:
            if not others:
                raise
            log.info("mount-tried-without-identity", volume=mount.volume_id, reason=str(error))
            # The next plan needs another tunnel. Without this, the mount would hold both until its end.
            await self._tunnels.release(mount.holder)
            try:
                return await self._try(wanted, others)
            except MountFailed as last:
                problem = f"{last.problem}; with the identity of the node: {error}"
                raise MountFailed(problem, field=last.field, value=last.value) from error
        return tunnel, server

    async def _keep_if_connected(self, mount: NodeMount, tunnel: _Tunnel) -> None:
        """Unmount what fails the check. If this is interrupted, the next call for the target checks again."""
        try:
            await self._check_connection(mount, tunnel)
        except KubeEfsError:
            await self._mounter.unmount(mount.target)
            raise
        self._unchecked.discard(mount.target)

    async def _check_connection(self, mount: NodeMount, tunnel: _Tunnel) -> None:
        """Raise MountFailed if EFS would check another identity than that of the tunnel for the mount.

        If EFS presents one server to two tunnels, the kernel uses the connection of the first for both. For
        identities of the node, that is as with efs-utils. For those of pods, it would let a pod use the
        permissions of another one.
        """
        ports = await asyncio.to_thread(nfs_client_ports)
        if ports is None or tunnel.port in ports:
            return
        if not isinstance(tunnel.spec.iam, ServiceAccountIdentity):
            connected = [one.spec for one in await self._tunnels.tunnels() if one.spec and one.port in ports]
            of_pods = (one for one in connected if isinstance(one.iam, ServiceAccountIdentity))
            if all(one.file_system_id != tunnel.spec.file_system_id for one in of_pods):
                return
        raise MountFailed(
            "would use the connection of another identity, because the kernel regards both as one server",
            field="volume",
            value=mount.volume_id,
            remedy="use an access point for each service account, or run the pods on different nodes",
        )

    async def _undo(self, wanted: Publication) -> None:
        """Remove the target and release the tunnel of a failed mount, but not of one that succeeded late.

        A mount(8) that could not be killed may mount between the two checks. So only the second one decides:
        rmdir(2) fails if the target is a mount point by then, and the tunnel stays.
        """
        with suppress(KubeEfsError):
            is_unmounted = not await self.is_mounted(wanted.mount.target)
            if is_unmounted and await asyncio.to_thread(remove_target, wanted.mount.target):
                self._published.pop(wanted.mount.target, None)
                self._unchecked.discard(wanted.mount.target)
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
                servers = direct_servers(wanted.plan, self._node_info)
                places = {
                    one.mount_point
                    for server in servers
                    for one in await self._mounter.table.mounted_from(wanted.plan.source(server))
                }
            others |= places - {wanted.mount.target}
        for other in sorted(others):
            if await self.is_mounted(other):
                raise _volume_in_use(wanted.use, f"is mounted at {shown(str(other))}")

    async def _check_same_volume(self, wanted: Publication, mounted: MountEntry) -> _Tunnel | None:
        """Raise ExistingVolumeDiffers unless the same volume is mounted the same way; returns its tunnel.

        Which of the volume's addresses the mount uses makes no difference. An earlier driver on this node may
        have known the ID of its zone, and this one not, or the other way round. A mount that the agent lists
        as a holder is one of this volume, so the error has ``outcome_unknown``.

        Raises MountFailed for a mount whose connection is that of another identity. For mounts of the node,
        this has a gap: if the driver is killed between such a mount and its check, the next driver does not
        know that it was never checked. It takes it for one that has passed, which it must not check again.
        """
        plan, tunnel = wanted.plan, None
        servers = (_LOOPBACK,) if plan.encrypted else direct_servers(plan, self._node_info)
        sources = [plan.source(server) for server in servers]
        source = mounted.source if mounted.source in sources else " or ".join(sources)
        if not mounted.file_system_type.startswith("nfs") or mounted.source not in sources:
            difference = f"{mounted.source} ({mounted.file_system_type}) is mounted there, not {source}"
        elif mounted.is_read_only != plan.read_only:
            difference = f"{source} is mounted {'read-only' if mounted.is_read_only else 'for writing'} there"
        elif plan.encrypted and (tunnel := await self._wanted_tunnel(wanted, mounted)) is None:
            difference = f"{source} is mounted there, but through another tunnel"
        elif not plan.encrypted and not _ports(mounted) <= {"port=2049"}:
            difference = f"{source} is mounted there, but through a tunnel"
        else:
            # An earlier call may have ended before its check. A mount of the node that has passed it may fail
            # now: its connection can be that of another mount of the node.
            if tunnel is not None and (plan.signs_as_pod or wanted.mount.target in self._unchecked):
                await self._check_connection(wanted.mount, tunnel)
                self._unchecked.discard(wanted.mount.target)
            return tunnel
        error = ExistingVolumeDiffers(
            f"is in use: {difference}",
            field="target_path",
            value=str(wanted.mount.target),
            remedy="unpublish that volume first",
        )
        with suppress(KubeEfsError):
            error.outcome_unknown = wanted.mount.holder in await self._holders()
        raise error

    async def _wanted_tunnel(self, wanted: Publication, mounted: MountEntry) -> _Tunnel | None:
        """The wanted tunnel if the mount uses it, which also holds it from then on."""
        # Not simply with a request for the tunnel: after a change of options, the mount would hold a second
        # one.
        for tunnel in await self._tunnels.tunnels():
            if f"port={tunnel.port}" not in _ports(mounted):
                continue
            if spec := self._wanted_spec(wanted, tunnel):
                # The tunnel exists; this call only ensures that this mount holds it.
                held = await self._hold_tunnel(wanted, spec)
                return held if held.port == tunnel.port else None
        return None

    def _wanted_spec(self, wanted: Publication, tunnel: TunnelOnDemand) -> TunnelSpec | None:
        """What to request for this mount to get this tunnel; None if it cannot get it."""
        if tunnel.spec is None:
            return None
        # The role is that of the mount, also if the service account has another one now.
        identity = tunnel.spec.iam if isinstance(tunnel.spec.iam, ServiceAccountIdentity) else None
        is_of_pod = wanted.tokens is not None and identity is not None and wanted.tokens.belong_to(identity)
        if wanted.plan.signs_as_pod and not is_of_pod:
            return None
        for plan in wanted.plan.attempts:
            spec = tunnel_spec(plan, self._node_info, identity if is_of_pod else None)
            # The mount keeps its address, whatever the driver knows about the zone now.
            if tunnel.spec.address in plan.attributes.every_address:
                spec = replace(spec, address=tunnel.spec.address)
            if tunnel.spec == replace(spec, region=spec.region or tunnel.spec.region):
                return spec
        return None

    async def _unmount(self, target: Path, options: UnmountOptions) -> None:
        is_unmounted = await self._unmount_in_time(self._unmount_when_unused, target, options)
        if not is_unmounted and options.force:
            log.warning("unmount-forced", target=str(target), seconds=options.timeout_seconds)
            is_unmounted = await self._unmount_in_time(self._unmount_by_force, target, options)
        if not is_unmounted:
            how = "unmounted by force" if options.force else "unmounted"
            raise _unfinished(how, target, options.timeout_seconds)

    async def _unmount_in_time(
        self,
        unmount: Callable[[Path, UnmountOptions], Awaitable[None]],
        target: Path,
        options: UnmountOptions,
    ) -> bool:
        """Unmount in this way; returns whether the target was unmounted before the timeout."""
        try:
            async with asyncio.timeout(options.timeout_seconds):
                await unmount(target, options)
        except TimeoutError:
            # umount(8) waits for unwritten data, but the mount may be removed already.
            return not await self.is_mounted(target)
        return True

    async def _unmount_when_unused(self, target: Path, options: UnmountOptions) -> None:
        """Unmount it. If force is allowed later, retry first while the target is in use."""
        while True:
            try:
                return await self._mounter.unmount(target)
            except MountFailed:
                if not options.force or not await self.is_mounted(target):
                    raise
            await asyncio.sleep(options.pause_seconds)

    async def _unmount_by_force(self, target: Path, options: UnmountOptions) -> None:
        # Each attempt aborts the requests that wait for the server at that moment. A dying process that has
        # written and then closes its file needs two attempts. A living process keeps its open files, but not
        # the mount.
        for _ in range(FORCED_ATTEMPTS):
            try:
                return await self._mounter.unmount(target, force=True)
            except MountFailed:
                await asyncio.sleep(options.pause_seconds)
        return await self._mounter.unmount(target, force=True, lazy=True)

    async def _release_tunnel(self, holder: Holder) -> None:
        """Release the holder's tunnel; if the agent does not answer, reconciliation releases it later."""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._tunnels.release(holder)
        except (KubeEfsError, TimeoutError) as error:
            log.warning("tunnel-not-released", holder=holder, reason=str(error) or "no answer")


def _ports(mounted: MountEntry) -> frozenset[str]:
    return frozenset(option for option in mounted.super_options if option.startswith("port="))


def _volume_in_use(wanted: VolumeUse, where: str) -> VolumeInUse:
    return VolumeInUse(
        f"has access mode ReadWriteOncePod and {where}",
        field="volume_id",
        value=wanted.mount.volume_id,
        remedy="wait until the pod that uses it has ended",
    )


def _unfinished(what: str, target: Path, seconds: float, reason: str = "") -> MountUnfinished:
    """``reason`` is why the tunnel is down, which mount(8) does not see: it waits for an answer."""
    return MountUnfinished(
        f"is not {what} within {seconds:g} s" + (f": {reason}" if reason else ""),
        field="target_path",
        value=str(target),
        remedy=_DOWN_REMEDY
        if reason
        else "check that the file system's mount targets are reachable from this node",
    )
