"""The Helm chart, as the files of its directory."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

import yaml

from kube_efs.model.names import NEW_INSTALLATION, UNNAMED_INSTALLATION, NameSet
from kube_efs.operator.forms.aws_driver_refusals import REFUSALS, refusals_template
from kube_efs.operator.forms.aws_driver_values import aws_driver_values
from kube_efs.operator.forms.chart_values import WORKLOADS, chart_values, defaults, own_variables, schema
from kube_efs.operator.forms.chart_workloads import (
    DEFAULT_HEALTH_HOST,
    controller_labels,
    pull_secrets,
    workload_with_values,
)
from kube_efs.operator.forms.go_templates import (
    Context,
    Expression,
    Override,
    conditional,
    optional,
    write_object,
)
from kube_efs.operator.forms.value_schemas import Value, first_object
from kube_efs.operator.forms.yaml_text import HEADER, document
from kube_efs.operator.manifests import (
    CLASS_REFERENCES,
    STORAGE_CLASS,
    RenderOptions,
    load_asset,
    static_assets,
    values_of,
    workload_assets,
)
from kube_efs.operator.platforms import Platform
from kube_efs.settings.installed import ALL_ADDRESSES

FOLDER: Final = "helm/kube-efs"
_CSI: Final = "$.Values.csi.enabled"
_CSI_ONLY: Final = f"and {_CSI} $.Values.csi.only"
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
_CREATED: Final = {
    "storage-class": "$.Values.storageClass.create",
    "controller": "$.Values.controller.create",
}
# With those below csi and node, the values that have an effect with the CSI driver only.
_OF_THE_DRIVER: Final = frozenset({"storageClasses", "useHelmHooksForCSIDriver"})
# The accounts that users can name, and the values that name them. The node's pods of the AWS driver sign
# mounts with their account, which is the tunnel agent's work here.
_NAMED_ACCOUNTS: Final = {"controller_account": "controller", "tunnel_account": "node"}
_HEALTH_HOST: Final = {
    name: f'(include "kube-efs.healthHost" (list $ "{name}"))' for name in DEFAULT_HEALTH_HOST
}
_PLAIN: Final = values_of(RenderOptions(platform=Platform.KUBERNETES))
_NAMES: Final = '(include "kube-efs.names" $ | fromJson)'


def _names_of(name_set: NameSet) -> Mapping[str, str]:
    """The placeholders with the names that do not depend on other values."""
    names = name_set.names
    of_values = {"namespace", "storage_class"}
    found = {
        **asdict(names),
        "name_set": names.name_set.value,
        "tunnel_status": names.tunnel_status,
        "older_config_map": names.older_config_map or "",
    }
    return {name: text for name, text in found.items() if name not in of_values}


_CONTEXT: Final = Context(
    {
        **{name: Expression(f"{_NAMES}.{name}") for name in _names_of(NEW_INSTALLATION)},
        "namespace": Expression("$.Release.Namespace"),
        "image": Expression('include "kube-efs.image" $'),
        "provisioner": Expression("$.Values.storageClass.provisioner"),
        "storage_class_name": Expression(f"$.Values.storageClass.name | default {_NAMES}.storage_class"),
        "region": Expression("$.Values.region", when="$.Values.region"),
        "fips": Expression("$.Values.useFIPS"),
        "kubelet_folder": Expression('include "kube-efs.kubeletDirectory" $'),
        "csi": Expression(_CSI),
        "csi_only": Expression(_CSI_ONLY),
        "pod_tokens": Expression("$.Values.csi.podTokens"),
        "tunnel_volumes": Expression(f"not ({_CSI_ONLY})"),
        "backends": Expression('ternary "csi" "tunnel,directory,csi" $.Values.csi.only'),
        "openshift": Expression(_OPENSHIFT),
        "user_id": Expression(str(_PLAIN["user_id"]), when=_NOT_OPENSHIFT),
        "tunnel_user_id": Expression(str(_PLAIN["tunnel_user_id"]), when=f"or ({_NOT_OPENSHIFT}) {_CSI}"),
        **{key: Expression(f"not {_HEALTH_HOST[name]}") for name, key in DEFAULT_HEALTH_HOST.items()},
        "state_folder": str(_PLAIN["state_folder"]),
        "socket_folder": str(_PLAIN["socket_folder"]),
        "referenced_namespace": Expression(".namespace"),
        "secrets": Expression(".secrets", when=".secrets"),
        "config_maps": Expression(".configMaps", when=".configMaps"),
        **{
            name: Expression(f"$.Values.{values}.serviceAccount.name | default {_NAMES}.{name}")
            for name, values in _NAMED_ACCOUNTS.items()
        },
        # The CSI driver alone has no ConfigMap with ports.
        "older_config_map": Expression(f'ternary "" {_NAMES}.older_config_map ({_CSI_ONLY})'),
    }
)
_ALL_NAMES: Final = {
    one.value: {**_names_of(one), "storage_class": one.names.storage_class} for one in NameSet
}
# Helm would delete the objects with the previous names, and so end all tunnels at once. In a release of the
# AWS driver, it would delete the DaemonSet with the pods that hold the tunnels, or, with the names of that
# driver, stop half-way, because a selector cannot be changed.
_CHECK: Final = """\
{{- range $set, $names := (include "kube-efs.all-names" $ | fromJson) }}
{{- if and (ne $set NAME_SET) (lookup "apps/v1" "DaemonSet" $.Release.Namespace $names.tunnel) }}
{{- fail (printf "names %q: the namespace has other names in use; set names: %s" NAME_SET $set) }}
{{- end }}
{{- end }}
{{- with (lookup "apps/v1" "DaemonSet" $.Release.Namespace "efs-csi-node") }}
{{- $release := dig "metadata" "annotations" "meta.helm.sh/release-name" "" . }}
{{- $app := dig "spec" "selector" "matchLabels" "app" "" . }}
{{- if and (eq $release $.Release.Name) (eq $app "efs-csi-node") }}
{{- $keeping := printf "kubectl delete daemonset -n %s efs-csi-node --cascade=orphan" $.Release.Namespace }}
{{- fail (printf "the pods of the AWS driver hold the tunnels of mounted volumes; keep them: %s" $keeping) }}
{{- end }}
{{- end }}
""".replace("NAME_SET", f"{_NAMES}.name_set")
_NODE_ROLE: Final = "kube-efs-node"
# In chart_names.tpl.
_WORDS: Final = {
    "ALL_NAMES": json.dumps(_ALL_NAMES, indent=2),
    "NEW_NAMESPACE": NEW_INSTALLATION.names.namespace,
    "NEW_NAMES": NEW_INSTALLATION.value,
    "OLD_NAMESPACE": UNNAMED_INSTALLATION.names.namespace,
    "OLD_NAMES": UNNAMED_INSTALLATION.value,
}
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
        "templates/_helpers.tpl": files(__package__).joinpath("chart_helpers.tpl").read_text("utf-8"),
        "templates/_names.tpl": _name_helpers(),
        "templates/NOTES.txt": _NOTES,
        "templates/names.yaml": HEADER + _CHECK,
        **{f"templates/{name}.yaml": text for name, text in _templates()},
    }


def _name_helpers() -> str:
    text = files(__package__).joinpath("chart_names.tpl").read_text("utf-8")
    return re.sub("|".join(_WORDS), lambda found: _WORDS[found[0]], text)


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
    adopted = {value.path for value in aws_driver_values()}
    own = [value for value in values if value.path not in adopted]
    return f"""\
<!-- Written by `make forms`. -->
# The chart of kube-efs

```sh
helm install kube-efs deploy/helm/kube-efs --namespace {NEW_INSTALLATION.names.namespace} --create-namespace
```

[docs/helm.md](../../../docs/helm.md) describes how to configure, upgrade and remove it.

{_rows(own)}
## Values of the AWS driver's chart

This chart also takes the values of the chart `aws-efs-csi-driver` (4.4.1), with the same meaning. A value
that is not served stops Helm, with a message that contains a remedy. To move a release, see
[docs/helm.md](../../../docs/helm.md#from-the-chart-of-the-aws-driver).

{_rows(aws_driver_values())}"""


def _rows(values: Iterable[Value]) -> str:
    head = "| value | default | meaning |\n|---|---|---|\n"
    rows = (f"| `{value.path}` | `{_flow(value.default)}` | {value.meaning} |\n" for value in values)
    return f"{head}{''.join(rows)}"


def _templates() -> Iterator[tuple[str, str]]:
    for asset, condition in (*_installed(), *_OPTIONAL.items()):
        yield asset, HEADER + conditional(condition, _documents(asset))
    references = 'include "kube-efs.classReferences" $ | fromJsonArray'
    each = f"{{{{- range {references} }}}}\n{_documents(CLASS_REFERENCES)}{{{{- end }}}}\n"
    yield CLASS_REFERENCES, HEADER + conditional(_CSI, each)
    yield "storage-classes", HEADER + _storage_classes()
    yield "controller-disruption-budget", HEADER + _disruption_budget()
    yield "aws-driver-metrics", HEADER + _aws_driver_metrics()
    yield "refusals", HEADER + _refusals()


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
        if asset in _CREATED:
            conditions.append(_CREATED[asset])
        if asset == STORAGE_CLASS:
            conditions.append(f"(not ({_CSI_ONLY}))")
        if asset not in _LEFT_OUT:
            text = " ".join(conditions)
            yield asset, (f"and {text}" if len(conditions) > 1 else text or None)


def _documents(asset: str) -> str:
    return "".join(_document(_with_values(one)) for one in load_asset(asset))


def _document(node: Any) -> str:  # noqa: ANN401 - any JSON
    text = f"---\n{write_object(node, _CONTEXT)}"
    if node["kind"] == "PodMonitor":
        name = node["spec"]["selector"]["matchLabels"]["component"].strip("{}")
        return conditional(f'eq {_HEALTH_HOST[name]} "{ALL_ADDRESSES}"', text)
    for name, values in _NAMED_ACCOUNTS.items():
        if node["kind"] == "ServiceAccount" and node["metadata"]["name"] == f"{{{name}}}":
            return conditional(f"$.Values.{values}.serviceAccount.create", text)
    return text


def _storage_classes() -> str:
    """The classes of the values, in the form of the AWS driver's chart."""
    node = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": Expression(".name"), "annotations": optional(".annotations")},
        "provisioner": first_object("csi-driver")["metadata"]["name"],
        "parameters": Expression('include "kube-efs.parameters" .parameters | fromJson', when=".parameters"),
        **{name: optional(f".{name}") for name in ("mountOptions", "reclaimPolicy", "volumeBindingMode")},
    }
    return f"{{{{- range $.Values.storageClasses }}}}\n---\n{write_object(node, _CONTEXT)}{{{{- end }}}}\n"


def _disruption_budget() -> str:
    values = "$.Values.controller.podDisruptionBudget"
    most, least = f"{values}.maxUnavailable", f"{values}.minAvailable"
    is_most, is_least = (f'not (kindIs "invalid" {one})' for one in (most, least))
    workload = first_object("controller")
    node = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {name: workload["metadata"][name] for name in ("name", "namespace", "labels")},
        "spec": {
            "selector": workload["spec"]["selector"],
            "minAvailable": Expression(
                f'ternary 1 {least} (kindIs "invalid" {least})', when=f"or ({is_least}) (not ({is_most}))"
            ),
            "maxUnavailable": Expression(most, when=is_most),
            "unhealthyPodEvictionPolicy": optional(f"{values}.unhealthyPodEvictionPolicy"),
        },
    }
    return conditional(f"{values}.enabled", f"---\n{write_object(node, _CONTEXT)}")


def _aws_driver_metrics() -> str:
    """The Service and the ServiceMonitor, with the names of the AWS driver's chart."""
    name = {"name": "efs-csi-controller", "namespace": "{namespace}"}
    labels = {"app": "efs-csi-controller", "app.kubernetes.io/part-of": "kube-efs"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**name, "labels": labels},
        "spec": {
            "selector": controller_labels(),
            "ports": [{"name": "metrics", "port": 3301, "targetPort": "health", "protocol": "TCP"}],
        },
    }
    monitor = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {**name, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": "efs-csi-controller"}},
            "endpoints": [{"port": "metrics", "path": "/metrics", "interval": "15s"}],
        },
    }
    text = "".join(
        (
            f"---\n{write_object(service, _CONTEXT)}",
            conditional(
                "$.Values.controller.serviceMonitor.enabled", f"---\n{write_object(monitor, _CONTEXT)}"
            ),
        )
    )
    return conditional("$.Values.controller.enableMetrics", text)


def _with_values(node: Any) -> Any:  # noqa: ANN401 - any JSON
    """The object, with the values that users can set."""
    change = _CHANGES.get(node["kind"])
    return change(node) if change else node


def _refusals() -> str:
    served = {value.path for value in chart_values()} - {one.path for one in REFUSALS}
    needs_csi = [
        value
        for value in chart_values()
        if value.path in served - {"csi.enabled"}
        and (value.path.startswith(("csi.", "node.")) or value.path in _OF_THE_DRIVER)
    ]
    variables = {f"{name}.env": own_variables(asset) for name, (asset, _) in WORKLOADS.items()}
    # A list of variables of the CSI driver applies to the tunnel agent too.
    variables["node.env"] = sorted({*variables["node.env"], *variables["tunnel.env"]})
    accounts = [_CONTEXT.text_of(name) for name in _names_of(NEW_INSTALLATION) if name.endswith("_account")]
    return refusals_template(needs_csi, accounts, variables)


def _service_account(node: Any) -> Any:  # noqa: ANN401 - any JSON
    metadata = {**node["metadata"]}
    match metadata["name"]:
        case "{controller_account}":
            metadata["annotations"] = _annotations("controller.serviceAccountAnnotations", "controller")
        case "{tunnel_account}":
            metadata["annotations"] = _annotations("tunnel.serviceAccountAnnotations", "node")
        case "{node_account}":
            metadata["annotations"] = optional("$.Values.node.serviceAccountAnnotations")
    return {**node, "metadata": metadata, "imagePullSecrets": pull_secrets()}


def _annotations(own: str, values: str) -> Expression:
    also = f"$.Values.{values}.serviceAccount.annotations"
    return Expression(f"merge (deepCopy $.Values.{own}) {also}", when=f"or $.Values.{own} {also}")


def _storage_class(node: Any) -> Any:  # noqa: ANN401 - any JSON
    metadata = {**node["metadata"], "annotations": optional("$.Values.storageClass.annotations")}
    return {
        **node,
        "metadata": metadata,
        "parameters": Expression("$.Values.storageClass.parameters"),
        "reclaimPolicy": Expression("$.Values.storageClass.reclaimPolicy"),
    }


def _cluster_role(node: Any) -> Any:  # noqa: ANN401 - any JSON
    """The role of the CSI driver without the permission to change nodes, if the values say so."""
    if node["metadata"]["name"] != _NODE_ROLE:
        return node
    return {**node, "rules": [_reading(rule) if "patch" in rule["verbs"] else rule for rule in node["rules"]]}


def _reading(rule: Any) -> Any:  # noqa: ANN401 - any JSON
    reading = [verb for verb in rule["verbs"] if verb != "patch"]
    verbs = Override(
        f"list {' '.join(map(json.dumps, reading))}",
        when="$.Values.node.serviceAccount.disableMutation",
        usual=rule["verbs"],
    )
    return {**rule, "verbs": verbs}


def _csi_driver(node: Any) -> Any:  # noqa: ANN401 - any JSON
    # A CSIDriver that the chart of the AWS driver has created belongs to no release.
    hook = Expression(
        'dict "helm.sh/hook" "pre-install,pre-upgrade" "helm.sh/hook-delete-policy" "before-hook-creation"'
        ' "helm.sh/resource-policy" "keep"',
        when="$.Values.useHelmHooksForCSIDriver",
    )
    return {**node, "metadata": {**node["metadata"], "annotations": hook}}


def _definition(node: Any) -> Any:  # noqa: ANN401 - any JSON
    # Removing the release must not remove the users' objects of the kind.
    kept = {"annotations": {"helm.sh/resource-policy": "keep"}}
    return {**node, "metadata": {**node["metadata"], **kept}}


_CHANGES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ServiceAccount": _service_account,
    "StorageClass": _storage_class,
    "CSIDriver": _csi_driver,
    "ClusterRole": _cluster_role,
    "CustomResourceDefinition": _definition,
    "Deployment": workload_with_values,
    "DaemonSet": workload_with_values,
}
