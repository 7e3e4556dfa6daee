"""The mount targets of a tunnel on demand; what a change of the plan's inputs changes."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import S3FilesTargets, TunnelTarget, TunnelTargets
from kube_efs.model.errors import InvalidSetting, TunnelNotReady
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.config_map import Served
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.data_planes import DataPlanes
from kube_efs.tunnels.mount_targets import Candidate, Nearness, NodeLocation, Reachability
from kube_efs.tunnels.on_demand.tunnels import check_resolvable
from kube_efs.tunnels.options import AMAZON_CA_FILE, TunnelOptions
from kube_efs.tunnels.plan import (
    NodePlan,
    find_candidates,
    plan_config_map_tunnels,
    plan_on_demand_tunnel,
    server_name,
)
from kube_efs.tunnels.reservations import Holder, Reservation, Reservations, TunnelSpec

FS = FileSystemId("fs-1")
A, B, C = SubnetId("subnet-a"), SubnetId("subnet-b"), SubnetId("subnet-c")
KNOWN = TunnelTargets(
    targets={
        FS: TunnelTarget(
            file_system_id=FS, port=20490, address_by_subnet={A: "10.0.0.1", B: "10.0.1.1", C: "10.0.2.1"}
        )
    },
    zone_by_subnet={A: ZoneName("us-east-1a"), B: ZoneName("us-east-1b"), C: ZoneName("us-east-1c")},
)
OPTIONS = TunnelOptions(
    region=Region("us-east-1"),
    location=NodeLocation(subnets=frozenset({B}), zone=ZoneName("us-east-1b"), zone_id=ZoneName("use1-az2")),
    conf_path=Path("/run/stunnel.conf"),
)
SYSTEM = Path("/system.pem")
NAME = "fs-1.efs.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("wanted", "targets", "addresses"),
    [
        pytest.param({}, KNOWN, ["10.0.1.1", "10.0.0.1", "10.0.2.1"], id="known: the nearest first"),
        pytest.param(
            {"zone": "us-east-1c"},
            KNOWN,
            ["10.0.2.1", "10.0.0.1", "10.0.1.1"],
            id="known: the requested zone first",
        ),
        pytest.param({"address": "10.9.9.9"}, KNOWN, ["10.9.9.9"], id="address: only this one"),
        pytest.param({"address": "fd00::9"}, KNOWN, ["fd00::9"], id="IPv6 address"),
        pytest.param({}, TunnelTargets(), [NAME], id="unknown: DNS name"),
        pytest.param(
            {"zone": "us-east-1c"}, TunnelTargets(), [f"us-east-1c.{NAME}"], id="unknown: the zone's name"
        ),
        pytest.param(
            {"cross_account": True}, KNOWN, [f"use1-az2.{NAME}"], id="another account: the zone's id"
        ),
        pytest.param(
            {"region": "cn-north-1"},
            KNOWN,
            ["fs-1.efs.cn-north-1.amazonaws.com.cn"],
            id="another region: its name",
        ),
        pytest.param(
            {"region": "us-east-1"}, KNOWN, ["10.0.1.1", "10.0.0.1", "10.0.2.1"], id="own region, named"
        ),
    ],
)
def test_mount_targets_are_selected_for_a_spec(
    wanted: dict[str, Any], targets: TunnelTargets, addresses: list[str]
) -> None:
    spec = TunnelSpec(file_system_id=FS, **wanted)
    assert [one.address for one in find_candidates(spec, targets, OPTIONS)] == addresses


S3_NAME = "fs-1.s3files.us-east-1.on.aws"
S3_KNOWN = TunnelTargets(
    s3_files=S3FilesTargets(
        addresses={FS: {ZoneName("use1-az1"): "10.0.0.1", ZoneName("use1-az2"): "10.0.1.1"}},
        zone_ids={ZoneName("us-east-1b"): ZoneName("use1-az2")},
    )
)


def s3_spec(**wanted: Any) -> TunnelSpec:
    return TunnelSpec(file_system_id=FS, kind=FileSystemKind.S3_FILES, iam=IamOptions(), **wanted)


@pytest.mark.parametrize(
    ("wanted", "targets", "addresses"),
    [
        pytest.param({}, S3_KNOWN, ["10.0.1.1", "10.0.0.1"], id="known: the own zone first"),
        pytest.param({"zone": "use1-az1"}, S3_KNOWN, ["10.0.0.1", "10.0.1.1"], id="known: azid"),
        pytest.param({"address": "10.9.9.9"}, S3_KNOWN, ["10.9.9.9"], id="address: only this one"),
        pytest.param({}, TunnelTargets(), [f"use1-az2.{S3_NAME}"], id="unknown: the zone's ID"),
        pytest.param({"zone": "use1-az6"}, TunnelTargets(), [f"use1-az6.{S3_NAME}"], id="unknown: azid"),
        pytest.param({}, KNOWN, [f"use1-az2.{S3_NAME}"], id="mount targets of EFS are not used"),
        pytest.param(
            {"region": "cn-north-1"},
            S3_KNOWN,
            ["use1-az2.fs-1.s3files.cn-north-1.on.amazonwebservices.com.cn"],
            id="another region: its name",
        ),
    ],
)
def test_mount_targets_of_s3_files_are_those_of_zone_ids(
    wanted: dict[str, Any], targets: TunnelTargets, addresses: list[str]
) -> None:
    assert [one.address for one in find_candidates(s3_spec(**wanted), targets, OPTIONS)] == addresses


def test_zone_id_comes_from_the_name_of_the_zone_if_the_node_does_not_know_it() -> None:
    options = replace(OPTIONS, location=NodeLocation(zone=ZoneName("us-east-1b")))
    zones = TunnelTargets(s3_files=S3FilesTargets(zone_ids=S3_KNOWN.s3_files.zone_ids))
    assert [one.address for one in find_candidates(s3_spec(), zones, options)] == [f"use1-az2.{S3_NAME}"]
    known = find_candidates(s3_spec(), S3_KNOWN, options)
    assert [one.nearness for one in known] == [Nearness.OWN_ZONE, Nearness.OTHER_ZONE]


def test_node_without_a_zone_id_is_told_the_settings_that_help() -> None:
    options = replace(OPTIONS, location=NodeLocation(zone=ZoneName("us-east-1c")))
    with pytest.raises(InvalidSetting, match=r"KUBE_EFS_ZONE_ID: is not set, .*azid or mounttargetip"):
        find_candidates(s3_spec(), TunnelTargets(), options)
    # With known addresses, any mount target is better than none.
    assert len(find_candidates(s3_spec(), S3_KNOWN, options)) == 2


def test_certificate_of_s3_files_has_the_name_without_the_zone() -> None:
    options = replace(OPTIONS, dns_suffix="example.com")
    assert server_name(s3_spec(), options) == S3_NAME, "the suffix in the settings is that of EFS"
    assert server_name(s3_spec(zone=ZoneName("use1-az1")), OPTIONS) == S3_NAME


def test_known_file_system_without_mount_targets_is_resolved_by_dns() -> None:
    empty = TunnelTargets(targets=MappingProxyType({FS: TunnelTarget(file_system_id=FS, port=20490)}))
    assert [one.address for one in find_candidates(TunnelSpec(file_system_id=FS), empty, OPTIONS)] == [NAME]


def test_file_system_of_another_account_needs_the_zone_id() -> None:
    options = replace(OPTIONS, location=NodeLocation(zone=ZoneName("us-east-1b")))
    with pytest.raises(InvalidSetting, match=r"KUBE_EFS_ZONE_ID: is not set .*use1-az1"):
        find_candidates(TunnelSpec(file_system_id=FS, cross_account=True), KNOWN, options)


@pytest.mark.parametrize(
    "wanted", [{}, {"zone": "us-east-1c"}, {"address": "10.9.9.9"}, {"cross_account": True}]
)
def test_certificate_must_have_the_name_of_the_file_system(wanted: dict[str, Any]) -> None:
    assert server_name(TunnelSpec(file_system_id=FS, **wanted), OPTIONS) == NAME


def test_configured_dns_suffix_applies_to_the_own_region_only() -> None:
    options = replace(OPTIONS, dns_suffix="example.com")
    assert server_name(TunnelSpec(file_system_id=FS), options) == "fs-1.efs.us-east-1.example.com"
    other = TunnelSpec(file_system_id=FS, region=Region("us-west-2"))
    assert server_name(other, options) == "fs-1.efs.us-west-2.amazonaws.com"


async def test_name_that_dns_does_not_resolve_is_an_error() -> None:
    name = f"{FS}.efs.us-east-1.invalid"
    candidate = Candidate(address=name, subnet_id=SubnetId(""), zone=None, nearness=Nearness.OTHER_ZONE)
    with pytest.raises(TunnelNotReady) as failed:
        await check_resolvable(candidate)
    assert failed.value.value == name
    await check_resolvable(replace(candidate, address="10.0.0.1"))
    await check_resolvable(replace(candidate, address="localhost"))


@pytest.mark.parametrize(
    ("region", "configured", "expected"),
    [
        pytest.param("us-east-1", None, AMAZON_CA_FILE, id="Amazon's"),
        pytest.param("us-gov-west-1", None, AMAZON_CA_FILE, id="GovCloud"),
        pytest.param("cn-north-1", None, AMAZON_CA_FILE, id="China"),
        *(
            pytest.param(region, None, SYSTEM, id=region)
            for region in [
                *("eusc-de-east-1", "eu-isoe-west-1", "us-iso-east-1", "us-iso-west-1"),
                *("us-isob-east-1", "us-isob-west-1", "us-isof-east-1", "us-isof-south-1", "us-isob-north-9"),
            ]
        ),
        pytest.param("us-iso-east-1", Path("/own.pem"), Path("/own.pem"), id="configured"),
    ],
)
def test_authorities_are_those_of_the_region(region: str, configured: Path | None, expected: Path) -> None:
    options = replace(OPTIONS, region=Region(region), ca_file=configured, system_ca_file=SYSTEM)
    served = Served(document=KNOWN)
    (tunnel,) = plan_config_map_tunnels(served, Reachability(), options)
    assert tunnel.service
    assert tunnel.service.ca_file == expected


def test_authorities_of_a_tunnel_on_demand_are_those_of_its_region() -> None:
    options = replace(OPTIONS, system_ca_file=SYSTEM)
    spec = TunnelSpec(file_system_id=FS, region=Region("us-iso-east-1"))
    certificate = CertificateFile(path=Path("/c.pem"), serial=1, not_after=datetime(2026, 1, 1, tzinfo=UTC))
    reservation = Reservation(spec=spec, port=22049)
    tunnel = plan_on_demand_tunnel(reservation, certificate, TunnelTargets(), Reachability(), options)
    assert tunnel.service
    assert tunnel.service.ca_file == SYSTEM
    assert tunnel.service.check_host == "fs-1.efs.us-iso-east-1.c2s.ic.gov"


@pytest.mark.parametrize(
    ("ca_file", "expected"),
    [
        pytest.param(None, Path(f"{AMAZON_CA_FILE}.d"), id="of the region"),
        pytest.param("/ca/own.pem", None, id="of the volume, without a directory"),
    ],
)
def test_directory_beside_the_authorities_is_used_if_it_exists(
    ca_file: str | None, expected: Path | None
) -> None:
    options = replace(OPTIONS, hashed_directories=frozenset({Path(f"{AMAZON_CA_FILE}.d")}))
    reservation = Reservation(spec=TunnelSpec(file_system_id=FS, ca_file=ca_file), port=22049)
    certificate = CertificateFile(path=Path("/c.pem"), serial=1, not_after=datetime(2026, 1, 1, tzinfo=UTC))
    on_demand = plan_on_demand_tunnel(reservation, certificate, TunnelTargets(), Reachability(), options)
    (known,) = plan_config_map_tunnels(Served(document=KNOWN), Reachability(), options)
    assert on_demand.service
    assert on_demand.service.hashed_ca_directory == expected
    assert known.service
    assert known.service.hashed_ca_directory == Path(f"{AMAZON_CA_FILE}.d")


class Stunnels:
    """Remembers the services; replaces the data planes."""

    def __init__(self) -> None:
        self.services: dict[str, TunnelService] = {}

    def set_services(self, services: Iterable[TunnelService]) -> None:
        self.services = {service.name: service for service in services}


def test_tunnel_keeps_its_mount_targets_while_the_zone_id_is_not_known() -> None:
    stunnels = Stunnels()
    without_id = NodeLocation(zone=ZoneName("us-east-1b"))
    options = replace(OPTIONS, location=without_id)
    plan = NodePlan(options, TunnelMetrics(CollectorRegistry()), cast("DataPlanes", stunnels))
    specs = TunnelSpec(file_system_id=FS, cross_account=True), s3_spec()
    certificate = CertificateFile(path=Path("/c.pem"), serial=1, not_after=datetime(2026, 1, 1, tzinfo=UTC))
    plan.certificates = {spec.name: certificate for spec in specs}
    plan.reservations = Reservations.of(
        Reservation(spec=one, port=22049 + n, holders=frozenset({Holder("a")})) for n, one in enumerate(specs)
    )
    plan.apply()
    assert stunnels.services == {}
    plan.options = replace(options, location=replace(without_id, zone_id=ZoneName("use1-az2")))
    plan.apply()
    known = stunnels.services
    addresses = {address for service in known.values() for address in service.addresses}
    assert addresses == {f"use1-az2.{NAME}", f"use1-az2.{S3_NAME}"}
    plan.options = options
    plan.apply()
    assert stunnels.services == known
    assert all(tunnel.obstacle == "" for tunnel in plan.tunnels)


def test_tunnel_is_planned_again_only_after_a_change_of_its_inputs() -> None:
    stunnels = Stunnels()
    plan = NodePlan(OPTIONS, TunnelMetrics(CollectorRegistry()), cast("DataPlanes", stunnels))
    specs = [
        TunnelSpec(file_system_id=FS, access_point_id=AccessPointId(f"fsap-{one:017x}")) for one in (1, 2)
    ]
    certificates = {
        spec.name: CertificateFile(path=Path("/c.pem"), serial=1, not_after=datetime(2026, 1, 1, tzinfo=UTC))
        for spec in specs
    }
    plan.certificates = certificates
    plan.reservations = Reservations.of(Reservation(spec=one, port=22049 + n) for n, one in enumerate(specs))

    def applied() -> dict[str, TunnelService]:
        plan.apply()
        return stunnels.services

    def changed(before: dict[str, TunnelService]) -> set[str]:
        after = applied()
        return {name for name in (first, second) if after[name] is not before[name]}

    first, second = sorted(spec.name for spec in specs)
    assert changed(applied()) == set()
    before = applied()
    certificates[first] = replace(certificates[first], serial=2)
    assert changed(before) == {first}
    before = applied()
    certificates["fs-1-reserved-later"] = certificates[first]
    assert applied() is before
    held = plan.reservations.tunnels[second]
    plan.reservations = Reservations.of(
        [plan.reservations.tunnels[first], replace(held, holders=frozenset({Holder("p")}))]
    )
    assert changed(before) == {second}
    before = applied()
    plan.served = Served(document=KNOWN)
    assert changed(before) == {first, second}
    before = applied()
    plan.served = Served(document=KNOWN, rejections=())
    assert changed(before) == set()
    plan.reachability = Reachability(down=frozenset({"10.0.1.1"}))
    assert changed(before) == {first, second}
    assert stunnels.services[first].addresses == ("10.0.0.1", "10.0.2.1", "10.0.1.1")
