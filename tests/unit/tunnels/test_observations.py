"""The state of tunnels: texts, JSON and metrics."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import InvalidValue, PortTaken
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels import observations
from kube_efs.tunnels.config_map import Served, apply_document
from kube_efs.tunnels.data_plane import DataPlaneReport, ServiceFacts, Traffic, TunnelService
from kube_efs.tunnels.mount_targets import NodeLocation, Reachability
from kube_efs.tunnels.observations import (
    MetricsRecorder,
    Observations,
    Statuses,
    TrafficRecorder,
    compute_status,
)
from kube_efs.tunnels.options import AMAZON_CA_FILE, TunnelOptions
from kube_efs.tunnels.plan import PlannedTunnel, plan_config_map_tunnels
from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.sockets.sock_diag import Flow
from kube_efs.tunnels.status import (
    TunnelsStatus,
    TunnelState,
    TunnelStatus,
    parse_status,
    render_status,
)

FS = FileSystemId("fs-1")
A, B = SubnetId("subnet-a"), SubnetId("subnet-b")
ZONE_A, ZONE_B = ZoneName("us-east-1a"), ZoneName("us-east-1b")
NEAR, FAR = "10.0.1.1", "10.0.2.1"
OPTIONS = TunnelOptions(
    region=Region("us-east-1"), location=NodeLocation(subnets=frozenset({A}), zone=ZONE_A)
)
SERVICE = TunnelService(
    name="fs-1",
    file_system_id=FS,
    port=20490,
    addresses=(NEAR,),
    check_host="fs-1.efs.us-east-1.amazonaws.com",
    ca_file=AMAZON_CA_FILE,
)
LOADED = DataPlaneReport(pids=(1,), loaded={"fs-1": SERVICE}, pid_by_service={"fs-1": 1})
ANSWERED = {"fs-1": ProbeResult(ok=True, seconds=0.002)}
SILENT = {"fs-1": ProbeResult(ok=False, seconds=8, reason="no answer within 8 s")}


def document(fs: FileSystemId = FS, addresses: dict[SubnetId, str] | None = None) -> TunnelTargets:
    addresses = {A: NEAR, B: FAR} if addresses is None else addresses
    target = TunnelTarget(file_system_id=fs, port=20490, address_by_subnet=addresses)
    return TunnelTargets(targets={fs: target}, zone_by_subnet={A: ZONE_A, B: ZONE_B})


def plan(*documents: TunnelTargets, down: frozenset[str] = frozenset()) -> tuple[PlannedTunnel, ...]:
    served = Served()
    for one in documents or (document(),):
        served = apply_document(served, one, ())
    return plan_config_map_tunnels(served, Reachability(down=down), OPTIONS)


def described(report: DataPlaneReport = LOADED, seen: Observations | None = None) -> TunnelStatus:
    [tunnel] = plan()
    return compute_status(tunnel, report, seen or Observations(probes=ANSWERED))


def test_status_is_computed_again_only_after_a_change_of_its_inputs() -> None:
    statuses, seen = Statuses(), Observations(probes=ANSWERED)
    [tunnel] = plan()
    [first] = statuses.compute([tunnel], LOADED, seen)
    assert statuses.compute([tunnel], replace(LOADED, pids=(1, 2)), replace(seen)) == (first,)
    assert statuses.compute([tunnel], LOADED, seen)[0] is first
    changes: list[tuple[DataPlaneReport, Observations]] = [
        (LOADED, replace(seen, connections={tunnel.target.port: 7})),
        (LOADED, replace(seen, probes={})),
        (LOADED, replace(seen, facts={"fs-1": ServiceFacts(tls_version="TLSv1.3")})),
        (LOADED, replace(seen, renewals={"fs-1": "certificate not renewed: x"})),
        (replace(LOADED, pid_by_service={"fs-1": 4711}), seen),
        (replace(LOADED, loaded={}), seen),
        (replace(LOADED, left_out={"fs-1": PortTaken("is taken", field="stunnel_port", value=20490)}), seen),
    ]
    for report, observed in changes:
        [found] = statuses.compute([tunnel], report, observed)
        assert found == compute_status(tunnel, report, observed)
        assert found != first


def test_change_of_one_tunnel_computes_one_status(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [FileSystemId(f"fs-{number}") for number in range(100)]
    served = Served(
        document=TunnelTargets(
            targets={
                name: TunnelTarget(file_system_id=name, port=20490 + number, address_by_subnet={A: NEAR})
                for number, name in enumerate(names)
            }
        )
    )
    tunnels = plan_config_map_tunnels(served, Reachability(), OPTIONS)
    seen = Observations(probes=dict.fromkeys(names, ANSWERED["fs-1"]))
    statuses = Statuses()
    before = statuses.compute(tunnels, LOADED, seen)
    computed: list[str] = []

    def counted(tunnel: PlannedTunnel, report: DataPlaneReport, seen: Observations) -> TunnelStatus:
        computed.append(tunnel.target.file_system_id)
        return compute_status(tunnel, report, seen)

    monkeypatch.setattr(observations, "compute_status", counted)
    assert statuses.compute(tunnels, LOADED, replace(seen, probes={**seen.probes})) is before
    probes = {**seen.probes, names[7]: SILENT["fs-1"]}
    statuses.compute(tunnels, LOADED, replace(seen, probes=probes))
    changed = (*tunnels[:3], replace(tunnels[3], leaving=True), *tunnels[5:])
    statuses.compute(changed, LOADED, replace(seen, probes=probes))
    assert computed == [names[7], names[3]]


@pytest.mark.parametrize(
    ("report", "seen", "state", "reason"),
    [
        pytest.param(LOADED, Observations(probes=ANSWERED), TunnelState.UP, "", id="answered"),
        pytest.param(LOADED, Observations(), TunnelState.STARTING, "", id="not probed yet"),
        pytest.param(
            DataPlaneReport(), Observations(probes=ANSWERED), TunnelState.STARTING, "", id="stunnel gone"
        ),
        pytest.param(
            LOADED, Observations(probes=SILENT), TunnelState.DOWN, "no answer within 8 s", id="not answered"
        ),
        pytest.param(
            LOADED,
            Observations(probes=SILENT, facts={"fs-1": ServiceFacts(reason="the certificate is bad")}),
            TunnelState.DOWN,
            "the certificate is bad",
            id="reason from the log",
        ),
        pytest.param(
            DataPlaneReport(
                pids=(1,), left_out={"fs-1": PortTaken("is taken", field="stunnel_port", value=20490)}
            ),
            Observations(),
            TunnelState.REJECTED,
            "stunnel_port: 20490 is taken",
            id="ignored",
        ),
    ],
)
def test_tunnel_has_one_state_and_its_reason(
    report: DataPlaneReport, seen: Observations, state: TunnelState, reason: str
) -> None:
    found = described(report, seen)
    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize(
    ("down", "used", "address", "zone", "failed_over"),
    [
        pytest.param(set(), "", NEAR, ZONE_A, False, id="nearest before any connection"),
        pytest.param({NEAR}, "", FAR, ZONE_B, True, id="another when the nearest is down"),
        pytest.param(set(), FAR, FAR, ZONE_B, True, id="address used by stunnel"),
        pytest.param(set(), "10.9.9.9", NEAR, ZONE_A, False, id="removed address"),
    ],
)
def test_status_has_the_mount_target_in_use(
    *, down: set[str], used: str, address: str, zone: str, failed_over: bool
) -> None:
    [tunnel] = plan(down=frozenset(down))
    seen = Observations(probes=ANSWERED, facts={"fs-1": ServiceFacts(address=used)})
    found = compute_status(tunnel, LOADED, seen)
    assert (found.address, found.zone, found.failed_over) == (address, zone, failed_over)


def test_status_has_tls_facts_connections_and_the_probe() -> None:
    facts = ServiceFacts(address=NEAR, tls_version="TLSv1.3", cipher="TLS_AES", peer="CN=x")
    found = described(seen=Observations(probes=ANSWERED, facts={"fs-1": facts}, connections={20490: 3}))
    assert (found.tls_version, found.cipher, found.peer) == ("TLSv1.3", "TLS_AES", "CN=x")
    assert (found.connections, found.probe_seconds) == (3, 0.002)


def test_status_has_the_process_of_its_data_plane() -> None:
    assert (described().stunnel_pid, described().relay_pid) == (1, None)
    relayed = replace(LOADED, pids=(), relay_pid=1)
    assert (described(relayed).stunnel_pid, described(relayed).relay_pid) == (None, 1)


def test_traffic_is_counted_across_restarts_of_the_relay() -> None:
    registry = CollectorRegistry()
    recorder = TrafficRecorder(TunnelMetrics(registry))

    def value(name: str) -> float | None:
        return registry.get_sample_value(
            f"kube_efs_tunnel_{name}_total", {"tunnel": "fs-1", "file_system": FS}
        )

    for connections, sent, received in ((1, 10, 100), (2, 30, 100), (1, 5, 7)):
        traffic = Traffic(connections=connections, sent_bytes=sent, received_bytes=received)
        recorder.record([SERVICE], {"fs-1": ServiceFacts(traffic=traffic)})
    assert (value("connections"), value("sent_bytes"), value("received_bytes")) == (3, 35, 107)

    recorder.record([SERVICE], {"fs-1": ServiceFacts()})  # stunnel serves it now
    assert value("connections") is None


def test_traffic_of_the_relay_does_not_count_again_when_stunnel_gets_the_port() -> None:
    registry = CollectorRegistry()
    recorder = TrafficRecorder(TunnelMetrics(registry))
    by_relay = ServiceFacts(traffic=Traffic(connections=1, sent_bytes=1500, received_bytes=0))
    recorder.add([], {20490})
    recorder.add([_flow(1, sent=0, received=1000)], {20490})
    assert recorder.record([SERVICE], {"fs-1": by_relay}) == {"fs-1": by_relay.traffic}
    recorder.add([], {20490})
    assert recorder.record([SERVICE], {"fs-1": ServiceFacts()}) == {}


def _flow(client: int, *, sent: int, received: int, port: int = 20490) -> Flow:
    return Flow(
        local_port=port, remote_port=client, sent_bytes=sent, received_bytes=received, seconds_ago=0.0
    )


def test_traffic_of_stunnel_is_that_of_its_connections() -> None:
    recorder = TrafficRecorder(TunnelMetrics(CollectorRegistry()))

    def after(*flows: Flow) -> Traffic:
        recorder.add(flows, {20490})
        return recorder.record([SERVICE], {"fs-1": ServiceFacts()})["fs-1"]

    # What connections of an earlier agent have carried was counted by that.
    recorder.add([_flow(8, sent=1000, received=1000)], {20490})
    # stunnel has sent to a mount what came from the mount target.
    first = after(_flow(1, sent=70, received=5), _flow(9, sent=1, received=1, port=443))
    assert first == Traffic(connections=1, sent_bytes=5, received_bytes=70)
    assert (
        after(_flow(1, sent=70, received=5)) is first
    )  # the same object, so that its status is not computed
    assert after(_flow(1, sent=90, received=5), _flow(2, sent=1, received=2)) == Traffic(
        connections=2, sent_bytes=7, received_bytes=91
    )
    # Both have ended, and the ports of one are used again.
    assert after(_flow(1, sent=3, received=4)) == Traffic(connections=3, sent_bytes=11, received_bytes=94)


def test_connection_of_an_earlier_agent_counts_from_the_first_reading() -> None:
    recorder = TrafficRecorder(TunnelMetrics(CollectorRegistry()))
    recorder.add([_flow(1, sent=1000, received=500)], {20490})
    assert recorder.record([SERVICE], {}) == {}
    recorder.add([_flow(1, sent=1007, received=503)], {20490})
    assert recorder.record([SERVICE], {}) == {"fs-1": Traffic(connections=0, sent_bytes=3, received_bytes=7)}


def test_traffic_of_a_closed_tunnel_is_forgotten() -> None:
    recorder = TrafficRecorder(TunnelMetrics(CollectorRegistry()))
    recorder.add([], {20490})
    recorder.add([_flow(1, sent=70, received=5)], {20490})
    assert recorder.record([SERVICE], {})
    recorder.add([], ())
    assert recorder.record([SERVICE], {}) == {}


def test_traffic_is_part_of_the_status() -> None:
    traffic = {"fs-1": Traffic(connections=1, sent_bytes=5, received_bytes=70)}
    found = described(seen=Observations(probes=ANSWERED, traffic=traffic))
    assert (found.sent_bytes, found.received_bytes) == (5, 70)
    assert (described().sent_bytes, described().received_bytes) == (None, None)


def test_notes_name_the_data_plane_and_relays_that_end() -> None:
    status = TunnelsStatus(data_plane="stunnel", data_plane_reason="no TLS", leaving_relay_pids=(7,))
    assert status.notes == ("new tunnels use stunnel: no TLS", "relay 7 ends with its last connection")
    assert TunnelsStatus(data_plane="kernel", relay_pid=8).notes == ()


def test_tunnel_without_a_mount_target_has_no_service() -> None:
    [tunnel] = plan(document(addresses={}))
    assert tunnel.service is None
    found = compute_status(tunnel, DataPlaneReport(), Observations())
    assert (found.state, found.reason) == (
        TunnelState.NO_MOUNT_TARGET,
        "the file system has no usable mount target",
    )


def test_lingering_tunnel_has_its_own_name_and_the_new_one_waits() -> None:
    old, new = plan(document(), document(FileSystemId("fs-2")))
    assert old.service is not None
    assert (old.service.name, old.leaving) == ("fs-1-20490", True)
    assert new.service is None
    found = compute_status(new, DataPlaneReport(), Observations())
    assert (found.state, found.reason) == (TunnelState.REJECTED, "port 20490 still belongs to fs-1")


STATUS = TunnelsStatus(
    tunnels=(TunnelStatus(file_system_id="fs-1", port=20490, state=TunnelState.UP, probe_seconds=0.1),),
    problems=("fs-2: bad",),
    stunnel_pid=7,
)


def test_written_status_is_read_back() -> None:
    assert parse_status(render_status(STATUS, time="2026-11-21T08:00:00Z")) == (
        STATUS,
        "2026-11-21T08:00:00Z",
    )


def test_written_status_contains_no_default_values() -> None:
    (tunnel,) = json.loads(render_status(STATUS))["tunnels"]
    assert tunnel == {"file_system_id": "fs-1", "port": 20490, "state": "up", "probe_seconds": 0.1}


def test_fields_of_later_versions_are_ignored() -> None:
    body = json.loads(render_status(STATUS))
    body["tunnels"][0]["colour"] = "green"
    body["weather"] = "fine"
    assert parse_status(json.dumps(body)) == (STATUS, "")


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"tunnels": [{}]}', "{"])
def test_invalid_status_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"tunnels.json: .* ?is not a status of tunnels"):
        parse_status(text)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c))
)
def test_any_json_gives_a_status_or_a_typed_error(value: object) -> None:
    body = {"tunnels": [value], "problems": value, "stunnel_pid": value, "time": value}
    with pytest.raises(InvalidValue):
        parse_status(json.dumps(body))


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.recorder = MetricsRecorder(TunnelMetrics(self.registry))
        [self.plan] = plan()
        self.status = described()

    def record(self, **changes: object) -> None:
        self.recorder.record([(self.plan, replace(self.status, **changes))])  # type: ignore[arg-type]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kube_efs_tunnel_{name}", {"file_system": "fs-1", **labels})


def test_metrics_follow_a_fail_over_and_its_end() -> None:
    metrics = Metrics()
    metrics.record()
    assert metrics.value("up") == 1
    assert metrics.value("in_own_zone") == 1
    assert metrics.value("mount_target", address=NEAR, zone=ZONE_A) == 1
    assert metrics.value("failed_over") == 0
    metrics.record(address=FAR, zone=ZONE_B, failed_over=True)
    assert metrics.value("failed_over") == 1
    assert metrics.value("in_own_zone") == 0
    assert metrics.value("mount_target", address=NEAR, zone=ZONE_A) is None
    assert metrics.value("fail_overs_total") == 1
    metrics.record()
    assert metrics.value("failed_over") == 0
    assert metrics.value("fail_overs_total") == 1
    assert metrics.value("mount_target", address=FAR, zone=ZONE_B) is None


def test_metrics_of_removed_tunnels_are_removed() -> None:
    metrics = Metrics()
    metrics.record()
    metrics.recorder.record([])
    assert metrics.value("up") is None
    assert metrics.value("failed_over") is None
    assert metrics.value("in_own_zone") is None
    assert metrics.value("mount_target", address=NEAR, zone=ZONE_A) is None


def test_tunnel_without_mount_targets_has_no_address_and_is_down() -> None:
    metrics = Metrics()
    metrics.record()
    metrics.record(state=TunnelState.NO_MOUNT_TARGET, address="", zone="")
    assert metrics.value("up") == 0
    assert metrics.value("in_own_zone") is None


def test_only_a_new_status_sets_metrics() -> None:
    metrics = Metrics()
    metrics.recorder.record([(metrics.plan, metrics.status)])
    up = metrics.recorder._metrics.up
    up.clear()
    metrics.recorder.record([(metrics.plan, metrics.status)])
    assert metrics.value("up") is None
    metrics.record()
    assert metrics.value("up") == 1


def test_lingering_tunnel_has_no_metrics() -> None:
    metrics = Metrics()
    metrics.record(leaving=True)
    assert metrics.value("up") is None


@pytest.mark.parametrize(
    ("seen", "state", "reason"),
    [
        (Observations(probes=ANSWERED), TunnelState.UP, "certificate not renewed: x"),
        (Observations(probes=SILENT), TunnelState.DOWN, "no answer within 8 s; certificate not renewed: x"),
    ],
)
def test_status_reports_a_certificate_that_is_not_renewed(
    seen: Observations, state: TunnelState, reason: str
) -> None:
    found = described(seen=replace(seen, renewals={"fs-1": "certificate not renewed: x"}))
    assert (found.state, found.reason) == (state, reason)
