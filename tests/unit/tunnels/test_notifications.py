"""Notifications about changes of mount targets."""

import pytest

from kube_efs.model.efs.ids import FileSystemId, SubnetId, ZoneName
from kube_efs.model.efs.targets import TunnelTarget
from kube_efs.tunnels.mount_targets import Candidate, Nearness
from kube_efs.tunnels.notifications import find_notifications
from kube_efs.tunnels.plan import PlannedTunnel

FS = FileSystemId("fs-00000000000000001")
NEAR, FAR = "192.0.2.1", "192.0.2.2"
NEAR_IS_GONE = f"mount target {NEAR} (us-east-1a) of {FS} accepts no connections; new ones go to {FAR}"
ALL_GONE = f"of {FS} accepts no connections, and no other mount target does: its volumes wait"


def _candidate(address: str, zone: str | None, nearness: Nearness) -> Candidate:
    return Candidate(
        address=address,
        subnet_id=SubnetId(f"subnet-{address}"),
        zone=ZoneName(zone) if zone else None,
        nearness=nearness,
    )


CANDIDATES = (
    _candidate(NEAR, "us-east-1a", Nearness.OWN_ZONE),
    _candidate(FAR, None, Nearness.OTHER_ZONE),
)
TUNNEL = PlannedTunnel(target=TunnelTarget(file_system_id=FS, port=20490), candidates=CANDIDATES)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(set(), set(), [], id="no change"),
        pytest.param({NEAR}, {NEAR}, [], id="still unreachable"),
        pytest.param(set(), {NEAR}, [("MountTargetUnreachable", NEAR_IS_GONE)], id="nearest unreachable"),
        pytest.param(
            set(),
            {NEAR, FAR},
            [
                ("MountTargetUnreachable", f"mount target {NEAR} (us-east-1a) {ALL_GONE}"),
                ("MountTargetUnreachable", f"mount target {FAR} {ALL_GONE}"),
            ],
            id="all unreachable",
        ),
        pytest.param(
            {NEAR, FAR},
            {FAR},
            [
                (
                    "MountTargetReachable",
                    f"mount target {NEAR} (us-east-1a) of {FS} accepts connections again",
                )
            ],
            id="one reachable again",
        ),
        pytest.param(set(), {"192.0.2.9"}, [], id="address without a tunnel"),
    ],
)
def test_changes_of_problems_become_notifications(
    before: set[str], after: set[str], expected: list[tuple[str, str]]
) -> None:
    # The tunnels of two access points use the same mount targets; each is reported once.
    assert [
        (one.reason, one.message) for one in find_notifications([TUNNEL, TUNNEL], before, after)
    ] == expected


def test_mount_targets_of_a_zone_that_change_together_do_not_cause_an_event_each() -> None:
    addresses = [f"192.0.2.{number}" for number in range(200)]
    tunnels = [
        PlannedTunnel(
            target=TunnelTarget(file_system_id=FileSystemId(f"fs-{number:017x}"), port=20490 + number),
            candidates=(_candidate(address, "us-east-1a", Nearness.OWN_ZONE),),
        )
        for number, address in enumerate(addresses)
    ]
    lost = find_notifications(tunnels, set(), addresses)
    assert [one.reason for one in lost] == ["MountTargetUnreachable"] * 4
    assert [address in one.message for one, address in zip(lost, addresses, strict=False)] == [True] * 3 + [
        False
    ]
    assert lost[3].message.startswith("197 further mount targets accept no connections")
    found = find_notifications(tunnels, addresses, addresses[:1])
    assert [(one.reason, one.is_problem) for one in found] == [("MountTargetReachable", False)] * 4
    assert found[3].message.startswith("196 further mount targets accept connections again")
