"""OpenShift's TLS profiles, tags and the configuration of the driver."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient

from kube_efs.model.csi.access_point_tags import Tag
from kube_efs.operator.cluster_csi_driver import read_volume_metrics
from kube_efs.operator.cluster_facts import (
    NodeCounts,
    TlsProfile,
    count_nodes,
    read_resource_tags,
    read_tls_profile,
)
from kube_efs.settings.loading import load
from kube_efs.settings.node import NodeSettings


def custom(version: str, *ciphers: str) -> dict[str, Any]:
    return {"type": "Custom", "custom": {"minTLSVersion": version, "ciphers": list(ciphers)}}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(None, TlsProfile(), id="none"),
        pytest.param({"type": "Intermediate"}, TlsProfile(), id="intermediate"),
        pytest.param({"type": "Old"}, TlsProfile(), id="old"),
        pytest.param({"type": "Modern"}, TlsProfile(min_version="1.3"), id="modern"),
        pytest.param(custom("VersionTLS13"), TlsProfile(min_version="1.3"), id="version only"),
        pytest.param(
            custom("VersionTLS11", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"),
            TlsProfile(ciphers=("ECDHE-RSA-AES128-GCM-SHA256",)),
            id="ciphers of TLS 1.2",
        ),
        pytest.param(
            custom("VersionTLS12", "ALL:@SECLEVEL=0", "!AES"), TlsProfile(), id="commands instead of ciphers"
        ),
    ],
)
def test_tls_profile_sets_minimum_version_and_ciphers(
    profile: dict[str, Any] | None, expected: TlsProfile
) -> None:
    assert read_tls_profile({"spec": {"tlsSecurityProfile": profile}}) == expected


@pytest.mark.parametrize("api_server", [None, {}, {"spec": None}], ids=["no such kind", "empty", "no spec"])
def test_cluster_without_tls_profile_gets_the_default(api_server: dict[str, Any] | None) -> None:
    assert read_tls_profile(api_server) == TlsProfile()


@pytest.mark.parametrize(
    ("infrastructure", "expected"),
    [
        pytest.param(None, (), id="no such kind"),
        pytest.param({"status": {"platformStatus": {"aws": None}}}, (), id="no AWS"),
        pytest.param(
            {
                "status": {
                    "platformStatus": {
                        "aws": {
                            "resourceTags": [{"key": "team", "value": "a"}, {"key": "empty", "value": ""}]
                        }
                    }
                }
            },
            (Tag(key="team", value="a"),),
            id="tags",
        ),
    ],
)
def test_resource_tags_of_the_infrastructure_are_read(
    infrastructure: dict[str, Any] | None, expected: tuple[Tag, ...]
) -> None:
    assert read_resource_tags(infrastructure) == expected


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        pytest.param({"state": "Disabled"}, None, id="disabled"),
        pytest.param({"state": "RecursiveWalk"}, (14400, 5), id="defaults"),
        pytest.param(
            {"state": "RecursiveWalk", "recursiveWalk": {"refreshPeriodMinutes": 60, "fsRateLimit": 2}},
            (3600, 2),
            id="period and limit",
        ),
        pytest.param(
            {"state": "RecursiveWalk", "recursiveWalk": {"refreshPeriodMinutes": 43200, "fsRateLimit": "x"}},
            (7 * 86400, 5),
            id="longest period, invalid limit",
        ),
    ],
)
def test_volume_metrics_are_settings_that_the_node_accepts(
    metrics: dict[str, Any], expected: tuple[int, int] | None
) -> None:
    variables = read_volume_metrics({"driverType": "AWS", "aws": {"efsVolumeMetrics": metrics}})
    settings = load(NodeSettings, {"NODE_NAME": "first", **variables})
    assert settings.counts_files is (expected is not None)
    if expected:
        assert (settings.file_count_refresh_seconds, settings.file_count_rate_limit) == expected


def node(*taints: dict[str, str], os: str = "linux", ready: str = "True", cordoned: bool = False) -> Any:
    return {
        "metadata": {"name": "n", "labels": {"kubernetes.io/os": os} if os else {}},
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def taint(key: str, effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "effect": effect}


MASTER = node(taint("node-role.kubernetes.io/control-plane"))
WORKER = node()


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([MASTER, MASTER, MASTER, WORKER], NodeCounts(ready=1, existing=1), id="masters"),
        pytest.param(
            [node(taint("a", "NoExecute")), WORKER], NodeCounts(ready=1, existing=1), id="no execute"
        ),
        pytest.param(
            [node(taint("a", "PreferNoSchedule"))], NodeCounts(ready=1, existing=1), id="preference"
        ),
        pytest.param([node(os="windows"), WORKER], NodeCounts(ready=1, existing=1), id="Windows"),
        pytest.param([node(os=""), WORKER], NodeCounts(ready=2, existing=2), id="no label"),
        pytest.param(
            [node(taint("eks.amazonaws.com/compute-type")), WORKER],
            NodeCounts(ready=1, existing=1),
            id="Fargate",
        ),
        pytest.param(
            [node(taint("node.kubernetes.io/unschedulable"), cordoned=True), WORKER],
            NodeCounts(ready=1, existing=2),
            id="drained",
        ),
        pytest.param(
            [node(taint("node.kubernetes.io/not-ready"), ready="False"), WORKER],
            NodeCounts(ready=1, existing=2),
            id="rebooted",
        ),
        pytest.param(
            [node(taint("node.kubernetes.io/memory-pressure")), WORKER],
            NodeCounts(ready=1, existing=2),
            id="short of memory",
        ),
    ],
)
async def test_only_nodes_that_can_run_the_controller_are_counted(
    client_of: Callable[..., AsyncClient], nodes: list[Any], expected: NodeCounts
) -> None:
    """Two controllers on one worker would block its drain: the budget lets an eviction take only one."""

    async def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"kind": "NodeList", "metadata": {}, "items": nodes})

    assert await count_nodes(client_of(answer)) == expected
