"""Tunnels on demand: a holder requests a port that leads to a file system, and keeps it until its release.

A mount cannot change its port later. If a port ever led to another file system, the mount would read and
write the data of another volume. The port is therefore reserved, by these rules:

* ``ensure`` creates the certificate, chooses a port and writes the reservation to the disk. Only then does
  stunnel serve it. The call returns when stunnel listens. If the answer is lost, or the agent crashes, the
  repeated call finds the same reservation: name and first port are derived from the purpose of the tunnel.
* The plan contains two states. ``wanted`` changes at once, in one step without an await, so two calls never
  choose the same port. ``reservations`` becomes equal to it when the file on the disk is. stunnel serves only
  ``reservations``. A change that could not be written stays in ``wanted``. The next change, or the next check
  of the tunnels, writes it.
* Changes that wait for the disk at the same time share one write.
* A tunnel closes only if it has no holder, and if all readings of the kernel's sockets over some minutes
  showed no connection. A reading that failed closes nothing. A tunnel that a running call requests stays,
  too.
* A holder is removed when it releases its tunnel, or when two reconciliations a minute apart do not list it.
"""

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import structlog

from kube_efs.aws.credential_sources import CredentialSource
from kube_efs.model.errors import TunnelNotReady
from kube_efs.tunnels.files import in_thread_to_the_end
from kube_efs.tunnels.mount_targets import NFS_PORT, Candidate
from kube_efs.tunnels.on_demand.renewal import ClientCertificates
from kube_efs.tunnels.on_demand.store import StoredReservations, load_reservations, save_reservations
from kube_efs.tunnels.options import OnDemandOptions, TunnelOptions
from kube_efs.tunnels.plan import NodePlan, find_candidates
from kube_efs.tunnels.reservations import Holder, Reservation, Reservations, TunnelSpec
from kube_efs.tunnels.sockets.detection import IdlePorts
from kube_efs.tunnels.sockets.ports import PortReading, read_ports

log = structlog.get_logger()

_RESOLVE_SECONDS = 3.0


@dataclass(slots=True)
class _Asked:
    """How many ask for a tunnel at this moment; one of them prepares it, for all."""

    by: int = 0
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)


class OnDemandTunnels:
    """The tunnels on demand of this node."""

    def __init__(
        self,
        options: TunnelOptions,
        on_demand: OnDemandOptions,
        certificates: ClientCertificates,
        plan: NodePlan,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[], PortReading | None] = read_ports,
    ) -> None:
        self._options = options
        self._on_demand = on_demand
        self._certificates = certificates
        self._plan = plan
        # A view: what is renewed or forgotten shows there.
        plan.certificates = certificates.files
        self._clock = clock
        self._read = read
        self._remembered = StoredReservations()
        self._changes = 0
        self._changes_remembered = 0
        self._remembering = asyncio.Lock()
        self._asked: dict[str, _Asked] = {}
        self._idleness = IdlePorts()
        self._missing_since: dict[Holder, float] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read of the remembered state."""
        return self._remembered.problems

    @property
    def reservations(self) -> Reservations:
        """The reservations that are on the disk and served."""
        return self._plan.reservations

    def each(self) -> Collection[Reservation]:
        """The tunnels of this moment."""
        return self.reservations.tunnels.values()

    async def load(self) -> None:
        """Load the reservations and the certificates of an earlier agent."""
        self._remembered = await asyncio.to_thread(load_reservations, self._options.reservations_path)
        self._plan.reservations = self._plan.wanted = self._remembered.reservations
        self._certificates.take_over(self.each())
        if self.reservations.tunnels:
            log.info(
                "on-demand-tunnels-remembered",
                tunnels=len(self.reservations.tunnels),
                holders=len(self.reservations.holders),
            )

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        """The port of a tunnel for this spec, which is the holder's too from now on.

        stunnel listens on it when this returns. Raises TunnelError, AwsError for missing credentials, and
        InvalidSetting. A holder whose tunnel did not come up in time is remembered all the same: a repeated
        call continues from there, releasing ends it.
        """
        spec = replace(spec, region=spec.region or self._options.region)
        limit = self._on_demand.ensure_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                with self._asking(spec.name):
                    port = await self._reserve(spec, holder)
                await self._plan.listening(spec.name)
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

        Raises TunnelNotReady when that cannot be remembered.
        """
        await self._remember(self._want(self._plan.wanted.release([holder])))

    async def reconcile(self, holders: Collection[Holder]) -> frozenset[Holder]:
        """Forget the holders that are not among these, in this call and in earlier ones for a while.

        ``holders`` are all that there are, such as every mount of the node. Gives those forgotten.
        Raises TunnelNotReady when that cannot be remembered.
        """
        now = self._clock()
        absent = self._plan.wanted.holders.difference(holders)
        self._missing_since = {one: self._missing_since.get(one, now) for one in absent}
        waited = self._on_demand.orphan_seconds
        gone = frozenset(one for one, since in self._missing_since.items() if now - since >= waited)
        await self._remember(self._want(self._plan.wanted.release(gone)))
        for holder in sorted(gone):
            log.warning("orphan-released", holder=holder)
        return gone

    async def look(self, reading: PortReading | None) -> None:
        """Close what nobody holds and, by this and many earlier readings, nobody uses.

        Certificates that were made for a tunnel that has no holder are removed.
        """
        now = self._clock()
        unheld = self._plan.wanted.unheld
        self._idleness = self._idleness.after(reading, unheld, now=now)
        over = self._idleness.over(self._on_demand.idle, now=now)
        closing = {name for port, name in unheld.items() if port in over and name not in self._asked}
        if closing:
            log.info("on-demand-tunnels-closed", tunnels=sorted(closing))
            self._want(self._plan.wanted.close(closing))
        if self._changes_remembered < self._changes:
            with suppress(TunnelNotReady):  # logged; the next look writes it
                await self._remember(self._changes)
        self._forget_certificates()

    async def _reserve(self, spec: TunnelSpec, holder: Holder) -> int:
        ports = self._on_demand.ports
        # One after the other, so that the first prepares for all who ask for the same.
        async with self._asked[spec.name].preparing:
            source = await self._prepare(spec)
            avoid = () if spec.name in self._plan.wanted.tunnels else await self._unusable_ports()
            self._missing_since.pop(holder, None)
            held = self._plan.wanted.hold(spec, holder, ports=ports, avoid=avoid)
            change = self._want(held.sign_from(spec.name, source))
        await self._remember(change)
        return self.reservations.tunnels[spec.name].port

    async def _prepare(self, spec: TunnelSpec) -> CredentialSource | None:
        """See that there is a certificate and a way; gives where the credentials come from."""
        known = self._plan.wanted.tunnels.get(spec.name)
        if known is None and spec.name not in self._certificates.files:
            [first, *_] = find_candidates(spec, self._plan.targets, self._options)
            await check_resolves(first)
        return await self._certificates.ensure(spec, known.source if known else None)

    async def _unusable_ports(self) -> frozenset[int]:
        """Ports that a new tunnel must not get: of other tunnels, and all that seem to be in use."""
        reading = await asyncio.to_thread(self._read)
        if reading is None:
            raise TunnelNotReady("cannot be read", field="connections of the node", remedy="try again")
        others = self._remembered.unreadable_ports.union(self._plan.config_map_ports)
        return others | reading.busy | reading.listening

    def _want(self, wanted: Reservations) -> int:
        """Change what is wanted; gives the number of the change, to be remembered."""
        if wanted != self._plan.wanted:
            self._plan.wanted = wanted
            self._changes += 1
            # Who has held a tunnel between two looks has used it.
            self._idleness = self._idleness.among(wanted.unheld)
        return self._changes

    async def _remember(self, change: int) -> None:
        """Return when this change is on the disk and served; raises TunnelNotReady.

        Those who wait for the disk at the same time are written together. A change that could not be
        written stays wanted: a repeated call, the next change or the next look writes it.
        """
        async with self._remembering:
            if self._changes_remembered < change:
                wanted, changes = self._plan.wanted, self._changes
                await self._write(wanted)
                self._plan.reservations, self._changes_remembered = wanted, changes
                self._forget_certificates()
                self._plan.apply()

    def _forget_certificates(self) -> None:
        known = self.reservations.tunnels.keys() | self._plan.wanted.tunnels.keys()
        self._certificates.forget_all_but(known | self._asked.keys())

    async def _write(self, reservations: Reservations) -> None:
        path = self._options.reservations_path
        try:
            # No task may write the next state before this one is written.
            await in_thread_to_the_end(save_reservations, path, reservations, self._remembered.unreadable)
        except OSError as error:
            log.warning("on-demand-tunnels-not-remembered", path=str(path), reason=error.strerror)
            raise TunnelNotReady(
                f"cannot be written ({error.strerror})", field="state of the tunnels", value=str(path)
            ) from error

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """While a call requests a tunnel, it is not closed."""
        asked = self._asked.setdefault(name, _Asked())
        asked.by += 1
        try:
            yield
        finally:
            asked.by -= 1
            if not asked.by:
                del self._asked[name]


async def check_resolves(candidate: Candidate) -> None:
    """Nothing when the candidate is an address or a name that DNS knows, else raises TunnelNotReady."""
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
