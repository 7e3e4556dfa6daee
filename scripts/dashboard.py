"""The Grafana dashboard, from a list of what it shows, by Grafana's own library."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption, VariableRefresh

_HEIGHT = 8
_KINDS: Mapping[str, ModuleType] = {"stat": stat, "timeseries": timeseries, "bargauge": bargauge}
_PER_SECOND = "[$__rate_interval]"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
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
    made = (
        builders.Dashboard("kube-efs")
        .uid("kube-efs")
        .tags(["storage", "efs"])
        .editable()
        .refresh("1m")
        .time("now-6h", "now")
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            builders.QueryVariable("namespace")
            .label("Namespace")
            .datasource(_SOURCE)
            .query({"query": "label_values(kube_efs_build_info, namespace)", "refId": "namespace"})
            .include_all(True)
            .all_value(".*")
            .multi(True)
            .current(VariableOption(text="All", value="$__all"))
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    )
    numbers = itertools.count(1)
    for row in _ROWS:
        made = made.with_row(builders.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            made = made.with_panel(_panel(panel).id(next(numbers)))
    # Options that the library leaves to the defaults of Grafana are null, which is not the same to Grafana.
    return dict(_without_nulls(json.loads(JSONEncoder(sort_keys=True).encode(made.build()))))


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - JSON
    match value:
        case dict():
            return {key: _without_nulls(one) for key, one in value.items() if one is not None}
        case list():
            return [_without_nulls(one) for one in value]
    return value


def _panel(panel: Panel) -> Any:  # noqa: ANN401 - the builders of panels have no class in common
    made = (
        _KINDS[panel.kind]
        .Panel()
        .title(panel.title)
        .description(panel.about)
        .datasource(_SOURCE)
        .span(panel.width)
        .height(_HEIGHT)
        .unit(panel.unit)
        .min(0)
    )
    for index, (text, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(_scoped(text)).legend_format(legend).datasource(_SOURCE)
        made = made.with_target(query.ref_id(chr(ord("A") + index)))
    return made


def _scoped(expression: str) -> str:
    return expression.replace("@", _SCOPE)
