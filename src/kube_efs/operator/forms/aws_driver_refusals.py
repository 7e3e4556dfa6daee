"""The values of the chart of aws-efs-csi-driver that this chart refuses, and the template that does it.

A file of values of that chart is used as it is. A value that would be ignored would only be missed when it
is needed, so it stops Helm, with a remedy. The schema cannot do this: its messages have no remedies.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kube_efs.operator.forms.value_schemas import Value
from kube_efs.operator.platforms import Platform
from kube_efs.settings.base import own_image
from kube_efs.settings.installed import (
    HEALTH_HOST,
    HEALTH_HOST_REMEDY,
    HEALTH_HOSTS,
    LOOPBACK_HOST,
    LOOPBACK_HOST_REMEDY,
    PREFIX,
    PROCESSES,
    setting_names,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRefusal:
    """A value that is not served. ``usual`` is its default in the other chart, which asks for nothing."""

    path: str
    usual: Any
    remedy: str

    @property
    def value(self) -> Value:
        """The value in the chart, where its default is null."""
        return Value(
            path=self.path,
            default=None,
            meaning=f"Not served; accepts only `{json.dumps(self.usual)}`. To do: {self.remedy}",
            schema={},
        )


_NO_S3: Final = "remove it; kube-efs has no s3files-utils.conf, and writes no logs and metrics to CloudWatch"

REFUSALS: Final = (
    ValueRefusal(
        path="fullnameOverride",
        usual="",
        remedy="remove it; it has no effect in the chart of the AWS driver either",
    ),
    ValueRefusal(
        path="sidecars",
        usual={},
        remedy="remove it; the processes of kube-efs do the work of the sidecars",
    ),
    ValueRefusal(
        path="controller.name",
        usual="efs-csi-controller",
        remedy="remove it; the name of the Deployment is fixed",
    ),
    ValueRefusal(
        path="controller.extraCreateMetadata",
        usual=True,
        remedy="remove it; the controller always knows the claim",
    ),
    ValueRefusal(
        path="controller.socketDirVolume",
        usual={"emptyDir": {}},
        remedy="remove it; no sidecar shares a socket with the controller",
    ),
    ValueRefusal(
        path="controller.timeout",
        usual="15s",
        remedy="remove it; the controller limits and repeats its calls itself",
    ),
    ValueRefusal(
        path="controller.workerThreads",
        usual=100,
        remedy="remove it, or set KUBE_EFS_AWS_CONCURRENCY in controller.env",
    ),
    ValueRefusal(
        path="controller.fileSystemIdRefs.enabled",
        usual=False,
        remedy="remove it, and name the Secrets and ConfigMaps in csi.classReferences",
    ),
    ValueRefusal(
        path="node.efsUtilsConfOverrides",
        usual="",
        remedy="remove it, or set the setting of kube-efs in tunnel.env; kube-efs does not use efs-utils",
    ),
    ValueRefusal(
        path="node.efsCloudWatchLogEnabled",
        usual=False,
        remedy="remove it; the log of mounts is that of the CSI driver and the tunnel agent",
    ),
    ValueRefusal(path="node.s3filesUtilsConfOverrides", usual="", remedy=_NO_S3),
    ValueRefusal(path="node.s3filesCloudWatchLogEnabled", usual=True, remedy=_NO_S3),
    ValueRefusal(path="node.s3filesCloudWatchMetricsEnabled", usual=True, remedy=_NO_S3),
)
_REGION: Final = "AWS_REGION"
_HOST_NETWORK: Final = "controller.hostNetwork"
_HEALTH_PORT: Final = "KUBE_EFS_HEALTH_PORT"
# Variables of the AWS driver that kube-efs does not read.
FOREIGN_VARIABLES: Final[Mapping[str, str]] = {
    "CSI_NODE_NAME": "remove it; the chart sets NODE_NAME",
    "DISABLE_TAINT_WATCHER": "use node.serviceAccount.disableMutation",
    "FIPS_ENABLED": "use useFIPS",
    "PORT_RANGE_UPPER_BOUND": "use portRangeUpperBound",
}


def refusals_template(
    needs_csi: Sequence[Value], accounts: Sequence[str], own_variables: Mapping[str, Sequence[str]]
) -> str:
    """A template that renders nothing, or fails with every fault of the values.

    ``needs_csi`` are the values that have an effect with the CSI driver only, ``accounts`` the expressions
    for the names of all service accounts, ``own_variables`` those that belong to the chart, for each value of
    variables.
    """
    lines = (
        "{{- $faults := list }}",
        *(line for one in REFUSALS for line in _refusal(one)),
        *_image(),
        *_variables(own_variables),
        *_ports(),
        *_tags(),
        *_accounts(accounts),
        *_without_csi(needs_csi),
        *_pairs(),
        "{{- with $faults }}",
        '{{- fail (printf "\\n%s" (join "\\n" .)) }}',
        "{{- end }}",
    )
    return "".join(f"{line}\n" for line in lines)


def _refusal(one: ValueRefusal) -> Iterator[str]:
    value = f"$.Values.{one.path}"
    asked = f'and (not (kindIs "invalid" {value})) (ne (toJson {value}) `{_json(one.usual)}`)'
    if isinstance(one.usual, Mapping) and not one.usual:
        # The user has written values below this one.
        names = f'include "kube-efs.paths" (list "{one.path}" {value}) | trim'
    else:
        names = f'printf "{one.path}: %s" (toJson {value})'
    yield from _fault(asked, names, f"is not served; {one.remedy}")


def _image() -> Iterator[str]:
    repository, tag = "$.Values.image.repository", "$.Values.image.tag"
    yield from _fault(
        f'hasSuffix "/aws-efs-csi-driver" (printf "/%s" {repository})',
        f'printf "image.repository: %s" {repository}',
        "is the image of the AWS driver; remove it, or name a copy of the image of kube-efs",
    )
    yield from _fault(
        f'and (eq {repository} "{own_image().partition(":")[0]}") (regexMatch "^v[0-9]" {tag})',
        f'printf "image.tag: %s" {tag}',
        "is a tag of the AWS driver; remove it",
    )


def _variables(own: Mapping[str, Sequence[str]]) -> Iterator[str]:
    of_any = {name for kind in PROCESSES.values() for name in setting_names(kind)}
    for values, names in own.items():
        process = values.removesuffix(".env")
        elsewhere = {**FOREIGN_VARIABLES, _REGION: "use region"}
        if process != "tunnel":
            elsewhere[_HEALTH_PORT] = f"use {process}.healthPort"
        yield f"{{{{- $known := {_list({*setting_names(PROCESSES[process]), *names, *elsewhere})} }}}}"
        if process == "node":
            yield f'{{{{- if not (kindIs "map" $.Values.{values}) }}}}'
            yield f"{{{{- $known = concat $known ({_list(setting_names(PROCESSES['tunnel']))}) }}}}"
            yield "{{- end }}"
        yield f'{{{{- range include "kube-efs.variables" $.Values.{values} | fromJsonArray }}}}'
        yield from _fault(
            f"has .name ({_list({*names} - elsewhere.keys())})",
            f'printf "{values}: %s" .name',
            "belongs to the chart; remove it",
        )
        for name, remedy in elsewhere.items():
            yield from _fault(f'eq .name "{name}"', f'"{values}: {name}"', f"is not a setting here; {remedy}")
        yield from _fault(
            f'and (or (hasPrefix "{PREFIX}" .name) (has .name ({_list(of_any)}))) (not (has .name $known))',
            f'printf "{values}: %s" .name',
            "is not a setting of this process; use one of docs/settings.md",
        )
        if process == "controller":
            is_loopback = f"regexMatch `{LOOPBACK_HOST}` (toString .value)"
            refused = f'and (eq .name "{HEALTH_HOST}") (not $.Values.{_HOST_NETWORK}) ({is_loopback})'
            remedy = LOOPBACK_HOST_REMEDY
        else:
            refused = f'and (eq .name "{HEALTH_HOST}") (not (has .value ({_list(HEALTH_HOSTS)})))'
            remedy = HEALTH_HOST_REMEDY
        yield from _fault(refused, f'"{values}: {HEALTH_HOST}:"', remedy)
        yield "{{- end }}"


def _list(texts: Iterable[str]) -> str:
    """The expression for a list."""
    return f"list {' '.join(json.dumps(text) for text in sorted(texts))}"


def _ports() -> Iterator[str]:
    value = "$.Values.portRangeUpperBound"
    yield from _fault(
        f"and {value} (ne (int {value}) 21049) (or (lt (int {value}) 22049) (gt (int {value}) 65535))",
        f'printf "portRangeUpperBound: %v" {value}',
        "is not served; use a port from 22049 to 65535, or set KUBE_EFS_TUNNEL_PORTS in tunnel.env",
    )


def _tags() -> Iterator[str]:
    # The values have the escapes, as in the chart of the AWS driver. Without one, a tag would become two, or
    # the controller would not start.
    yield "{{- range $key, $value := $.Values.controller.tags }}"
    yield from _fault(
        r'not (regexMatch `^(\\.|[^ :\\])+:(\\.|[^ :\\])*$` (printf "%s:%s" $key $value))',
        'printf "controller.tags: %s:%s" $key $value',
        "is not a tag; name the key, and write a backslash before each blank and colon",
    )
    yield "{{- end }}"


def _accounts(names: Sequence[str]) -> Iterator[str]:
    # The admission policies limit what an account may change to what its own process changes.
    accounts = f"(list {' '.join(f'({name})' for name in names)})"
    yield from _fault(
        f"ne (len {accounts}) (len (uniq {accounts}))",
        f'printf "serviceAccount.name: %s" (join ", " {accounts})',
        "must differ; give each process its own service account",
    )


def _without_csi(needs_csi: Sequence[Value]) -> Iterator[str]:
    yield "{{- if not $.Values.csi.enabled }}"
    for one in needs_csi:
        value = f"$.Values.{one.path}"
        # An empty list, as of variables in the file of the AWS driver, requests nothing.
        given = f"not (has (toJson {value}) (list `{_json(one.default)}` `[]` `{{}}`))"
        if one.path == "node.env":  # as a list, they apply to the tunnel agent, too
            given = f'and (kindIs "map" {value}) ({given})'
        yield from _fault(
            given,
            f'"{one.path}"',
            "has no effect without the CSI driver; set csi.enabled",
        )
    yield "{{- end }}"


def _pairs() -> Iterator[str]:
    """Values that are served, but not together with others."""
    yield from _fault(
        f'and $.Values.{_HOST_NETWORK} (eq $.Values.platform "{Platform.OPENSHIFT}")',
        f'"{_HOST_NETWORK}"',
        "is not allowed by any SecurityContextConstraints of the chart on OpenShift; remove it",
    )
    budget = "controller.podDisruptionBudget"
    both = " ".join(
        f'(not (kindIs "invalid" $.Values.{budget}.{name}))' for name in ("minAvailable", "maxUnavailable")
    )
    yield from _fault(
        f"and $.Values.{budget}.enabled {both}",
        f'"{budget}"',
        "has minAvailable and maxUnavailable, of which Kubernetes accepts one; remove the other",
    )


def _fault(condition: str, subject: str, problem: str) -> Iterator[str]:
    yield f"{{{{- if {condition} }}}}"
    yield f"{{{{- $faults = append $faults (printf {json.dumps(f'%s {problem}')} ({subject})) }}}}"
    yield "{{- end }}"


def _json(value: Any) -> str:  # noqa: ANN401 - any JSON
    """The text that ``toJson`` of Helm gives."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
