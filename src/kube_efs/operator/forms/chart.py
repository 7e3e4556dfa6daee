"""The Helm chart, as the files of its directory."""

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final

import yaml

from kube_efs.operator.forms.chart_values import WORKLOADS, Value, chart_values, defaults, schema
from kube_efs.operator.forms.go_templates import Context, Expression, Lines, conditional, write_object
from kube_efs.operator.forms.yaml_text import HEADER, document
from kube_efs.operator.manifests import (
    CLASS_REFERENCES,
    RenderOptions,
    load_asset,
    static_assets,
    values_of,
    workload_assets,
)
from kube_efs.operator.platforms import Platform

FOLDER: Final = "helm/kube-efs"
_CSI: Final = "$.Values.csi.enabled"
_OPENSHIFT: Final = f'eq $.Values.platform "{Platform.OPENSHIFT}"'
_NOT_OPENSHIFT: Final = f'ne $.Values.platform "{Platform.OPENSHIFT}"'
# Helm or its user creates the namespace.
_LEFT_OUT: Final = frozenset({"namespace"})
# Optional assets, and the value that enables each.
_OPTIONAL: Final = {
    "observing-rbac": "$.Values.controller.observing",
    "controller-metrics": "$.Values.monitoring.enabled",
    "pod-monitors": "$.Values.monitoring.enabled",
    "rules": "$.Values.monitoring.enabled",
}
_ACCOUNTS: Final = {"efs-manager": "controller", "efs-stunnel": "tunnel", "efs-csi-node": "node"}
_PLAIN: Final = values_of(RenderOptions(platform=Platform.KUBERNETES))
_CONTEXT: Final = Context(
    {
        "namespace": Expression("$.Release.Namespace"),
        "image": Expression('include "kube-efs.image" $'),
        "provisioner": Expression("$.Values.storageClass.provisioner"),
        "storage_class_name": Expression("$.Values.storageClass.name"),
        "region": Expression("$.Values.region", when="$.Values.region"),
        "kubelet_folder": Expression("$.Values.csi.kubeletDirectory"),
        "csi": Expression(_CSI),
        "selinux": Expression(f"and ({_OPENSHIFT}) {_CSI}"),
        "user_id": Expression(str(_PLAIN["user_id"]), when=_NOT_OPENSHIFT),
        "tunnel_user_id": Expression(str(_PLAIN["tunnel_user_id"]), when=f"or ({_NOT_OPENSHIFT}) {_CSI}"),
        "state_folder": str(_PLAIN["state_folder"]),
        "socket_folder": str(_PLAIN["socket_folder"]),
        "referenced_namespace": Expression(".namespace"),
        "secrets": Expression(".secrets", when=".secrets"),
        "config_maps": Expression(".configMaps", when=".configMaps"),
    }
)
_HELPERS: Final = """\
{{- define "kube-efs.image" -}}
{{- with .Values.image.digest -}}
{{ $.Values.image.repository }}@{{ . }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
"""
_NOTES: Final = """\
kube-efs {{ .Chart.AppVersion }} is in namespace {{ .Release.Namespace }}.

Its pods use the host network, and worker pods run as root. If the cluster enforces Pod Security, allow this:
  kubectl label namespace {{ .Release.Namespace }} pod-security.kubernetes.io/enforce=privileged

To check the installation:
  kubectl get pods --namespace {{ .Release.Namespace }} --selector app.kubernetes.io/part-of=kube-efs
"""


def chart_files() -> Mapping[str, str]:
    """The text of each file of the chart, by its path in it."""
    values = chart_values()
    return {
        "Chart.yaml": document(_chart()),
        "values.yaml": HEADER + _values_text(values),
        "values.schema.json": json.dumps(schema(values), indent=2, ensure_ascii=False) + "\n",
        "README.md": _page(values),
        "templates/_helpers.tpl": _HELPERS,
        "templates/NOTES.txt": _NOTES,
        **{f"templates/{name}.yaml": text for name, text in _templates()},
    }


def _chart() -> dict[str, Any]:
    number = version("kube-efs")
    return {
        "apiVersion": "v2",
        "name": "kube-efs",
        "description": "TLS-secured Amazon EFS volumes for Kubernetes and OpenShift",
        "type": "application",
        "version": number,
        "appVersion": number,
        "kubeVersion": ">=1.30.0-0",
        "keywords": ["storage", "csi", "efs", "nfs"],
    }


def _values_text(values: tuple[Value, ...]) -> str:
    """YAML with each meaning above its value."""
    meanings = {value.path: value.meaning for value in values}

    def lines(node: Mapping[str, Any], prefix: str, indent: str) -> Iterator[str]:
        for key, value in node.items():
            path = f"{prefix}{key}"
            if path in meanings:
                yield f"{indent}# {meanings[path]}.\n"
                yield f"{indent}{key}: {_flow(value)}\n"
            else:
                yield f"{indent}{key}:\n"
                yield from lines(value, f"{path}.", f"{indent}  ")

    return "".join(lines(defaults(values), "", ""))


def _flow(value: Any) -> str:  # noqa: ANN401 - any JSON
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _page(values: tuple[Value, ...]) -> str:
    rows = "".join(f"| `{value.path}` | `{_flow(value.default)}` | {value.meaning} |\n" for value in values)
    return f"""\
<!-- Written by `make forms`. -->
# The chart of kube-efs

```sh
helm install kube-efs deploy/helm/kube-efs --namespace openshift-efs-stunnel --create-namespace
```

[docs/helm.md](../../../docs/helm.md) describes how to configure, upgrade and remove it.

| value | default | meaning |
|---|---|---|
{rows}"""


def _templates() -> Iterator[tuple[str, str]]:
    for asset, condition in (*_installed(), *_OPTIONAL.items()):
        yield asset, HEADER + conditional(condition, _documents(asset))
    each = f"{{{{- range $.Values.csi.classReferences }}}}\n{_documents(CLASS_REFERENCES)}{{{{- end }}}}\n"
    yield CLASS_REFERENCES, HEADER + conditional(_CSI, each)


def _installed() -> Iterator[tuple[str, str | None]]:
    """The assets of an installation, each with its condition, which is derived from the rendered assets."""
    present = {
        (platform, csi): [*static_assets(options), *workload_assets(options)]
        for platform in Platform
        for csi in (False, True)
        for options in [RenderOptions(platform=platform, csi=csi)]
    }
    for asset in present[Platform.OPENSHIFT, True]:
        conditions = []
        if asset not in present[Platform.OPENSHIFT, False]:
            conditions.append(_CSI)
        if asset not in present[Platform.KUBERNETES, True]:
            conditions.append(f"({_OPENSHIFT})")
        if asset == "storage-class":
            conditions.append("$.Values.storageClass.create")
        if asset not in _LEFT_OUT:
            text = " ".join(conditions)
            yield asset, (f"and {text}" if len(conditions) > 1 else text or None)


def _documents(asset: str) -> str:
    objects = [write_object(_with_values(one), _CONTEXT) for one in load_asset(asset)]
    return "".join(f"---\n{text}" for text in objects)


def _with_values(node: Any) -> Any:  # noqa: ANN401 - any JSON
    """The object, with the values that users can set."""
    match node["kind"]:
        case "ServiceAccount":
            return _service_account(node)
        case "StorageClass":
            return _storage_class(node)
        case "CustomResourceDefinition":
            # Removing the release must not remove the users' objects of the kind.
            kept = {"annotations": {"helm.sh/resource-policy": "keep"}}
            return {**node, "metadata": {**node["metadata"], **kept}}
        case "Deployment" | "DaemonSet":
            return _workload(node)
        case _:
            return node


def _service_account(node: Any) -> Any:  # noqa: ANN401 - any JSON
    workload = _ACCOUNTS.get(node["metadata"]["name"])
    metadata = {**node["metadata"]}
    if workload:
        metadata["annotations"] = _optional(f"$.Values.{workload}.serviceAccountAnnotations")
    return {**node, "metadata": metadata, "imagePullSecrets": _optional("$.Values.image.pullSecrets")}


def _storage_class(node: Any) -> Any:  # noqa: ANN401 - any JSON
    metadata = {**node["metadata"], "annotations": _optional("$.Values.storageClass.annotations")}
    return {
        **node,
        "metadata": metadata,
        "parameters": Expression("$.Values.storageClass.parameters"),
        "reclaimPolicy": Expression("$.Values.storageClass.reclaimPolicy"),
    }


def _workload(node: Any) -> Any:  # noqa: ANN401 - any JSON
    (container,) = node["spec"]["template"]["spec"]["containers"]
    (name,) = [key for key, (asset, _) in WORKLOADS.items() if container["args"] == [asset]]
    values = f"$.Values.{name}"
    spec, template = node["spec"], node["spec"]["template"]
    metadata = {**template["metadata"], "annotations": _optional(f"{values}.podAnnotations")}
    pod = {
        **template["spec"],
        "nodeSelector": Expression(f"{values}.nodeSelector"),
        "tolerations": _optional(f"{values}.tolerations"),
        "containers": [_container(container, values)],
    }
    if "initContainers" in pod:
        pod["initContainers"] = [_pulled(one) for one in pod["initContainers"]]
    changed = {**spec, "template": {**template, "metadata": metadata, "spec": pod}}
    if name == "controller":
        changed["replicas"] = Expression(f"{values}.replicas")
    if name == "tunnel":
        changed["updateStrategy"] = Expression(f"{values}.updateStrategy")
    return {**node, "spec": changed}


def _container(container: Any, values: str) -> Any:  # noqa: ANN401 - any JSON
    variables = Lines(
        (
            f"{{{{- range $name, $value := {values}.env }}}}",
            "- name: {{ $name | toJson }}",
            "  value: {{ $value | toJson }}",
            "{{- end }}",
        )
    )
    resources = Expression(f"{values}.resources")
    return {**_pulled(container), "env": [*container["env"], variables], "resources": resources}


def _pulled(container: Any) -> Any:  # noqa: ANN401 - any JSON
    return {**container, "imagePullPolicy": _optional("$.Values.image.pullPolicy")}


def _optional(text: str) -> Expression:
    return Expression(text, when=text)
