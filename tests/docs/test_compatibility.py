"""The page of compatibility: it has every name of the older systems, and the product agrees with it.

``older_systems.yaml`` contains the names. What the page says about each is compared with the parsers,
settings, metrics, commands, charts and templates of the product.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from kube_efs.cli import app
from kube_efs.model import directory_classes, tunnel_volumes
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.cross_account import parse_provisioner_secret
from kube_efs.model.csi.mount_flags import parse_mount_flags
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.csi.sidecar_parameters import SIDECAR_PREFIX, parse_sidecar_parameters
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.efs.file_systems import Discovery, FileSystem
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import KubeEfsError
from kube_efs.operator.forms.aws_driver_refusals import REFUSALS
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.fields import variables
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.operator import OperatorSettings
from kube_efs.settings.tunnel import TunnelSettings
from kube_efs.telemetry import metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
CHANGELOG = ROOT / "CHANGELOG.md"
NAMES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    (Path(__file__).parent / "older_systems.yaml").read_text(encoding="utf-8")
)
# The tests of the chart use the same list.
_CHART_VALUES = ROOT / "tests" / "conformance" / "aws_driver_chart_values.txt"
NAMES["aws-efs-csi-driver"]["chart values"] = [
    line
    for line in _CHART_VALUES.read_text(encoding="utf-8").split("\n")
    if line and not line.startswith("#")
]
_HEADING = re.compile(r"^### (?P<system>[\w-]+): (?P<kind>.+)$")
_NO_VERSION = "-"


class Verdict(StrEnum):
    """What the page says about a name."""

    SAME = "same"
    DIFFERENT = "different"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Row:
    """One name of the page."""

    system: str
    kind: str
    name: str
    verdict: Verdict
    since: str
    text: str


def _rows(page: str) -> Iterator[Row]:
    system = kind = ""
    for line in page.splitlines():
        if match := _HEADING.match(line):
            system, kind = match["system"], match["kind"]
        elif line.startswith("## "):
            system = kind = ""
        elif kind and line.startswith("| ") and not line.startswith("| name |"):
            names, verdict, since, text = (cell.strip() for cell in line.strip("|").split(" | "))
            for name in names.split(", "):
                yield Row(system, kind, name.strip("`"), Verdict(verdict), since, text.strip(" |"))


ROWS = tuple(_rows(PAGE.read_text(encoding="utf-8")))


def test_page_has_exactly_the_names_of_the_older_systems() -> None:
    listed = [(row.system, row.kind, row.name) for row in ROWS]
    wanted = [
        (system, kind, name)
        for system, kinds in NAMES.items()
        for kind, names in kinds.items()
        for name in names
    ]
    assert sorted(set(wanted) - set(listed)) == [], "names without a row"
    assert sorted(set(listed) - set(wanted)) == [], "rows without a name in the lists"
    assert len(listed) == len(set(listed)), "names with two rows"
    assert len(wanted) == len(set(wanted))


def test_each_row_has_a_version_or_an_alternative() -> None:
    versions = set(re.findall(r"^## \[([^\]]+)\]", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE))
    refused = [row for row in ROWS if row.verdict is Verdict.REFUSED]
    others = [row for row in ROWS if row.verdict is not Verdict.REFUSED]
    assert {row.name for row in others if row.since not in versions} == set()
    assert {row.name for row in refused if row.since != _NO_VERSION} == set()
    assert {row.name for row in ROWS if row.verdict is not Verdict.SAME and not row.text} == set()


def test_each_setting_that_the_page_recommends_exists() -> None:
    named = {name for row in ROWS for name in re.findall(r"`(KUBE_EFS_[A-Z_]+)", row.text)}
    assert named - _variables() == set()


def test_mount_options_of_one_kind_of_file_system_name_it() -> None:
    options = [row for row in ROWS if row.kind == "mount options"]
    of_one_kind = [
        row for row in options if len({_reads_flag_for(kind, row.name) for kind in FileSystemKind}) > 1
    ]
    assert {row.name for row in of_one_kind} == {"az", "azid", "notls", "stunnel"}
    assert {row.name for row in of_one_kind if "S3 Files" not in row.text} == set()


# --- what the product accepts, for each kind of name

_FS = "fs-0123456789abcdef0"
# A value that is valid for each name; a name that is not here has the value "x".
_CLASS_VALUES = {
    "default_file_system_id": _FS,
    "file_system_ids": _FS,
    "gidMin": "2000",
    "gidMax": "3000",
    "gidAllocate": "true",
    "provisioningMode": "efs-ap",
    "fileSystemId": _FS,
    "fileSystemIdConfigRef": "a/b/c",
    "fileSystemIdSecretRef": "a/b/c",
    "directoryPerms": "700",
    "uid": "1",
    "gid": "1",
    "gidRangeStart": "1",
    "gidRangeEnd": "2",
    "subPathPattern": "${.PVC.name}",
    "ensureUniqueDirectory": "true",
    "enforceZoneAffinity": "true",
    "enableTagging": "true",
    "reuseAccessPoint": "true",
    "basePath": "/b",
    "az": "us-east-1a",
    "csi.storage.k8s.io/provisioner-secret-name": "s",
    "csi.storage.k8s.io/provisioner-secret-namespace": "s",
}
_PAIRS = ({"gidRangeStart", "gidRangeEnd"},)
_CSI_REQUIRED = {"provisioningMode": "efs-ap", "fileSystemId": _FS, "directoryPerms": "700"}
_FLAG_VALUES = {
    "accesspoint": "fsap-0123456789abcdef0",
    "az": "us-east-1a",
    "azid": "use1-az1",
    "region": "us-east-1",
    "mounttargetip": "10.0.0.4",
    "awsprofile": "team",
    "awscredsuri": "/uri",
    "rolearn": "arn:aws:iam::123456789012:role/a",
    "jwtpath": "/var/token",
    "verify": "2",
    "tlsport": "20500",
    "cafile": "/etc/ca",
    "netns": "/proc/1/ns/net",
    "nfsvers": "4.1",
    "vers": "4.1",
    "rsize": "1048576",
    "wsize": "1048576",
    "timeo": "600",
    "retrans": "2",
}
_ATTRIBUTE_VALUES = {
    "encryptInTransit": "true",
    "mounttargetip": "10.0.0.4",
    "mounttargetipmap": '{"us-east-1a": "10.0.0.4"}',
    "crossaccount": "true",
}
_LABEL_VALUES = {"volume_name": "data", "reclaim_policy": "Retain", "file_system_id": _FS, "root_key": "k"}
_SECRET_VALUES = {
    "awsRoleArn": "arn:aws:iam::123456789012:role/a",
    "externalId": "id",
    "crossaccount": "true",
}
# The library of AWS reads these variables.
_OF_THE_SDK = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_USE_FIPS_ENDPOINT"}


def _reads_tunnel_parameter(name: str) -> bool:
    """Whether an invalid value of the parameter is refused, so that it has a meaning."""
    good = StorageClass(name="c", provisioner="p", parameters={name: _CLASS_VALUES.get(name, "x")})
    tunnel_volumes.parse_class(good)
    return not _accepted(
        lambda: tunnel_volumes.parse_class(
            StorageClass(name="c", provisioner="p", parameters={name: "not valid"})
        )
    )


def _reads_directory_parameter(name: str) -> bool:
    given = StorageClass(name="c", provisioner="p", parameters={name: _CLASS_VALUES.get(name, "x")})
    directory_classes.parse_class(given)
    return not directory_classes.class_warnings(given)


def _reads_csi_parameter(name: str) -> bool:
    pair = next((one for one in _PAIRS if name in one), {name})
    given = {**_CSI_REQUIRED, **{one: _CLASS_VALUES.get(one, "x") for one in pair}}
    if name.startswith("fileSystemId") and name != "fileSystemId":
        del given["fileSystemId"]
    if name.startswith(SIDECAR_PREFIX):
        secret = {one: "s" for one in _CLASS_VALUES if one.startswith(SIDECAR_PREFIX)}
        return name in secret and parse_sidecar_parameters(secret).provisioner_secret is not None
    return not parse_parameters(given).warnings


def _reads_label(name: str) -> bool:
    system = FileSystem(file_system_id=FileSystemId(_FS))
    view = tunnel_volumes.ClusterView(discovery=Discovery(file_systems={system.file_system_id: system}))
    parameters = {"default_file_system_id": _FS}
    labels = {"volume_name": "data", name: _LABEL_VALUES.get(name, "x")}
    claim = Claim(namespace="n", name="c", uid=ClaimUid("u"), match_labels=labels)

    def parse(match_labels: dict[str, str]) -> None:
        tunnel_volumes.parse_request(
            Claim(namespace="n", name="c", uid=ClaimUid("u"), match_labels=match_labels),
            StorageClass(name="c", provisioner="p", parameters=parameters),
            view,
        )

    if name != "root_key":
        parse(labels)
    # An invalid value is refused, so the label has a meaning; root_key leaves the claim to others.
    return claim.match_labels is not None and not _accepted(lambda: parse({**labels, name: "Not valid"}))


def _reads_flag(name: str) -> bool:
    return any(_reads_flag_for(kind, name) for kind in FileSystemKind)


def _reads_flag_for(kind: FileSystemKind, name: str) -> bool:
    value = _FLAG_VALUES.get(name)
    flag = name if value is None else f"{name}={value}"
    companions = ["tls"] if name not in {"tls", "notls"} else []
    if name in {"awsprofile", "awscredsuri"}:
        companions.append("iam")
    return _accepted(lambda: parse_mount_flags([*companions, flag], kind))


def _reads_attribute(name: str) -> bool:
    return _accepted(lambda: parse_attributes({name: _ATTRIBUTE_VALUES.get(name, "x")}))


def _reads_secret_key(name: str) -> bool:
    others = {"awsRoleArn": _SECRET_VALUES["awsRoleArn"]}
    bare = parse_provisioner_secret(others if name != "awsRoleArn" else {})
    return parse_provisioner_secret({**others, name: _SECRET_VALUES[name]}) != bare


def _reads_variable(name: str) -> bool:
    return name in _variables() | _OF_THE_SDK


def _serves_metric(name: str) -> bool:
    registry = CollectorRegistry()
    for label, kind in vars(metrics).items():
        if label.endswith("Metrics") and kind.__module__ == metrics.__name__:
            kind(registry)
    described = (one for collector in registry._collector_to_names.values() for one in collector)
    return name in set(described)


def _takes_flag(name: str) -> bool:
    commands = ("controller", "node")
    answers = (CliRunner().invoke(app, [command, f"--{name}", "--help"]) for command in commands)
    return any(one.exit_code == 0 for one in answers)


def _has_chart_value(name: str) -> bool:
    schema: Any = json.loads((ROOT / "deploy/helm/kube-efs/values.schema.json").read_text())
    for part in name.split("."):
        schema = schema.get("properties", {}).get(part)
        if schema is None:
            return False
    return not any(f"{name}.".startswith(f"{one.path}.") for one in REFUSALS)


def _has_template_parameter(name: str) -> bool:
    found = yaml.safe_load((ROOT / "deploy/openshift/install-template.yaml").read_text())
    return name in {one["name"] for one in found["parameters"]}


def _is_in_the_manifests(name: str) -> bool:
    folder = ROOT / "deploy" / "efs-provisioner"
    return any(f" {name}" in path.read_text() for path in folder.glob("*.yaml"))


def _is_in_the_source(name: str) -> bool:
    return name in _source()


def _is_an_annotation(name: str) -> bool:
    return name in vars(tunnel_volumes).values() or _is_in_the_source(name)


def _is_a_reason(name: str) -> bool:
    return f'"{name}"' in _source()


def _has_field(name: str) -> bool:
    return f'"{name.rpartition(".")[2]}"' in _source() or f" {name.rpartition('.')[2]}:" in _source()


CHECKS: dict[tuple[str, str], Callable[[str], bool]] = {
    ("openshift-efs-stunnel", "StorageClass parameters"): _reads_tunnel_parameter,
    ("openshift-efs-stunnel", "labels of claims"): _reads_label,
    ("openshift-efs-stunnel", "keys of the ConfigMap"): _is_a_reason,
    ("openshift-efs-stunnel", "template parameters"): _has_template_parameter,
    ("efs-provisioner", "StorageClass parameters"): _reads_directory_parameter,
    ("efs-provisioner", "keys of the ConfigMap and the Secret"): _is_in_the_manifests,
    ("efs-provisioner", "events"): _is_a_reason,
    ("aws-efs-csi-driver", "StorageClass parameters"): _reads_csi_parameter,
    ("aws-efs-csi-driver", "keys of the provisioner Secret"): _reads_secret_key,
    ("aws-efs-csi-driver", "volume attributes"): _reads_attribute,
    ("aws-efs-csi-driver", "mount options"): _reads_flag,
    ("aws-efs-csi-driver", "flags"): _takes_flag,
    ("aws-efs-csi-driver", "chart values"): _has_chart_value,
    ("aws-efs-operator", "fields of SharedVolumes"): _has_field,
    ("aws-efs-operator", "labels and finalizers"): _is_in_the_source,
    ("aws-efs-csi-driver-operator", "fields of ClusterCSIDrivers"): _has_field,
}
_EVERYWHERE: dict[str, Callable[[str], bool]] = {
    "annotations": _is_an_annotation,
    "environment variables": _reads_variable,
    "metrics": _serves_metric,
}
# Sentences about the behavior, which tests elsewhere prove.
_NOT_NAMES = "behavior"


def _cases() -> Iterator[Any]:
    for row in ROWS:
        if row.kind != _NOT_NAMES and row.verdict is not Verdict.DIFFERENT:
            yield pytest.param(row, id=f"{row.system}-{row.kind}-{row.name}")


@pytest.mark.parametrize("row", list(_cases()))
def test_product_accepts_what_the_page_calls_the_same_and_nothing_that_it_calls_refused(row: Row) -> None:
    accepts = CHECKS.get((row.system, row.kind)) or _EVERYWHERE[row.kind]
    assert accepts(row.name) is (row.verdict is Verdict.SAME)


def _accepted(parse: Callable[[], object]) -> bool:
    try:
        parse()
    except KubeEfsError:
        return False
    return True


@cache
def _variables() -> frozenset[str]:
    kinds = (ControllerSettings, TunnelSettings, NodeSettings, OperatorSettings)
    return frozenset(one.name for kind in kinds for one in variables(kind).values())


@cache
def _source() -> str:
    folder = ROOT / "src" / "kube_efs"
    files = (path for suffix in ("py", "yaml") for path in folder.rglob(f"*.{suffix}"))
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(files))
