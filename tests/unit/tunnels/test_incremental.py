"""What the agent computes only for changed inputs is what a computation of everything gives.

Random events change the inputs as the agent does. Some make equal inputs again: other objects must not
change a result.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from prometheus_client import CollectorRegistry

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import KubeEfsError, PortTaken, TunnelNotReady
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels import config_map
from kube_efs.tunnels.config_map import Served, apply_document, drop_lingering
from kube_efs.tunnels.data_plane import (
    CertificateFile,
    DataPlaneReport,
    ServiceFacts,
    Traffic,
    TunnelService,
)
from kube_efs.tunnels.data_planes import DataPlanes
from kube_efs.tunnels.mount_targets import NodeLocation, Reachability
from kube_efs.tunnels.observations import MetricsRecorder, Observations, Statuses, compute_status
from kube_efs.tunnels.on_demand import store
from kube_efs.tunnels.options import AMAZON_CA_FILE, TunnelOptions
from kube_efs.tunnels.plan import NodePlan
from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.reservations import Holder, PortRange, Reservations, TunnelSpec

A, B = SubnetId("subnet-a"), SubnetId("subnet-b")
ZONES = {A: ZoneName("us-east-1a"), B: ZoneName("us-east-1b")}
ADDRESSES = ("10.0.1.1", "10.0.2.1", "10.0.1.2", "10.0.2.2")
FILE_SYSTEMS = tuple(FileSystemId(f"fs-{number}") for number in range(3))
# One range for all, so that the ports of both kinds of tunnels collide.
PORTS = PortRange(first=20490, last=20494)
SPECS = (
    *(TunnelSpec(file_system_id=one) for one in FILE_SYSTEMS),
    TunnelSpec(file_system_id=FILE_SYSTEMS[0], iam=IamOptions(), ca_file="/ca.pem"),
    TunnelSpec(file_system_id=FILE_SYSTEMS[1], cross_account=True),  # the zone's ID is not known
)
HOLDERS = (Holder("a"), Holder("b"))
OPTIONS = TunnelOptions(
    region=Region("us-east-1"),
    location=NodeLocation(subnets=frozenset({A}), zone=ZONES[A]),
    hashed_directories=frozenset({Path(f"{AMAZON_CA_FILE}.d")}),
)
TIME = datetime(2026, 1, 31, tzinfo=UTC)

NUMBER = st.integers(0, 4)
SPEC = st.sampled_from(SPECS)
TARGETS = st.dictionaries(
    st.sampled_from(FILE_SYSTEMS),
    st.tuples(st.sampled_from(range(PORTS.first, PORTS.last + 1)), st.sets(st.integers(0, 3), max_size=2)),
    max_size=3,
)


class Loaded:
    """Remembers the services; replaces the data planes."""

    def __init__(self) -> None:
        self.services: dict[str, TunnelService] = {}

    def set_services(self, services: Iterable[TunnelService]) -> None:
        self.services = {service.name: service for service in services}


def new_plan() -> tuple[NodePlan, Loaded]:
    loaded = Loaded()
    return NodePlan(OPTIONS, TunnelMetrics(CollectorRegistry()), cast("DataPlanes", loaded)), loaded


def gauges(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], str]:
    """The values without those that count changes, as text because of NaN."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): str(sample.value)
        for metric in registry.collect()
        if metric.type == "gauge"
        for sample in metric.samples
    }


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plan, self.loaded = new_plan()
        self.certificates: dict[str, CertificateFile] = {}
        self.plan.certificates = self.certificates
        self.report, self.seen = DataPlaneReport(), Observations()
        self.statuses = Statuses()
        self.registry = CollectorRegistry()
        self.recorder = MetricsRecorder(TunnelMetrics(self.registry))
        self.is_full = False
        self.texts, self.entries = config_map.new_texts(), store.new_entries()

    @initialize()
    def start(self) -> None:
        self.get_document(
            {name: (PORTS.first + n, {0, 1}) for n, name in enumerate(FILE_SYSTEMS)}, set(), zones=True
        )
        for spec in SPECS[:2]:
            self.hold(spec, HOLDERS[0])
        for spec in SPECS:
            self.renew_certificate(spec, 0)
        self.plan.apply()
        self.load(0)

    @rule(entries=TARGETS, unused=st.sets(st.sampled_from(FILE_SYSTEMS)), zones=st.booleans())
    def get_document(
        self, entries: dict[FileSystemId, tuple[int, set[int]]], unused: set[FileSystemId], *, zones: bool
    ) -> None:
        ports: dict[int, TunnelTarget] = {}
        for name, (port, numbers) in entries.items():
            by_subnet = {(A, B)[number % 2]: ADDRESSES[number] for number in numbers}
            ports[port] = TunnelTarget(file_system_id=name, port=port, address_by_subnet=by_subnet)
        found = {one.file_system_id: one for one in ports.values()}
        document = TunnelTargets(
            targets=found, zone_by_subnet=ZONES if zones else {}, unused=frozenset(unused & found.keys())
        )
        self.plan.served = apply_document(self.plan.served or Served(), document, ())

    @rule()
    def make_document_again(self) -> None:
        if served := self.plan.served:
            targets = {name: replace(one) for name, one in served.document.targets.items()}
            self.plan.served = replace(served, document=replace(served.document, targets=targets))

    @rule(ports=st.sets(st.sampled_from(range(PORTS.first, PORTS.last + 1))))
    def drop_lingering_targets(self, ports: set[int]) -> None:
        self.plan.served = drop_lingering(self.plan.served or Served(), ports)

    @rule(down=st.sets(st.sampled_from(ADDRESSES)))
    def lose_mount_targets(self, down: set[str]) -> None:
        self.plan.reachability = Reachability(down=frozenset(down))

    @rule(is_full=st.booleans())
    def fill_disk(self, *, is_full: bool) -> None:
        self.is_full = is_full

    def _change(self, wanted: Reservations) -> None:
        self.plan.wanted = wanted
        if not self.is_full:
            self.plan.reservations = wanted

    @rule(spec=SPEC, holder=st.sampled_from(HOLDERS))
    def hold(self, spec: TunnelSpec, holder: Holder) -> None:
        avoid = self.plan.config_map_ports
        if spec.name in self.plan.wanted.tunnels or len(avoid | self.plan.on_demand_ports) < len(PORTS):
            self._change(self.plan.wanted.hold(spec, holder, ports=PORTS, avoid=avoid))

    @rule(spec=SPEC)
    def make_reservation_again(self, spec: TunnelSpec) -> None:
        if spec.name in self.plan.wanted.tunnels:
            self._change(self.plan.wanted.sign_from(spec.name, None))

    @rule(holders=st.sets(st.sampled_from(HOLDERS)), specs=st.sets(SPEC))
    def release_and_close(self, holders: set[Holder], specs: set[TunnelSpec]) -> None:
        self._change(self.plan.wanted.release(holders).close({one.name for one in specs}))

    @rule(spec=SPEC)
    def give_up_port(self, spec: TunnelSpec) -> None:
        others = (one for name, one in self.plan.wanted.tunnels.items() if name != spec.name)
        self._change(Reservations.of(others))

    @rule(spec=SPEC, serial=NUMBER)
    def renew_certificate(self, spec: TunnelSpec, serial: int) -> None:
        self.certificates[spec.name] = CertificateFile(
            path=Path("/c.pem"), serial=serial, not_after=TIME + timedelta(days=serial)
        )

    @rule(spec=SPEC)
    def forget_certificate(self, spec: TunnelSpec) -> None:
        self.certificates.pop(spec.name, None)

    @rule(seed=st.integers(0, 2**32))
    def load(self, seed: int) -> None:
        """The data planes load some services, and a process of them may be another one."""
        dice = random.Random(seed)
        services = {name: one for name, one in self.loaded.services.items() if dice.random() < 0.8}
        left_out: dict[str, KubeEfsError] = {
            name: dice.choice([PortTaken, TunnelNotReady])("is left out")
            for name in self.loaded.services.keys() - services.keys()
            if dice.random() < 0.5
        }
        relay = dice.choice([None, 4711, 4712])
        self.report = DataPlaneReport(
            pids=(815,),
            relay_pid=relay,
            loaded=services,
            pid_by_service={name: dice.choice([815, relay or 816]) for name in services},
            left_out=left_out,
        )

    @rule(seed=st.integers(0, 2**32))
    def observe(self, seed: int) -> None:
        dice = random.Random(seed)
        names = [*FILE_SYSTEMS, *(one.name for one in SPECS)]
        some = [name for name in names if dice.random() < 0.5]
        answers = [
            ProbeResult(ok=True, seconds=0.002),
            ProbeResult(ok=False, seconds=8, reason="no answer"),
            ProbeResult(ok=False, seconds=1, reason="denied", is_denied=True),
        ]
        facts = [ServiceFacts(address=one, reason="x") for one in ADDRESSES]
        seen = self.seen
        changes = Observations(
            probes={**seen.probes, **{name: dice.choice(answers) for name in some}},
            facts={**seen.facts, **{name: dice.choice(facts) for name in some}},
            connections={port: dice.randrange(3) for port in range(PORTS.first, PORTS.last) if some},
            renewals={name: "not renewed" for name in some if dice.random() < 0.2},
            traffic={name: Traffic(sent_bytes=dice.randrange(2)) for name in some},
        )
        part = dice.choice(["probes", "facts", "connections", "renewals", "traffic"])
        self.seen = replace(seen, **{part: getattr(changes, part)})

    @invariant()
    def plan_is_that_of_all_inputs(self) -> None:
        self.plan.apply()
        whole, loaded = new_plan()
        for name in ("served", "reservations", "wanted", "certificates", "reachability"):
            setattr(whole, name, getattr(self.plan, name))
        whole.apply()
        assert self.plan.tunnels == whole.tunnels
        assert self.plan.services == self.loaded.services == loaded.services
        # The comparison of services leaves this out.
        for name, service in loaded.services.items():
            assert self.loaded.services[name].hashed_ca_directory == service.hashed_ca_directory

    @invariant()
    def statuses_and_gauges_are_those_of_all_inputs(self) -> None:
        found = self.statuses.compute(self.plan.tunnels, self.report, self.seen)
        assert found == tuple(compute_status(one, self.report, self.seen) for one in self.plan.tunnels)
        self.recorder.record(zip(self.plan.tunnels, found, strict=True))
        registry = CollectorRegistry()
        MetricsRecorder(TunnelMetrics(registry)).record(zip(self.plan.tunnels, found, strict=True))
        assert gauges(self.registry) == gauges(registry)

    @invariant()
    def stored_texts_are_those_of_all_inputs(self) -> None:
        targets, tunnels = self.plan.targets.targets, self.plan.wanted.tunnels
        assert self.texts.results(targets) == config_map.new_texts().results(targets)
        assert self.entries.results(tunnels) == store.new_entries().results(tunnels)


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=settings().max_examples // 4)
