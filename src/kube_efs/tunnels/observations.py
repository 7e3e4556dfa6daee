"""The status and the metrics of each tunnel: computed from the plan, the report and observations."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypedDict

from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.changes import changed_keys
from kube_efs.tunnels.data_plane import DataPlaneReport, ServiceFacts, Traffic, TunnelService
from kube_efs.tunnels.mount_targets import Candidate, Nearness
from kube_efs.tunnels.plan import PlannedTunnel
from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.sockets.sock_diag import Flow
from kube_efs.tunnels.status import DENIED, TunnelState, TunnelStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Probes, facts of the log, failed renewals and traffic by service; open connections by port."""

    probes: Mapping[str, ProbeResult] = field(default_factory=lambda: MappingProxyType({}))
    facts: Mapping[str, ServiceFacts] = field(default_factory=lambda: MappingProxyType({}))
    connections: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    renewals: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    traffic: Mapping[str, Traffic] = field(default_factory=lambda: MappingProxyType({}))


def compute_status(tunnel: PlannedTunnel, report: DataPlaneReport, seen: Observations) -> TunnelStatus:
    """The state of one tunnel."""
    service = tunnel.service
    reservation = tunnel.reservation
    if service is None:
        state = TunnelState.REJECTED if tunnel.candidates or reservation else TunnelState.NO_MOUNT_TARGET
        return TunnelStatus(
            file_system_id=tunnel.target.file_system_id,
            port=tunnel.target.port,
            state=state,
            reason=_join_reasons(
                tunnel.obstacle, seen.renewals.get(tunnel.reservation.name, "") if tunnel.reservation else ""
            ),
            leaving=tunnel.leaving,
            **_on_demand_fields(tunnel),
        )
    facts = seen.facts.get(service.name, ServiceFacts())
    probed = seen.probes.get(service.name)
    connections = seen.connections.get(service.port, 0)
    state, reason = _evaluate(service, report, probed, facts)
    is_used = connections > 0 or reservation is not None
    # Mounts through a denied tunnel fail, so a used one stays down.
    is_denied = state is TunnelState.DOWN and probed is not None and probed.is_denied and not is_used
    if is_denied:
        state, reason = TunnelState.REJECTED, DENIED
    candidate = find_mount_target_in_use(tunnel, facts)
    pid = report.pid_by_service.get(service.name)
    traffic = seen.traffic.get(service.name)
    return TunnelStatus(
        file_system_id=service.file_system_id,
        port=service.port,
        state=state,
        reason=_join_reasons(reason, seen.renewals.get(service.name, "")),
        # A candidate without a subnet is a DNS name; its address is known after the first connection.
        address=candidate.address if candidate.subnet_id else facts.address or candidate.address,
        subnet_id=candidate.subnet_id,
        zone=candidate.zone or "",
        failed_over=candidate.nearness > tunnel.candidates[0].nearness,
        leaving=tunnel.leaving,
        denied=is_denied,
        connections=connections,
        sent_bytes=traffic.sent_bytes if traffic else None,
        received_bytes=traffic.received_bytes if traffic else None,
        probe_seconds=probed.seconds if probed and probed.ok else None,
        stunnel_pid=pid if pid != report.relay_pid else None,
        relay_pid=pid if pid == report.relay_pid else None,
        tls_version=facts.tls_version,
        cipher=facts.cipher,
        peer=facts.peer,
        **_on_demand_fields(tunnel),
    )


def _join_reasons(reason: str, renewal: str) -> str:
    return "; ".join(filter(None, [reason, renewal]))


class _OnDemandFields(TypedDict, total=False):
    on_demand: bool
    name: str
    access_point_id: str
    holders: int
    certificate_ends: str


def _on_demand_fields(tunnel: PlannedTunnel) -> _OnDemandFields:
    if tunnel.reservation is None:
        return {}
    certificate = tunnel.certificate
    return {
        "on_demand": True,
        "name": tunnel.reservation.name,
        "access_point_id": tunnel.reservation.spec.access_point_id or "",
        "holders": len(tunnel.reservation.holders),
        "certificate_ends": f"{certificate.not_after:%Y-%m-%dT%H:%M:%SZ}" if certificate else "",
    }


def _evaluate(
    service: TunnelService, report: DataPlaneReport, probed: ProbeResult | None, facts: ServiceFacts
) -> tuple[TunnelState, str]:
    if error := report.left_out.get(service.name):
        return TunnelState.REJECTED, str(error)
    if service.name not in report.loaded or probed is None:
        return TunnelState.STARTING, ""
    if probed.ok:
        return TunnelState.UP, ""
    return TunnelState.DOWN, facts.reason or probed.reason


def find_mount_target_in_use(tunnel: PlannedTunnel, facts: ServiceFacts) -> Candidate:
    """The mount target of the last connection, or else the one that is tried first."""
    by_address = {candidate.address: candidate for candidate in tunnel.candidates}
    first = tunnel.service.addresses[0] if tunnel.service else tunnel.candidates[0].address
    return by_address.get(facts.address) or by_address[first]


class Statuses:
    """The status of each tunnel, computed again only if one of its inputs is another object than before.

    The status is published each second, and is recorded after each load of a stunnel; usually almost all of
    a thousand tunnels are as before.
    """

    def __init__(self) -> None:
        self._tunnels: Sequence[PlannedTunnel] = ()
        self._inputs = _by_name(DataPlaneReport(), Observations())
        self._connections: Mapping[int, int] = {}
        self._statuses: tuple[TunnelStatus, ...] = ()

    def compute(
        self, tunnels: Sequence[PlannedTunnel], report: DataPlaneReport, seen: Observations
    ) -> tuple[TunnelStatus, ...]:
        """The states of these tunnels; the inputs must not be changed later."""
        inputs = _by_name(report, seen)
        names = set[str]().union(*map(changed_keys, self._inputs, inputs))
        ports = changed_keys(self._connections, seen.connections)
        if names or ports or tunnels is not self._tunnels:
            # The tunnels of the last call still exist, so the id of one is not that of another.
            known = dict(zip(map(id, self._tunnels), self._statuses, strict=True))
            self._statuses = tuple(
                status
                if (status := known.get(id(tunnel)))
                and _name(tunnel) not in names
                and tunnel.target.port not in ports
                else compute_status(tunnel, report, seen)
                for tunnel in tunnels
            )
        self._tunnels, self._inputs, self._connections = tunnels, inputs, seen.connections
        return self._statuses


def _by_name(report: DataPlaneReport, seen: Observations) -> tuple[Mapping[str, object], ...]:
    """What ``compute_status`` needs by the name of the service."""
    return (
        report.loaded,
        report.left_out,
        report.pid_by_service,
        seen.probes,
        seen.facts,
        seen.renewals,
        seen.traffic,
    )


def _name(tunnel: PlannedTunnel) -> str:
    named = tunnel.service or tunnel.reservation
    return named.name if named else ""


class TrafficRecorder:
    """Counts the traffic of each tunnel.

    The relay counts what it carries. stunnel does not, so the kernel's counters of its open connections are
    read periodically. What a connection carries after the last reading before its end is missed, which is
    little: the connections of mounts stay open.

    Connections of an earlier agent count from the first reading. Otherwise each restart of the agent would
    look like traffic, because counters that start again from 0 count in full.
    """

    def __init__(self, metrics: TunnelMetrics) -> None:
        self._metrics = metrics
        self._known: Mapping[tuple[str, str], Traffic] = {}
        self._flows: Mapping[tuple[int, int], Flow] | None = None
        self._by_port: dict[int, Traffic] = {}

    def add(self, flows: Iterable[Flow], ports: Collection[int]) -> None:
        """Add what the connections at these ports have carried since the last call; forget other ports."""
        self._by_port = {port: traffic for port, traffic in self._by_port.items() if port in ports}
        before, self._flows = (
            self._flows,
            {(one.local_port, one.remote_port): one for one in flows if one.local_port in ports},
        )
        if before is None:
            return
        for ends, flow in self._flows.items():
            last = before.get(ends)
            if last is not None and flow.received_bytes < last.received_bytes:
                last = None  # another connection with the same ports
            # The data plane receives what mounts send.
            sent = flow.received_bytes - (last.received_bytes if last else 0)
            received = flow.sent_bytes - (last.sent_bytes if last else 0)
            if last is None or sent or received:
                total = self._by_port.get(flow.local_port, Traffic())
                self._by_port[flow.local_port] = Traffic(
                    connections=total.connections + (last is None),
                    sent_bytes=total.sent_bytes + sent,
                    received_bytes=total.received_bytes + max(0, received),
                )

    def record(
        self, services: Iterable[TunnelService], facts: Mapping[str, ServiceFacts]
    ) -> Mapping[str, Traffic]:
        """The totals of these services by name; adds their growth to the metrics, and forgets other services.

        The totals of a data plane start at 0 with its process.
        """
        found: dict[tuple[str, str], Traffic] = {}
        for service in services:
            counted = facts[service.name].traffic if service.name in facts else None
            if counted:
                # If another data plane gets the port, what was counted here must not count again.
                self._by_port.pop(service.port, None)
            traffic = counted or self._by_port.get(service.port)
            if traffic:
                found[service.name, str(service.file_system_id)] = traffic
        metrics = self._metrics
        for labels, traffic in found.items():
            known = self._known.get(labels, Traffic())
            if known is traffic:
                continue
            metrics.connections.labels(*labels).inc(_growth(known.connections, traffic.connections))
            metrics.sent_bytes.labels(*labels).inc(_growth(known.sent_bytes, traffic.sent_bytes))
            metrics.received_bytes.labels(*labels).inc(_growth(known.received_bytes, traffic.received_bytes))
        for labels in self._known.keys() - found.keys():
            for counter in (metrics.connections, metrics.sent_bytes, metrics.received_bytes):
                counter.remove(*labels)
        self._known = found
        return {name: traffic for (name, _), traffic in found.items()}


def _growth(before: int, now: int) -> int:
    return now - before if now >= before else now


class MetricsRecorder:
    """Sets the metrics of each tunnel, and removes those of closed tunnels."""

    def __init__(self, metrics: TunnelMetrics) -> None:
        self._metrics = metrics
        self._described: Mapping[int, tuple[PlannedTunnel, TunnelStatus]] = {}
        self._recorded: dict[str, TunnelStatus] = {}

    def record(self, tunnels: Iterable[tuple[PlannedTunnel, TunnelStatus]]) -> None:
        """Set the gauges of tunnels with another status than before.

        These are all tunnels. A lingering tunnel of the ConfigMap has no gauges.
        """
        # Those of the last call still exist, so the id of one is not that of another.
        before, self._described = self._described, {id(one[1]): one for one in tunnels}
        new = [self._described[key] for key in self._described.keys() - before.keys()]
        gone = [before[key][1] for key in before.keys() - self._described.keys()]
        self._record_on_demand(
            [one for one in new if one[1].on_demand], [one for one in gone if one.on_demand]
        )
        current = {status.file_system_id: (plan, status) for plan, status in new if _has_gauges(status)}
        for file_system in {one.file_system_id for one in gone if _has_gauges(one)} - current.keys():
            self._remove(file_system)
        for file_system, (plan, status) in current.items():
            self._set(file_system, plan, status)

    def _record_on_demand(
        self, new: Iterable[tuple[PlannedTunnel, TunnelStatus]], gone: Iterable[TunnelStatus]
    ) -> None:
        metrics = self._metrics
        current = {(status.name, status.file_system_id): (plan, status) for plan, status in new}
        for labels in {(one.name, one.file_system_id) for one in gone} - current.keys():
            for gauge in (
                metrics.on_demand_up,
                metrics.on_demand_failed_over,
                metrics.holders,
                metrics.certificate_expiry,
            ):
                gauge.remove(*labels)
        for labels, (plan, status) in current.items():
            certificate = plan.certificate
            metrics.on_demand_up.labels(*labels).set(status.state == TunnelState.UP)
            metrics.on_demand_failed_over.labels(*labels).set(status.failed_over)
            metrics.holders.labels(*labels).set(status.holders)
            metrics.certificate_expiry.labels(*labels).set(
                certificate.not_after.timestamp() if certificate else math.nan
            )

    def _set(self, file_system: str, plan: PlannedTunnel, status: TunnelStatus) -> None:
        nearness = {candidate.address: candidate.nearness for candidate in plan.candidates}
        before = self._recorded.get(file_system)
        if before and (before.address, before.zone) != (status.address, status.zone):
            self._remove_mount_target(before)
            if status.failed_over and before.address in nearness:
                self._metrics.fail_overs.labels(file_system).inc()
        self._metrics.denied.labels(file_system).set(status.denied)
        if status.denied:
            # Absent instead of 0: nothing fails, so no alert must fire.
            self._metrics.up.remove(file_system)
        else:
            self._metrics.up.labels(file_system).set(status.state == TunnelState.UP)
        self._metrics.failed_over.labels(file_system).set(status.failed_over)
        if status.address:
            self._metrics.mount_target.labels(file_system, status.address, status.zone).set(1)
            near = nearness[status.address] <= Nearness.OWN_ZONE
            self._metrics.in_own_zone.labels(file_system).set(near)
        self._recorded[file_system] = status

    def _remove(self, file_system: str) -> None:
        self._metrics.up.remove(file_system)
        self._metrics.denied.remove(file_system)
        self._metrics.failed_over.remove(file_system)
        self._remove_mount_target(self._recorded.pop(file_system))

    def _remove_mount_target(self, status: TunnelStatus) -> None:
        if status.address:
            self._metrics.mount_target.remove(status.file_system_id, status.address, status.zone)
            self._metrics.in_own_zone.remove(status.file_system_id)


def _has_gauges(status: TunnelStatus) -> bool:
    """Whether it is a current tunnel of the ConfigMap."""
    return not status.leaving and not status.on_demand
