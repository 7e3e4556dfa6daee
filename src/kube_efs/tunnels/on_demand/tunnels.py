"""Tunnels on demand: a holder requests a port that leads to a file system, and keeps it until its release.

A mount cannot change its port later. If a port ever led to another file system, the mount would read and
write the data of another volume. The port is therefore reserved, by these rules:

* ``ensure`` creates the certificate, chooses a port and writes the reservation to the disk. Only then does
  stunnel serve it. The call returns when stunnel listens. If the answer is lost, or the agent crashes, the
  repeated call finds the same reservation: name and first port are derived from the purpose of the tunnel.
* The plan contains two states. ``wanted`` changes at once, in one step without an await, so two calls never
  choose the same port. ``reservations`` becomes equal to it when the file on the disk is. stunnel serves only
  ``reservations``. A change that could not be written stays in ``wanted``, unless it closes tunnels. The next
  change, or the next check of the tunnels, writes it.
* Changes that wait for the disk at the same time share one write.
* A tunnel closes only if it has no holder, and if all readings of the kernel's sockets over some minutes
  showed no connection. A reading that failed closes nothing. A tunnel that a running call requests stays,
  too. A close that could not be written is undone, because stunnel still serves the tunnel.
* A holder is removed when it releases its tunnel, or when two reconciliations a minute apart do not list it.
"""

import asyncio
import ipaddress
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

import structlog

from kube_efs.aws.credential_sources import CredentialSource, ServiceAccountIdentity
from kube_efs.model.errors import PortTaken, TunnelNotReady
from kube_efs.run_to_completion import run_to_completion
from kube_efs.telemetry.traces import span
from kube_efs.tunnels.mount_targets import NFS_PORT, Candidate
from kube_efs.tunnels.on_demand.ca_files import check_ca_file
from kube_efs.tunnels.on_demand.renewal import ClientCertificates
from kube_efs.tunnels.on_demand.store import (
    StoredReservations,
    load_reservations,
    new_entries,
    save_reservations,
)
from kube_efs.tunnels.options import OnDemandOptions, TunnelOptions
from kube_efs.tunnels.plan import NodePlan, find_candidates
from kube_efs.tunnels.reservations import Holder, Reservation, Reservations, TunnelSpec
from kube_efs.tunnels.sockets.detection import IdlePorts
from kube_efs.tunnels.sockets.ports import PortReading, nfs_client_ports

log = structlog.get_logger()

_RESOLVE_SECONDS = 3.0


@dataclass(slots=True)
class _PendingCalls:
    """The number of calls that request a tunnel at this moment; one of them prepares it for all."""

    count: int = 0
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)


class OnDemandTunnels:
    """The tunnels on demand of this node."""

    def __init__(
        self,
        options: TunnelOptions,
        on_demand: OnDemandOptions,
        certificates: ClientCertificates,
        plan: NodePlan,
        clock: Callable[[], float],
        is_in_use: Callable[[int], bool | None],
        mounted: Callable[[], frozenset[int] | None] = nfs_client_ports,
    ) -> None:
        self._options = options
        self._on_demand = on_demand
        self._certificates = certificates
        self._plan = plan
        # A view, so the plan always has the current certificates.
        plan.certificates = certificates.files
        self._clock = clock
        self._is_in_use = is_in_use
        self._mounted = mounted
        self._stored = StoredReservations()
        self._entries = new_entries()
        self._changes = 0
        self._changes_saved = 0
        self._saving = asyncio.Lock()
        self._pending_calls: dict[str, _PendingCalls] = {}
        # The holders whose last call failed because a program had the port: none of them is mounting.
        self._refused: defaultdict[str, set[Holder]] = defaultdict(set)
        self._idle_ports = IdlePorts()
        self._missing_since: dict[Holder, float] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """The parts of the stored state that could not be read."""
        return self._stored.problems

    @property
    def reservations(self) -> Reservations:
        """The reservations that are on the disk and served."""
        return self._plan.reservations

    def all(self) -> Collection[Reservation]:
        """The current reservations."""
        return self.reservations.tunnels.values()

    async def load(self) -> None:
        """Load the reservations and the certificates of an earlier agent."""
        self._stored = await asyncio.to_thread(load_reservations, self._options.reservations_path)
        self._plan.reservations = self._plan.wanted = self._stored.reservations
        self._certificates.take_over(self.all())
        if self.reservations.tunnels:
            log.info(
                "on-demand-tunnels-loaded",
                tunnels=len(self.reservations.tunnels),
                holders=len(self.reservations.holders),
            )

    async def ensure(self, spec: TunnelSpec, holder: Holder, pod_token: str = "") -> int:
        """The port of a tunnel for this spec, which the holder holds from now on.

        stunnel listens on it when this returns. Raises TunnelError, AwsError for missing credentials,
        InvalidSetting, and InvalidValue for a file of authorities that is not allowed. If the tunnel is not
        ready in time, the holder keeps the reservation: a repeated call continues from there, and a release
        removes it.

        ``pod_token`` is a token of the service account in the spec. A new holder gets the tunnel only if AWS
        gives credentials for it. A known holder gives it for the next renewals of the certificate; if the
        last one failed, this raises its error.
        """
        spec = replace(spec, region=spec.region or self._options.region)
        limit = self._on_demand.ensure_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await self._check_ca_file(spec, holder)
                with self._pending(spec.name):
                    with span("tunnel.reserve"):
                        port = await self._reserve(spec, holder, pod_token)
                    with span("tunnel.listen"):
                        await self._wait_until_listening(spec.name, port, holder)
        except TimeoutError as error:
            raise TunnelNotReady(
                f"was not ready within {limit:g} s",
                field="tunnel",
                value=spec.name,
                remedy="check the log of stunnel",
            ) from error
        return port

    async def release(self, holder: Holder) -> None:
        """Release every tunnel of the holder; having none is not an error.

        Raises TunnelNotReady when the change cannot be written to the disk.
        """
        await self._save(self._change(self._plan.wanted.release([holder])))

    async def reconcile(self, holders: Collection[Holder]) -> frozenset[Holder]:
        """Remove the holders that neither this call nor the calls of the last minute contain.

        ``holders`` is the full list, that is every mount of the node. Returns the removed ones.
        Raises TunnelNotReady when the change cannot be written to the disk.
        """
        now = self._clock()
        absent = self._plan.wanted.holders.difference(holders)
        self._missing_since = {one: self._missing_since.get(one, now) for one in absent}
        waited = self._on_demand.orphan_seconds
        removed = frozenset(one for one, since in self._missing_since.items() if now - since >= waited)
        await self._save(self._change(self._plan.wanted.release(removed)))
        for holder in sorted(removed):
            log.warning("holder-removed", holder=holder)
        return removed

    async def close_unused(self, reading: PortReading | None) -> None:
        """Close tunnels without holders that are unused in this reading and in many earlier ones.

        Also writes changes that an earlier call could not write, and removes certificates without a
        reservation.
        """
        now = self._clock()
        unheld = self._plan.wanted.unheld
        self._idle_ports = self._idle_ports.after(reading, unheld, now=now)
        over = self._idle_ports.unused(self._on_demand.idle, now=now)
        closing = {name for port, name in unheld.items() if port in over and name not in self._pending_calls}
        with suppress(TunnelNotReady):  # logged; the next check retries
            if closing:
                await self._close(closing)
            else:
                await self._save(self._changes)
        self._forget_certificates()

    async def _close(self, names: Collection[str]) -> None:
        """Close these tunnels; raises TunnelNotReady: then they stay, and their idle time starts again."""
        async with AsyncExitStack() as calls:
            # If the write fails, stunnel still listens on the ports, and they may have connections. A call
            # for one of the tunnels must then get its port, not another one: it waits for the outcome.
            for name in names:
                await calls.enter_async_context(calls.enter_context(self._pending(name)).preparing)
            closed = [self._plan.wanted.tunnels[name] for name in names]
            try:
                await self._save(self._change(self._plan.wanted.close(names)))
            except TunnelNotReady:
                wanted = self._plan.wanted
                # A tunnel that was never on the disk was never served. Another one may have its port now.
                staying = [one for one in closed if one.port not in wanted.ports]
                self._change(Reservations.of([*wanted.tunnels.values(), *staying]))
                raise
        log.info("on-demand-tunnels-closed", tunnels=sorted(names))

    async def _wait_until_listening(self, name: str, port: int, holder: Holder) -> None:
        """Wait until stunnel listens; if another program has the port, the next call gets another one.

        It does not if a mount uses the port, or if a holder may be mounting, because its last call got the
        port. Otherwise the volume could not be mounted while the program runs: the kubelet repeats the call,
        and each one holds the tunnel again, long before it would close.
        """
        try:
            await self._plan.wait_until_listening(name, port)
        except PortTaken:
            self._refused[name].add(holder)
            # Not ``is_in_use``: the program that took it uses the port.
            mounted = await asyncio.to_thread(self._mounted) or ()
            tunnel = self._plan.wanted.tunnels.get(name)
            is_unused = tunnel and tunnel.holders <= self._refused[name] and port not in mounted
            # Another call may just get the port. If it does not, it gives up the port.
            if is_unused and self._pending_calls[name].count == 1:
                others = (one for one in self._plan.wanted.tunnels.values() if one != tunnel)
                await self._save(self._change(Reservations.of(others)))
            raise
        self._refused.pop(name, None)

    async def _check_ca_file(self, spec: TunnelSpec, holder: Holder) -> None:
        known = self._plan.wanted.tunnels.get(spec.name)
        # A holder keeps its tunnel: its mount exists, and would otherwise be without one.
        if spec.ca_file is not None and not (known and holder in known.holders):
            await asyncio.to_thread(check_ca_file, spec.ca_file, self._options.ca_directory)

    async def _reserve(self, spec: TunnelSpec, holder: Holder, pod_token: str) -> int:
        # One call at a time: the first one creates the certificate for all calls with this spec.
        async with self._pending_calls[spec.name].preparing:
            source = await self._prepare(spec, holder, pod_token)
            change = await self._hold(spec, holder, source)
        # Without the lock, so that the calls of several holders share a write. The tunnel cannot be closed
        # meanwhile: ``ensure`` has registered the call as pending.
        await self._save(change)
        return self.reservations.tunnels[spec.name].port

    async def _prepare(self, spec: TunnelSpec, holder: Holder, pod_token: str) -> CredentialSource | None:
        """Check the address and ensure a certificate; returns the source of its credentials."""
        known = self._plan.wanted.tunnels.get(spec.name)
        if known is None and spec.name not in self._certificates.files:
            [first, *_] = find_candidates(spec, self._plan.targets, self._plan.options)
            await check_resolvable(first)
        if isinstance(spec.iam, ServiceAccountIdentity):
            is_holder = known is not None and holder in known.holders
            await self._certificates.ensure_for_pod(spec, pod_token, is_holder=is_holder)
            return None
        # Since its last holder, a reading has shown neither a connection nor a mount, and none since.
        is_used = known is not None and known.port not in self._idle_ports.streaks
        return await self._certificates.ensure(spec, known.source if known else None, is_used=is_used)

    async def _hold(self, spec: TunnelSpec, holder: Holder, source: CredentialSource | None) -> int:
        """Add the holder; a new tunnel gets a port that nothing uses. Returns the number of the change."""
        free, in_use = None, set[int]()
        while True:
            # From here to ``_change`` there must be no await. Meanwhile another call could choose the same
            # port, or the ConfigMap could get a target with it.
            # The reserved ports include those of tunnels that are being closed, which may have to stay.
            avoid = in_use.union(
                self._stored.unreadable_ports, self._plan.config_map_ports, self.reservations.ports
            )
            wanted = self._plan.wanted
            held = wanted.hold(spec, holder, ports=self._on_demand.ports, avoid=avoid)
            port = held.tunnels[spec.name].port
            if spec.name in wanted.tunnels or port == free:
                self._missing_since.pop(holder, None)
                return self._change(held.sign_from(spec.name, source))
            if await self._can_use(port):
                free = port
            else:
                in_use.add(port)

    async def _can_use(self, port: int) -> bool:
        """Whether no socket and no mount of the node uses the port; raises TunnelNotReady if unknown."""
        is_in_use = await asyncio.to_thread(self._is_in_use, port)
        if is_in_use is None:
            raise TunnelNotReady("cannot be read", field="connections of the node", remedy="try again")
        return not is_in_use

    def _change(self, wanted: Reservations) -> int:
        """Change what is wanted; returns the number of the change, for ``_save``."""
        if wanted != self._plan.wanted:
            self._plan.wanted = wanted
            self._changes += 1
            # A holder between two readings may have used the tunnel: its idle time starts again.
            self._idle_ports = self._idle_ports.keep_only(wanted.unheld)
        return self._changes

    async def _save(self, change: int) -> None:
        """Return when this change is on the disk and served; raises TunnelNotReady.

        Changes that wait for the disk at the same time share one write. A change that could not be written
        stays in ``wanted``: a repeated call, the next change or the next check of the tunnels writes it.
        """
        async with self._saving:
            if self._changes_saved < change:
                # Also when cancelled. A write that continues in its thread could replace the next state. And
                # what it has written must count: a repeated call would otherwise have to write it again.
                await run_to_completion(self._save_wanted())

    async def _save_wanted(self) -> None:
        # Both may change during the write, which then does not contain the change.
        wanted, changes = self._plan.wanted, self._changes
        await self._write(wanted)
        self._plan.reservations, self._changes_saved = wanted, changes
        self._forget_certificates()
        self._plan.apply()

    def _forget_certificates(self) -> None:
        known = self.reservations.tunnels.keys() | self._plan.wanted.tunnels.keys()
        self._certificates.keep_only(known | self._pending_calls.keys())

    async def _write(self, reservations: Reservations) -> None:
        path = self._options.reservations_path
        try:
            given = (path, reservations, self._stored.unreadable)
            await asyncio.to_thread(save_reservations, *given, entries=self._entries)
        except OSError as error:
            log.warning("on-demand-tunnels-not-saved", path=str(path), reason=error.strerror)
            raise TunnelNotReady(
                f"cannot be written ({error.strerror})", field="state of the tunnels", value=str(path)
            ) from error

    @contextmanager
    def _pending(self, name: str) -> Iterator[_PendingCalls]:
        """Keep the tunnel open while a call requests it."""
        calls = self._pending_calls.setdefault(name, _PendingCalls())
        calls.count += 1
        try:
            yield calls
        finally:
            calls.count -= 1
            if not calls.count:
                del self._pending_calls[name]


async def check_resolvable(candidate: Candidate) -> None:
    """Raise TunnelNotReady unless the candidate is an address, or a name that DNS resolves."""
    with suppress(ValueError):
        ipaddress.ip_address(candidate.address)
        return
    loop = asyncio.get_running_loop()
    reason = f"is not answered by DNS within {_RESOLVE_SECONDS:g} s"
    with suppress(TimeoutError):
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await loop.getaddrinfo(candidate.address, NFS_PORT, type=socket.SOCK_STREAM)
                return
        except socket.gaierror as error:
            reason = f"is not known to DNS ({error.strerror})"
    raise TunnelNotReady(
        reason,
        field="mount target",
        value=candidate.address,
        remedy="check that the file system has a mount target in this network, or configure its address",
    )
