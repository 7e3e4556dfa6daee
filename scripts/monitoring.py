"""Writes deploy/monitoring and the table of docs/metrics.md; with --check only compares, and fails."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from scripts.dashboard import dashboard

from kube_efs.operator.manifests import RenderOptions, render_asset, values_of
from kube_efs.operator.platforms import Platform
from kube_efs.telemetry import metrics
from kube_efs.telemetry.read_gauge import ReadGauge

PROJECT = Path(__file__).parent.parent
FOLDER = PROJECT / "deploy" / "monitoring"
PAGE = PROJECT / "docs" / "metrics.md"
BEGIN, END = "<!-- begin: scripts/monitoring.py -->", "<!-- end -->"

# What each process registers.
PROCESSES: Mapping[str, tuple[type, ...]] = {
    "controller": (
        metrics.DutyMetrics,
        metrics.ApiServerMetrics,
        metrics.AwsMetrics,
        metrics.AwsDriverMetrics,
        metrics.ControllerMetrics,
        metrics.UsageMetrics,
        metrics.SharedVolumeMetrics,
        metrics.CsiMetrics,
    ),
    "tunnel": (metrics.DutyMetrics, metrics.ApiServerMetrics, metrics.TunnelMetrics),
    "node": (metrics.DutyMetrics, metrics.ApiServerMetrics, metrics.CsiMetrics),
    "operator": (metrics.DutyMetrics, metrics.ApiServerMetrics, metrics.OperatorMetrics),
}
_ASSETS = ("controller-metrics", "observing-rbac", "pod-monitors", "rules")
_HEADER = "# Written by `make monitoring` from src/kube_efs/operator/assets.\n"
_UNITS = {"seconds": "seconds", "bytes": "bytes", "info": "none"}


def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Name, type, labels, unit, meaning and processes of every metric, by name."""
    found: dict[str, tuple[str, str, str, str, str]] = {}
    processes: dict[str, list[str]] = {}
    for process, groups in PROCESSES.items():
        for group in groups:
            for row in _described(group):
                found[row[0]] = row
                processes.setdefault(row[0], []).append(process)
    for name, row in sorted(found.items()):
        yield *row, ", ".join(processes[name])


def _described(group: type) -> Iterator[tuple[str, str, str, str, str]]:
    for one in vars(group(CollectorRegistry())).values():
        match one:
            case ReadGauge():
                yield _row(one.name, "gauge", one.labels, one.documentation)
            case MetricWrapperBase():
                [family] = one.describe()
                # The library has no public way to ask for the labels of a metric that has no values yet.
                yield _row(family.name, family.type, one._labelnames, family.documentation)  # noqa: SLF001


def _row(name: str, kind: str, labels: tuple[str, ...], documentation: str) -> tuple[str, str, str, str, str]:
    shown = f"{name}_total" if kind == "counter" else name
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(f"_{end}")), "count")
    if documentation.startswith(("1 ", "1,", "Always 1")):
        unit = "0 or 1"
    return shown, kind, ", ".join(f"`{label}`" for label in labels), unit, documentation.replace("|", "\\|")


def _table() -> str:
    lines = ["| metric | type | labels | unit | meaning | process |", "|---|---|---|---|---|---|"]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows()]
    return "\n".join(lines)


def _page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{_table()}\n\n{END}{after}"


def _manifests(asset: str) -> str:
    objects = render_asset(asset, values_of(RenderOptions(platform=Platform.KUBERNETES)))
    return _HEADER + yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True, width=110)


def wanted() -> Iterator[tuple[Path, str]]:
    """Every file that is written, and what is to be in it."""
    for asset in _ASSETS:
        yield FOLDER / f"{asset}.yaml", _manifests(asset)
    yield FOLDER / "dashboard.json", json.dumps(dashboard(), indent=2) + "\n"
    yield PAGE, _page()


def main() -> int:
    """Updates the files, or compares them; the exit status."""
    if "--check" not in sys.argv[1:]:
        for path, text in wanted():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in wanted() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        sys.stderr.write(f"{path.relative_to(PROJECT)} does not match the code; run make monitoring\n")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
