"""The Grafana dashboard, from a list of what it shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Grafana's grid is 24 wide.
_GRID, _HEIGHT = 24, 8
_PER_SECOND = "[$__rate_interval]"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SCOPE = 'namespace=~"$namespace"'

_MISSED = "kube_efs_demanded_tunnel_up{@} == 0 and kube_efs_demanded_tunnel_holders{@} > 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture; ``queries`` are pairs of an expression, in which ``@`` is the scope, and a legend."""

    title: str
    about: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Pictures under one heading."""

    title: str
    panels: Sequence[Panel]


def _rate(labels: str, metric: str, scope: str = "@") -> str:
    return f"sum by ({labels}) (rate({metric}{{{scope}}}{_PER_SECOND}))"


def _quantile(metric: str, label: str, share: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {label}) (rate({metric}_bucket{{@}}{_PER_SECOND})))"


_ROWS = (
    Row(
        title="Health",
        panels=(
            Panel(
                title="Leading controllers",
                about="One for each installation. If there is none, claims get no volumes.",
                queries=(("sum by (namespace) (kube_efs_leader{@})", "{{namespace}}"),),
                kind="stat",
                width=6,
            ),
            Panel(
                title="Tunnels that do not work",
                about="On all nodes. Tunnels on demand count while something is mounted through them.",
                queries=(
                    (
                        "sum(kube_efs_tunnel_up{@} == bool 0) or vector(0)",
                        "of file systems",
                    ),
                    (f"count({_MISSED}) or vector(0)", "on demand"),
                ),
                kind="stat",
                width=6,
            ),
            Panel(
                title="Pending claims",
                about="Claims that have no volume yet.",
                queries=(("sum(kube_efs_claims_waiting{@})", "claims"),),
                kind="stat",
                width=6,
            ),
            Panel(
                title="Age of the list of file systems",
                about="Time since AWS last returned the file systems.",
                queries=(("max by (namespace) (kube_efs_discovery_age_seconds{@})", "{{namespace}}"),),
                unit="s",
                kind="stat",
                width=6,
            ),
        ),
    ),
    Row(
        title="Volumes",
        panels=(
            Panel(
                title="Attempts to create volumes",
                about="Refused attempts wait for a change of the claim or its class. The others are retried.",
                queries=(
                    (
                        _rate("provisioner, outcome", "kube_efs_provisionings_total"),
                        "{{provisioner}} {{outcome}}",
                    ),
                ),
                unit="ops",
            ),
            Panel(
                title="Time from a claim to its volume (95 %)",
                about="From the time when the controller first saw the claim.",
                queries=(
                    (_quantile("kube_efs_provisioning_seconds", "provisioner", "0.95"), "{{provisioner}}"),
                ),
                unit="s",
            ),
            Panel(
                title="Attempts to delete volumes",
                about="If an attempt is refused, a guard keeps the volume.",
                queries=(
                    (
                        _rate("provisioner, outcome", "kube_efs_deletions_total"),
                        "{{provisioner}} {{outcome}}",
                    ),
                ),
                unit="ops",
            ),
            Panel(
                title="Group IDs in use",
                about="Share of the range of each class.",
                queries=(("kube_efs_gid_range_used{@} / kube_efs_gid_range_size{@}", "{{storage_class}}"),),
                unit="percentunit",
            ),
            Panel(
                title="Access points in use",
                about="Share of the quota of each file system.",
                queries=(("kube_efs_access_points{@} / kube_efs_access_point_quota{@}", "{{file_system}}"),),
                unit="percentunit",
            ),
            Panel(
                title="Worker pods",
                about="Pods that ended, by outcome.",
                queries=((_rate("outcome", "kube_efs_worker_pods_total"), "{{outcome}}"),),
                unit="ops",
            ),
        ),
    ),
    Row(
        title="Usage, if it is measured",
        panels=(
            Panel(
                title="Bytes in each file system",
                about="The sum of its volumes.",
                queries=(("sum by (file_system) (kube_efs_volume_used_bytes{@})", "{{file_system}}"),),
                unit="bytes",
                width=12,
            ),
            Panel(
                title="Fullest volumes",
                about="Share of the request of the claim. EFS has no quota, so more than 100 % is possible.",
                queries=(
                    (
                        "topk(10, kube_efs_volume_used_bytes{@} / kube_efs_volume_requested_bytes{@})",
                        "{{claim_namespace}}/{{claim}}",
                    ),
                ),
                unit="percentunit",
                kind="bargauge",
                width=12,
            ),
        ),
    ),
    Row(
        title="Tunnels",
        panels=(
            Panel(
                title="Latency of NFS through the tunnels (99 %)",
                about="Time of a NULL call to the mount target.",
                queries=(
                    (_quantile("kube_efs_tunnel_probe_seconds", "file_system", "0.99"), "{{file_system}}"),
                ),
                unit="s",
            ),
            Panel(
                title="Tunnels that have failed over",
                about="These tunnels work, through a more distant mount target.",
                queries=(
                    ("sum by (file_system) (kube_efs_tunnel_failed_over{@})", "{{file_system}}"),
                    (
                        "sum by (file_system) (kube_efs_demanded_tunnel_failed_over{@})",
                        "{{file_system}} on demand",
                    ),
                ),
            ),
            Panel(
                title="Mounts that hold tunnels on demand",
                about="Of the CSI driver.",
                queries=(("sum by (file_system) (kube_efs_demanded_tunnel_holders{@})", "{{file_system}}"),),
            ),
            Panel(
                title="Restarts of stunnel after it ended unexpectedly",
                about="For each node.",
                queries=((f"increase(kube_efs_stunnel_restarts_total{{@}}{_PER_SECOND}) > 0", "{{pod}}"),),
            ),
            Panel(
                title="Next expiry of a client certificate",
                about="Certificates are renewed each hour.",
                queries=(
                    (
                        "min by (file_system) (kube_efs_certificate_expiry_seconds{@}) - time()",
                        "{{file_system}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Created client certificates",
                about="By outcome.",
                queries=(
                    (
                        _rate("outcome", "kube_efs_certificate_renewals_total"),
                        "{{outcome}}",
                    ),
                ),
                unit="ops",
            ),
        ),
    ),
    Row(
        title="Calls",
        panels=(
            Panel(
                title="Calls to AWS",
                about="By outcome: succeeded, or the error's code.",
                queries=((_rate("outcome", "kube_efs_aws_calls_total"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                title="Requests to the API server",
                about="By code of the response; none without a response.",
                queries=((_rate("code", "kube_efs_api_requests_total"), "{{code}}"),),
                unit="ops",
            ),
            Panel(
                title="Failed calls to the CSI services",
                about="By method and gRPC code.",
                queries=(
                    (
                        _rate("method, code", "kube_efs_csi_calls_total", '@, code!="OK"'),
                        "{{method}} {{code}}",
                    ),
                ),
                unit="ops",
            ),
            Panel(
                title="Time of calls to the CSI services (95 %)",
                about="Of all calls, also failed ones.",
                queries=((_quantile("kube_efs_csi_call_seconds", "method", "0.95"), "{{method}}"),),
                unit="s",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """What Grafana imports; it asks for the data source, and filters by namespace."""
    return {
        "title": "kube-efs",
        "uid": "kube-efs",
        "tags": ["storage", "efs"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    yield {
        "name": "namespace",
        "label": "Namespace",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(kube_efs_build_info, namespace)", "refId": "namespace"},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panels() -> Iterator[dict[str, Any]]:
    top, number = 0, 0
    for row in _ROWS:
        number += 1
        place = {"x": 0, "y": top, "w": _GRID, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        left, top = 0, top + 1
        for panel in row.panels:
            if left + panel.width > _GRID:
                left, top = 0, top + _HEIGHT
            number += 1
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": _HEIGHT})
            left += panel.width
        top += _HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": _scoped(text),
                "legendFormat": legend,
            }
            for index, (text, legend) in enumerate(panel.queries)
        ],
    }


def _scoped(expression: str) -> str:
    return expression.replace("@", _SCOPE)
