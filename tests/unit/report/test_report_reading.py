"""The content of a report about the objects of a cluster."""

from dataclasses import replace
from datetime import UTC, datetime

from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node

from kube_efs.kube.building import build_config_map
from kube_efs.kube.events import CONTROLLER, EventRecorder, EventType, Subject
from kube_efs.kube.usage_store import UsageStore
from kube_efs.model.claims import Claim, ClaimPhase, ReclaimPolicy, StorageClass
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.usage import OVER_REQUEST, TreeSize, VolumeUsage
from kube_efs.model.volumes import ClaimReference, CsiSource, NfsSource, Volume, VolumePhase
from kube_efs.report.reading import ReportObjects, describe, read_cluster
from kube_efs.report.values import EventReport, UsageReport
from kube_efs.tunnels.status import TunnelsStatus, TunnelState, TunnelStatus, render_status
from kube_efs.tunnels.status_config_map import NODE_KEY, STATUS_KEY

_TARGETS = """
efs_stunnel_targets:
  fs-b:
    stunnel_port: 20491
    mount_target_ip_by_subnet: {subnet-2: 10.0.1.4}
  fs-a:
    name: shared
    stunnel_port: 20490
    mount_target_ip_by_subnet: {subnet-2: 10.0.1.9, subnet-1: 10.0.0.9}
"""
_CLASS = StorageClass(name="efs-stunnel", provisioner="gnuthought.com/efs-stunnel")


def _config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name), data=data)


def _targets() -> ConfigMap:
    return _config_map("efs-stunnel", **{"efs-stunnel.yaml": _TARGETS, "zones.yaml": "subnet-1: us-east-1a"})


def _claim(name: str, **fields: object) -> Claim:
    values = {
        "namespace": "web",
        "name": name,
        "uid": ClaimUid(name),
        "storage_class": "efs-stunnel",
        **fields,
    }
    return Claim(**values)  # type: ignore[arg-type]  # the table's rows are right by construction


def _volume(name: str, **fields: object) -> Volume:
    values = {
        "name": name,
        "phase": VolumePhase.BOUND,
        "reclaim_policy": ReclaimPolicy.DELETE,
        "storage_class": "efs-stunnel",
        "file_system_id": "fs-a",
        "claim": ClaimReference(namespace="web", name=name),
        "nfs": NfsSource(server="127.0.0.1", path=f"/web/{name}"),
        "mount_options": ("port=20490",),
        **fields,
    }
    return Volume(**values)  # type: ignore[arg-type]  # the table's rows are right by construction


def test_file_systems_have_their_mount_targets_zones_and_volumes() -> None:
    state = ReportObjects(
        targets=_targets(),
        volumes=(_volume("one"), _volume("two"), _volume("root", storage_class="efs-stunnel-system")),
        warnings={},
    )
    shared, other = describe(state).file_systems
    assert (shared.file_system_id, shared.name, shared.port, shared.volumes) == ("fs-a", "shared", 20490, 2)
    assert [(target.zone, target.address) for target in shared.mount_targets] == [
        ("us-east-1a", "10.0.0.9"),
        ("", "10.0.1.9"),
    ]
    assert (other.file_system_id, other.volumes) == ("fs-b", 0)


def test_volumes_have_their_location_and_root_volumes_are_omitted() -> None:
    volumes = (
        _volume("ours"),
        _volume("root", storage_class="efs-stunnel-system"),
        _volume("foreign", file_system_id=None, nfs=NfsSource(server="nas.example.com", path="/x")),
        _volume("disk", file_system_id=None, nfs=None),
    )
    (report,) = describe(ReportObjects(targets=_targets(), volumes=volumes, warnings={})).volumes
    assert (report.name, report.claim, report.file_system_id, report.path, report.port) == (
        "ours",
        "web/ours",
        "fs-a",
        "/web/ours",
        20490,
    )


def test_directory_volume_has_its_group_id() -> None:
    source = NfsSource(server="fs-a.efs.us-east-1.amazonaws.com", path="/efs-pvc-1")
    volume = _volume("pvc-1", file_system_id=None, gid=40000, nfs=source, mount_options=("vers=4.1",))
    (report,) = describe(ReportObjects(targets=_targets(), volumes=(volume,), warnings={})).volumes
    assert (report.file_system_id, report.path, report.gid, report.port) == (
        "fs-a",
        "/efs-pvc-1",
        40000,
        None,
    )


def test_csi_volume_has_its_access_point() -> None:
    volumes = [
        _volume(
            name, file_system_id=None, nfs=None, mount_options=(), csi=CsiSource(driver=driver, handle=handle)
        )
        for name, driver, handle in (
            ("point", "efs.csi.aws.com", "efs:fs-0123abcd::fsap-0123abcd"),
            ("path", "efs.csi.aws.com", "fs-0123abcd:/teams/blue"),
            ("unreadable", "efs.csi.aws.com", "nonsense"),
            ("foreign", "ebs.csi.aws.com", "fs-0123abcd"),
        )
    ]
    found = describe(ReportObjects(targets=_targets(), volumes=tuple(volumes), warnings={})).volumes
    assert [(one.name, one.file_system_id, one.path, one.access_point_id) for one in found] == [
        ("path", "fs-0123abcd", "/teams/blue", ""),
        ("point", "fs-0123abcd", "/", "fsap-0123abcd"),
    ]


def test_reason_of_a_pending_claim_is_its_refusal_or_last_warning() -> None:
    claims = (
        _claim("refused", rejection="volume_name is missing"),
        _claim("waiting"),
        _claim("new"),
        _claim("served", phase=ClaimPhase.BOUND, volume_name="pv", rejection="once refused"),
        _claim("other", storage_class="gp3"),
    )
    state = ReportObjects(
        targets=_targets(),
        classes=(_CLASS, StorageClass(name="gp3", provisioner="ebs.csi.aws.com")),
        claims=claims,
        warnings={"waiting": "fs-z is not known (yet)", "served": "an old one"},
    )
    assert [
        (report.name, report.phase, report.volume, report.reason) for report in describe(state).claims
    ] == [
        ("new", "Pending", "", ""),
        ("refused", "Pending", "", "volume_name is missing"),
        ("served", "Bound", "pv", ""),
        ("waiting", "Pending", "", "fs-z is not known (yet)"),
    ]


def test_claims_of_a_renamed_provisioner_are_found_by_its_volumes() -> None:
    state = ReportObjects(
        targets=_targets(),
        classes=(StorageClass(name="fast", provisioner="example.com/efs"),),
        claims=(_claim("one", storage_class="fast"),),
        volumes=(_volume("root", storage_class="efs-stunnel-system", provisioned_by="example.com/efs"),),
        warnings={},
    )
    assert [report.name for report in describe(state).claims] == ["one"]


def test_claim_of_any_class_is_shown_if_kube_efs_published_an_event() -> None:
    state = ReportObjects(
        targets=_targets(),
        classes=(StorageClass(name="slow", provisioner="example.com/aws-efs"),),
        claims=(_claim("served", storage_class="slow"), _claim("foreign", storage_class="slow")),
        warnings={"served": "has no free group id left"},
        claims_with_events=frozenset({"served"}),
    )
    assert [(report.name, report.reason) for report in describe(state).claims] == [
        ("served", "has no free group id left")
    ]


def test_invalid_status_of_a_node_is_a_problem_of_that_node_only() -> None:
    tunnel = TunnelStatus(file_system_id="fs-a", port=20490, state=TunnelState.UP, address="10.0.0.9")
    status = render_status(TunnelsStatus(tunnels=(tunnel,), problems=("fs-x: no port",)), time="12:00")
    statuses = (
        _config_map("status-b", **{"node": "node-b", "tunnels.json": "{"}),
        _config_map("status-a", **{"node": "node-a", "tunnels.json": status}),
    )
    good, bad = describe(ReportObjects(targets=_targets(), statuses=statuses, warnings={})).nodes
    assert (good.node, good.time, good.tunnels, good.problems) == (
        "node-a",
        "12:00",
        (tunnel,),
        ("fs-x: no port",),
    )
    assert bad.node == "node-b"
    assert "tunnels.json" in bad.problems[0]


def test_report_without_kube_efs_has_a_problem() -> None:
    report = describe(ReportObjects(warnings={}))
    assert report.file_systems == ()
    assert "the ConfigMap efs-stunnel does not exist" in report.problems[0]


def test_invalid_entries_are_problems_and_valid_ones_are_shown() -> None:
    text = "efs_stunnel_targets: {fs-a: {stunnel_port: 20490}, '../x': {stunnel_port: 1}}"
    report = describe(
        ReportObjects(targets=_config_map("efs-stunnel", **{"efs-stunnel.yaml": text}), warnings={})
    )
    assert [one.file_system_id for one in report.file_systems] == ["fs-a"]
    assert report.problems[0].startswith("../x: ")


def test_measured_volume_has_its_usage() -> None:
    measured = VolumeUsage(
        size=TreeSize(used_bytes=2 * 1024**3, entries=7, complete=False),
        measured_at=datetime(2026, 11, 21, 12, 0, tzinfo=UTC),
        over=True,
    )
    volumes = (_volume("full", capacity="1Gi"), _volume("new", capacity="nonsense"))
    state = ReportObjects(targets=_targets(), volumes=volumes, warnings={}, usage={"full": measured})
    full, new = describe(state).volumes
    assert full.requested_bytes == 1024**3
    assert full.usage == UsageReport(
        used_bytes=2 * 1024**3, entries=7, complete=False, over=True, time="2026-11-21T12:00:00Z"
    )
    assert (new.requested_bytes, new.usage) == (None, None)


async def test_report_of_a_cluster_has_usage_and_events(kube: AsyncClient) -> None:
    usage = VolumeUsage(size=TreeSize(used_bytes=1, entries=1), measured_at=datetime(2026, 1, 1, tzinfo=UTC))
    await UsageStore(kube, "default").save({"one": usage})
    async with EventRecorder(kube, component=CONTROLLER) as recorder:
        claim = Subject(
            api_version="v1", kind="PersistentVolumeClaim", name="data", uid="u", namespace="default"
        )
        volume = Subject(api_version="v1", kind="PersistentVolume", name="pv", uid="v")
        recorder.publish(claim, EventType.WARNING, OVER_REQUEST, "2 GiB are in the volume")
        recorder.publish(volume, EventType.WARNING, "VolumeFailedDelete", "it is in use")
    async with EventRecorder(kube, component="somebody-else") as recorder:
        recorder.publish(claim, EventType.NORMAL, "Other", "of others")

    report = await read_cluster(kube, replace(OPENSHIFT_EFS_STUNNEL, namespace="default"))

    assert {(one.kind, one.name, one.reason, one.count) for one in report.events} == {
        ("PersistentVolumeClaim", "data", OVER_REQUEST, 1),
        ("PersistentVolume", "pv", "VolumeFailedDelete", 1),
    }
    assert all(one.time.endswith("Z") for one in report.events)


async def test_report_leaves_out_nodes_that_do_not_exist_any_more(kube: AsyncClient) -> None:
    names = replace(OPENSHIFT_EFS_STUNNEL, namespace="default")
    await kube.create(Node(metadata=ObjectMeta(name="one")))
    for node in ("one", "gone"):
        status = build_config_map(
            namespace="default",
            name=names.tunnel_status_of(node),
            labels=names.tunnel_status_labels,
            data={NODE_KEY: node, STATUS_KEY: render_status(TunnelsStatus(), time="2026-11-21T12:00:00Z")},
        )
        await kube.create(status)
    report = await read_cluster(kube, names)
    assert [one.node for one in report.nodes] == ["one"]


def test_report_has_only_the_newest_events() -> None:
    events = tuple(
        EventReport(
            time=f"2026-11-21T12:00:{number:02}Z",
            type="Normal",
            reason="Provisioning",
            kind="PersistentVolumeClaim",
            namespace="web",
            name=str(number),
            message="",
            count=1,
        )
        for number in reversed(range(30))
    )
    report = describe(ReportObjects(warnings={}, events=events))
    assert [one.name for one in report.events] == [str(number) for number in range(29, 9, -1)]
