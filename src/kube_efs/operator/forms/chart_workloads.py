"""The workloads of the chart, with the values that users can set."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kube_efs.operator.forms.chart_values import WORKLOADS
from kube_efs.operator.forms.go_templates import Expression, Lines, Override, optional
from kube_efs.operator.forms.value_schemas import first_object
from kube_efs.settings.installed import HEALTH_HOST

# Conditions: the values give no address for the metrics of the process.
DEFAULT_HEALTH_HOST: Final = {name: f"default_health_host_of_{name}" for name in ("tunnel", "node")}
# The defaults of the AWS driver.
_ROOT_POD: Final = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0, "fsGroup": 0}
_ROOT_CONTAINER: Final = {"privileged": True}


def workload_with_values(node: Any) -> Any:  # noqa: ANN401 - any JSON
    """The Deployment or DaemonSet, with the values that users can set."""
    (container,) = node["spec"]["template"]["spec"]["containers"]
    (name,) = [key for key, (asset, _) in WORKLOADS.items() if container["args"] == [asset]]
    values = f"$.Values.{name}"
    spec, template = node["spec"], node["spec"]["template"]
    metadata = {**template["metadata"], "annotations": _pod_annotations(name, template)}
    pod = {
        **template["spec"],
        "nodeSelector": Expression(f"{values}.nodeSelector"),
        "tolerations": optional(f"{values}.tolerations"),
        **_of_the_driver(name, template["spec"]),
        "containers": [_container(container, name)],
    }
    if "initContainers" in pod:
        pod["initContainers"] = [_pulled(one) for one in pod["initContainers"]]
    changed = {**spec, "template": {**template, "metadata": metadata, "spec": pod}}
    if name == "tunnel":
        changed["updateStrategy"] = Expression(f"{values}.updateStrategy")
        return {**node, "spec": changed}
    metadata["labels"] = _labels(template["metadata"]["labels"], f"{values}.podLabels")
    limit = f"{values}.revisionHistoryLimit"
    changed["revisionHistoryLimit"] = Expression(limit, when=f'not (kindIs "invalid" {limit})')
    if name == "controller":
        count = "$.Values.controller.replicaCount"
        changed["replicas"] = Expression(
            f'ternary $.Values.controller.replicas {count} (kindIs "invalid" {count})'
        )
    strategy = "strategy" if name == "controller" else "updateStrategy"
    changed[strategy] = Override(
        f'dict "type" "RollingUpdate" "rollingUpdate" {values}.rollingUpdate',
        when=f"{values}.rollingUpdate",
        usual=spec[strategy],
    )
    labels = _labels(node["metadata"]["labels"], f"{values}.additionalLabels")
    return {**node, "metadata": {**node["metadata"], "labels": labels}, "spec": changed}


def _pod_annotations(name: str, template: Any) -> Override:  # noqa: ANN401 - any JSON
    """Those of the asset, also beside the given ones."""
    usual = template["metadata"]["annotations"]
    given = f"$.Values.{name}.podAnnotations"
    annotations, when = f"deepCopy {given}", given
    if name == "controller":
        scraped = "and $.Values.controller.enableMetrics $.Values.controller.enablePrometheusAnnotations"
        annotations = 'include "kube-efs.controller.podAnnotations" $ | fromJson'
        when = f"or {given} ({scraped})"
    return Override(f"merge ({annotations}) ({_dict(usual)})", when=when, usual=usual)


def _labels(usual: Mapping[str, str], given: str) -> Override:
    return Override(
        f'merge ({_dict(usual)}) (include "kube-efs.labels" (list $ {given}) | fromJson)',
        when=f"or {given} $.Values.nameOverride",
        usual=usual,
    )


def _of_the_driver(name: str, usual: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any JSON
    """The fields of a pod that values of the AWS driver's chart change.

    The tunnel agent does a part of the work of the AWS driver's pod on a node, so it has these values of it
    that concern the network, and runs on the same nodes.
    """
    of_pod = "controller" if name == "controller" else "node"
    values = f"$.Values.{of_pod}"
    secrets = pull_secrets()
    fields: dict[str, Any] = {
        # An account that the chart does not create may lack them.
        "imagePullSecrets": replace(
            secrets, when=f"and (not {values}.serviceAccount.create) ({secrets.when})"
        ),
        "dnsPolicy": optional(f"{values}.dnsPolicy"),
        "dnsConfig": optional(f"{values}.dnsConfig"),
    }
    if of_pod == "node":
        fields["hostAliases"] = Expression(
            'include "kube-efs.hostAliases" $ | fromJsonArray', when=f"{values}.hostAliases"
        )
        nodes = usual["affinity"]["nodeAffinity"]
        given = f'(get {values}.affinity "nodeAffinity")'
        fields["affinity"] = {
            **usual["affinity"],
            "nodeAffinity": Override(
                f'include "kube-efs.nodeAffinity" (list {given} (fromJson `{json.dumps(nodes)}`)) | fromJson',
                when=given,
                usual=nodes,
            ),
        }
    fields["volumes"] = [*usual["volumes"], _items_of(f"$.Values.{name}.volumes")]
    if name == "tunnel":
        return fields
    fields["priorityClassName"] = Expression(f"{values}.priorityClassName")
    if name == "node":
        fields["securityContext"] = optional(f"{values}.securityContext")
        return fields
    fields["affinity"] = optional(f"{values}.affinity")
    fields["hostNetwork"] = optional(f"{values}.hostNetwork")
    fields["securityContext"] = _unless_root(f"{values}.securityContext", _ROOT_POD, usual["securityContext"])
    labels = _dict(controller_labels())
    fields["topologySpreadConstraints"] = Override(
        f'include "kube-efs.topologySpreadConstraints" (list $ ({labels})) | fromJsonArray',
        when=f"{values}.topologySpreadConstraints",
        usual=usual["topologySpreadConstraints"],
    )
    return fields


def pull_secrets() -> Expression:
    """The Secrets for pulling the image."""
    return Expression(
        'include "kube-efs.pullSecrets" $ | fromJsonArray',
        when="or $.Values.image.pullSecrets $.Values.imagePullSecrets",
    )


def _dict(entries: Mapping[str, str]) -> str:
    """The expression for a mapping of texts, which may be placeholders."""
    parts = (part for entry in entries.items() for part in entry)
    return f"dict {' '.join(part if part.startswith('{') else json.dumps(part) for part in parts)}"


def controller_labels() -> Mapping[str, str]:
    """The labels that select the pods of the controller."""
    labels: Mapping[str, str] = first_object("controller")["spec"]["selector"]["matchLabels"]
    return labels


def _unless_root(given: str, root: Mapping[str, Any], usual: Any) -> Override:  # noqa: ANN401 - any JSON
    """The given security context; the AWS driver's default would only remove protection."""
    text = json.dumps(root, separators=(",", ":"), sort_keys=True)
    return Override(given, when=f"and {given} (ne (toJson {given}) `{text}`)", usual=usual)


def _container(container: Any, name: str) -> Any:  # noqa: ANN401 - any JSON
    values = f"$.Values.{name}"
    variables = _items_of(f'(include "kube-efs.{name}.env" $ | fromJsonArray)')
    own = [
        {**one, "$if": DEFAULT_HEALTH_HOST[name]} if one["name"] == HEALTH_HOST else one
        for one in container["env"]
    ]
    changed = {
        **_pulled(container),
        "env": [*own, variables],
        "resources": Expression(f"{values}.resources"),
        "volumeMounts": [*container["volumeMounts"], _items_of(f"{values}.volumeMounts")],
    }
    if name == "tunnel":
        return changed
    (port,) = container["ports"]
    number = Expression(f"{values}.healthPort")
    changed["ports"] = [{key: number if key.endswith("Port") else value for key, value in port.items()}]
    host = container["livenessProbe"]["httpGet"].get("host", "")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        given = f"{values}.{probe}"
        text = f'include "kube-efs.probe" (list {given} {json.dumps(host)}) | fromJson'
        changed[probe] = Override(text, when=given, usual=container[probe])
    if name == "controller":
        changed["securityContext"] = _unless_root(
            f"{values}.containerSecurityContext", _ROOT_CONTAINER, container["securityContext"]
        )
    return changed


def _items_of(expression: str) -> Lines:
    """The items of a list that an expression gives."""
    return Lines((f"{{{{- range {expression} }}}}", "- {{ . | toJson }}", "{{- end }}"))


def _pulled(container: Any) -> Any:  # noqa: ANN401 - any JSON
    return {**container, "imagePullPolicy": optional("$.Values.image.pullPolicy")}
