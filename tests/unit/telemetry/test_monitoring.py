"""The alerts and the dashboard, against the documented metrics, and these against the code."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore.exceptions import ClientError
from tests.kustomizing import kustomized

from kube_efs.aws.errors import LIMIT_REMEDIES, THROTTLING_CODES, translate
from kube_efs.model.errors import AwsLimitReached
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.manifests import load_asset

PROJECT = Path(__file__).parents[3]
CASES = PROJECT / "tests" / "monitoring" / "alerts.yaml"
PAGE = PROJECT / "docs" / "metrics.md"
DASHBOARD = json.loads((PROJECT / "deploy" / "monitoring" / "dashboard.json").read_text())
ROW = re.compile(r"\| `(?P<name>\w+)` \| (?P<kind>counter|gauge|histogram) \| (?P<labels>[^|]*) \|")
HISTOGRAM_SERIES = ("_bucket", "_sum", "_count")


def rule_groups(asset: str) -> list[dict[str, Any]]:
    [found] = [one for one in load_asset(asset) if one["kind"] == "PrometheusRule"]
    groups: list[dict[str, Any]] = found["spec"]["groups"]
    return groups


def alerts() -> Iterator[dict[str, Any]]:
    for asset in ("rules", "operator-monitoring"):
        for group in rule_groups(asset):
            yield from group["rules"]


def series() -> dict[str, set[str]]:
    """The names of the series of every metric, with their labels."""
    found: dict[str, set[str]] = {"kube_efs_build_info": {"version"}}
    for row in ROW.finditer(PAGE.read_text()):
        own = set(re.findall(r"`(\w+)`", row["labels"]))
        ends = HISTOGRAM_SERIES if row["kind"] == "histogram" else ("",)
        found |= {f"{row['name']}{end}": own | ({"le"} if end == "_bucket" else set()) for end in ends}
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_rules_and_panels_use_existing_metrics(name: str, expression: str) -> None:
    known = series()
    used = re.findall(r"\b(?:kube_efs|sharedvolume)_\w+", expression)
    assert used, name
    assert set(used) <= known.keys()
    # Labels that Prometheus gives to whatever it reads from a pod.
    labels = {"namespace", "pod"}.union(*(known[one] for one in used))
    grouped = [label for names in re.findall(r"\bby \(([^)]*)\)", expression) for label in names.split(", ")]
    assert set(grouped) <= labels
    assert set(re.findall(r'(\w+)(?:!|=)[=~]?"', expression)) <= labels


def test_panel_captions_use_labels_of_their_series() -> None:
    known = series()
    captions = 0
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"{{ *(\w+) *}}", target.get("legendFormat", "")))
            captions += bool(named)
            kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
            used = re.findall(r"\b(?:kube_efs|sharedvolume)_\w+", target["expr"])
            labels = (
                set(kept[1].split(", "))
                if kept
                else {"namespace", "pod"}.union(*(known[one] for one in used))
            )
            assert named <= labels, (panel["title"], target["expr"])
    assert captions


def test_alert_messages_use_labels_of_the_alert() -> None:
    known = series()
    for alert in alerts():
        used = re.findall(r"\bkube_efs_\w+", alert["expr"])
        labels = {"namespace", "pod"}.union(*(known[one] for one in used))
        named = re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values()))
        assert set(named) <= labels, alert["alert"]
        assert alert["labels"]["severity"] in {"info", "warning", "critical"}


def test_every_alert_has_a_firing_and_a_silent_test_case() -> None:
    fires: dict[str, set[bool]] = {}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            fires.setdefault(check["alertname"], set()).add(bool(check["exp_alerts"]))
    assert fires == {alert["alert"]: {True, False} for alert in alerts()}


def test_alert_about_limits_is_for_exactly_the_codes_of_limits() -> None:
    session = botocore.session.get_session()
    models = [session.get_service_model(name) for name in ("efs", "s3files")]
    documented = {
        shape.error_code
        for model in models
        for operation in model.operation_names
        for shape in model.operation_model(operation).error_shapes
    }
    codes = {*THROTTLING_CODES, *LIMIT_REMEDIES, *documented, "SecurityGroupLimitExceeded", "Unknown"}
    limits = {
        code
        for code in codes
        if isinstance(
            translate(ClientError({"Error": {"Code": code}}, ""), operation="", iam_action=""),
            AwsLimitReached,
        )
    }
    [expression] = [alert["expr"] for alert in alerts() if alert["alert"] == "EFSAwsLimitReached"]
    [(wanted, unwanted)] = re.findall(r'{outcome=~"(.+)", outcome!~"(.+)"}', expression)
    chosen = {code for code in codes if re.fullmatch(wanted, code) and not re.fullmatch(unwanted, code)}
    assert chosen == limits


def test_every_alert_is_documented() -> None:
    page = PAGE.read_text()
    for alert in alerts():
        assert f"`{alert['alert']}`" in page


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is missing")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    for asset, name in (("rules", "rules.yaml"), ("operator-monitoring", "operator-rules.yaml")):
        (tmp_path / name).write_text(yaml.safe_dump({"groups": rule_groups(asset)}))
    shutil.copy(CASES, tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is missing")
def test_prometheus_parses_the_query_of_every_panel(tmp_path: Path) -> None:
    asked = [
        target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*")
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]
    rules = [{"record": f"picture:{number}", "expr": text} for number, text in enumerate(asked)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(tmp_path / "rules.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(asked)} rules found" in done.stdout


def test_kustomize_builds_all_of_it_with_the_dashboard() -> None:
    built = {one["kind"]: one for one in kustomized(PROJECT / "deploy" / "monitoring")}
    assert built.keys() == {"ConfigMap", "PodMonitor", "PrometheusRule", "Service", "ServiceMonitor"}
    assert {one["metadata"]["namespace"] for one in built.values()} == {NEW_INSTALLATION.names.namespace}
    assert json.loads(built["ConfigMap"]["data"]["dashboard.json"]) == DASHBOARD
    assert built["ConfigMap"]["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_log_lines_in_the_table_of_alerts_exist() -> None:
    code = "".join(path.read_text() for path in (PROJECT / "src").rglob("*.py"))
    rows = re.findall(r"^\| `EFS.*\|$", PAGE.read_text(), flags=re.MULTILINE)
    events = {event for row in rows for event in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", row)}
    assert "duty-failed" in events
    assert [event for event in events if f'"{event}"' not in code] == []


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.monitoring", "--check"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_dashboard_has_no_overlaps_and_no_duplicate_ids() -> None:
    found = DASHBOARD["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
