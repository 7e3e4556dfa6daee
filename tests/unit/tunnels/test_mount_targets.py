"""The mount targets of a tunnel and their order."""

from types import MappingProxyType

import pytest

from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.tunnels.config_map import Served
from kube_efs.tunnels.mount_targets import (
    Nearness,
    NodeLocation,
    Reachability,
    choose_addresses,
    rank_candidates,
)
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.plan import plan_config_map_tunnels

FS = FileSystemId("fs-1")
A, B, C, D = (SubnetId(f"subnet-{letter}") for letter in "abcd")
ZONE_1, ZONE_2 = ZoneName("us-east-1a"), ZoneName("us-east-1b")
ZONES = MappingProxyType({A: ZONE_1, B: ZONE_1, C: ZONE_2})
TARGET = TunnelTarget(
    file_system_id=FS, port=20490, address_by_subnet={C: "10.0.3.1", A: "10.0.1.1", B: "10.0.2.1"}
)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        pytest.param(
            NodeLocation(subnets=frozenset({B}), zone=ZONE_1),
            ["10.0.2.1", "10.0.1.1", "10.0.3.1"],
            id="own subnet, then own zone, then others",
        ),
        pytest.param(
            NodeLocation(subnets=frozenset({D}), zone=ZONE_2),
            ["10.0.3.1", "10.0.1.1", "10.0.2.1"],
            id="no mount target in the own subnet: own zone first",
        ),
        pytest.param(
            NodeLocation(subnets=frozenset({B})),
            ["10.0.2.1", "10.0.1.1", "10.0.3.1"],
            id="zone not known: that of the own subnet",
        ),
        pytest.param(
            NodeLocation(), ["10.0.1.1", "10.0.2.1", "10.0.3.1"], id="nothing known: order of subnets"
        ),
        pytest.param(
            NodeLocation(subnets=frozenset({D})),
            ["10.0.1.1", "10.0.2.1", "10.0.3.1"],
            id="own subnet of unknown zone is not near to others of unknown zone",
        ),
    ],
)
def test_nearer_mount_targets_are_preferred(location: NodeLocation, expected: list[str]) -> None:
    candidates = rank_candidates(TARGET, location, ZONES)
    assert list(choose_addresses(candidates, ())) == expected


def test_mount_target_without_a_known_zone_never_counts_as_near() -> None:
    target = TunnelTarget(file_system_id=FS, port=20490, address_by_subnet={D: "10.0.4.1"})
    [candidate] = rank_candidates(target, NodeLocation(subnets=frozenset({SubnetId("subnet-x")})), {})
    assert (candidate.nearness, candidate.zone) == (Nearness.OTHER_ZONE, None)


@pytest.mark.parametrize(
    ("unreachable", "expected"),
    [
        pytest.param(set(), ["10.0.1.1", "10.0.2.1", "10.0.3.1"], id="all reachable"),
        pytest.param({"10.0.1.1"}, ["10.0.2.1", "10.0.3.1", "10.0.1.1"], id="nearest unreachable"),
        pytest.param(
            {"10.0.1.1", "10.0.2.1"}, ["10.0.3.1", "10.0.1.1", "10.0.2.1"], id="own zone unreachable"
        ),
        pytest.param(
            {"10.0.1.1", "10.0.2.1", "10.0.3.1"}, ["10.0.1.1", "10.0.2.1", "10.0.3.1"], id="none reachable"
        ),
    ],
)
def test_unreachable_addresses_are_last_but_kept(unreachable: set[str], expected: list[str]) -> None:
    candidates = rank_candidates(TARGET, NodeLocation(subnets=frozenset({A}), zone=ZONE_1), ZONES)
    assert list(choose_addresses(candidates, unreachable)) == expected


@pytest.mark.parametrize(
    ("region", "suffix", "host"),
    [
        pytest.param("eu-west-1", None, "fs-1.efs.eu-west-1.amazonaws.com", id="common region"),
        pytest.param("cn-north-1", None, "fs-1.efs.cn-north-1.amazonaws.com.cn", id="China"),
        pytest.param("us-east-1", "efs.test", "fs-1.efs.us-east-1.efs.test", id="suffix of the setting"),
    ],
)
def test_certificate_must_name_the_file_system(region: str, suffix: str | None, host: str) -> None:
    served = Served(document=TunnelTargets(targets={FS: TARGET}))
    [tunnel] = plan_config_map_tunnels(
        served, Reachability(), TunnelOptions(region=Region(region), dns_suffix=suffix)
    )
    assert tunnel.service
    assert tunnel.service.check_host == host
