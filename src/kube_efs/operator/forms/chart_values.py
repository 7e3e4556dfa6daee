"""The values of the chart. values.yaml, its schema and the table of the page are generated from them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kube_efs.model.names import NEW_INSTALLATION, UNNAMED_INSTALLATION, NameSet
from kube_efs.operator.forms.aws_driver_values import aws_driver_values
from kube_efs.operator.forms.value_schemas import (
    OBJECT,
    OBJECTS,
    SWITCH,
    TEXTS,
    Schema,
    Value,
    first_object,
    one_of,
    pattern,
)
from kube_efs.operator.manifests import DEFAULT_KUBELET_FOLDER
from kube_efs.operator.platforms import Platform
from kube_efs.settings.base import own_image
from kube_efs.settings.controller import DEFAULT_PROVISIONER
from kube_efs.settings.installed import ALL_ADDRESSES, HEALTH_HOST, KEPT_BY_MANIFESTS

# The names of workloads in the values, the asset of each, and its usual name.
WORKLOADS: Mapping[str, tuple[str, str]] = {
    "controller": ("controller", "the controller"),
    "tunnel": ("tunnel", "the tunnel agent"),
    "node": ("node", "the CSI driver"),
}


def chart_values() -> tuple[Value, ...]:
    """Every value, in the order of the page."""
    repository = own_image().partition(":")[0]
    workloads = [value for name in WORKLOADS for value in _of_workload(name)]
    return (
        Value(
            path="platform",
            default=Platform.KUBERNETES.value,
            meaning="The kind of cluster. `openshift` adds SecurityContextConstraints, and leaves the user"
            " ID of most pods to the namespace",
            schema=one_of(*Platform),
        ),
        Value(
            path="names",
            default="",
            meaning="The names of the objects: `kube-efs`, `openshift-efs-stunnel` or `aws-efs-csi-driver`."
            f" Empty: those that the namespace has, else `{NEW_INSTALLATION}`; where Helm cannot read the"
            " cluster, such as with `helm template` and in Argo CD, only two namespaces have a default:"
            f" `{NEW_INSTALLATION.names.namespace}` and `{UNNAMED_INSTALLATION.names.namespace}`",
            schema=one_of("", *NameSet),
        ),
        Value(
            path="image.repository",
            default=repository,
            meaning="The repository of the image of all processes",
            schema=pattern("image"),
        ),
        Value(path="image.tag", default="", meaning="The tag of the image. Empty: the version of the chart"),
        Value(
            path="image.digest",
            default="",
            meaning="The digest of the image, such as `sha256:…`. It takes precedence over the tag",
            schema={"type": "string", "pattern": "^$|^sha256:[0-9a-f]{64}$"},
        ),
        Value(
            path="image.pullPolicy",
            default="",
            meaning="When nodes pull the image. Empty: the default of Kubernetes",
            schema=one_of("", "Always", "IfNotPresent", "Never"),
        ),
        Value(
            path="image.pullSecrets",
            default=[],
            meaning="Secrets for pulling the image, each as `name: NAME`. All service accounts and worker"
            " pods get them",
            schema=OBJECTS,
        ),
        Value(
            path="region",
            default="",
            meaning="The region of the file systems. Empty: the region of each node",
            schema=pattern("region", may_be_empty=True),
        ),
        *_of_storage_class(),
        *_of_driver(),
        Value(
            path="controller.replicas",
            default=first_object("controller")["spec"]["replicas"],
            meaning="The number of controllers; only the leader is active",
            schema={"type": "integer", "minimum": 0},
        ),
        Value(
            path="controller.observing",
            default=False,
            meaning="Whether the controller has the permissions to measure volumes"
            " ([usage.md](../../../docs/usage.md)) and to serve the status page"
            " ([status-page.md](../../../docs/status-page.md)); enable both in `controller.env`",
            schema=SWITCH,
        ),
        Value(
            path="tunnel.updateStrategy",
            default=first_object("tunnel")["spec"]["updateStrategy"],
            meaning="How an upgrade replaces the pods of the tunnels. With `type: OnDelete` and"
            " `rollingUpdate: null`, a pod is replaced only after you delete it",
            schema=OBJECT,
        ),
        Value(
            path="tunnel.volumes",
            default=[],
            meaning="Additional volumes of the pods of the tunnel agent, for example with the file of"
            " `KUBE_EFS_CA_FILE`",
            schema=OBJECTS,
        ),
        Value(
            path="tunnel.volumeMounts",
            default=[],
            meaning="Where the tunnel agent mounts them",
            schema=OBJECTS,
        ),
        *workloads,
        Value(
            path="monitoring.enabled",
            default=False,
            meaning="Whether to create Services, monitors and alerts for the Prometheus operator. The"
            f" PodMonitors of nodes need `{HEALTH_HOST}: {ALL_ADDRESSES}` in `tunnel.env` and `node.env`"
            " ([metrics.md](../../../docs/metrics.md#metrics-of-nodes))",
            schema=SWITCH,
        ),
        *aws_driver_values(),
    )


def _of_storage_class() -> Iterator[Value]:
    asset = first_object("storage-class")
    yield Value(
        path="storageClass.create",
        default=True,
        meaning="Whether to create a StorageClass of tunnel volumes, unless `csi.only` is set",
        schema=SWITCH,
    )
    yield Value(
        path="storageClass.name",
        default="",
        meaning="The name of the StorageClass. Empty: that of `names`",
        schema=pattern("storage_class_name", may_be_empty=True),
    )
    yield Value(
        path="storageClass.provisioner",
        default=DEFAULT_PROVISIONER,
        meaning="The provisioner of the StorageClass, which the controller serves",
        schema=pattern("provisioner"),
    )
    yield Value(
        path="storageClass.parameters",
        default=asset["parameters"],
        meaning="The parameters of the StorageClass",
        schema=TEXTS,
    )
    yield Value(
        path="storageClass.reclaimPolicy",
        default=asset["reclaimPolicy"],
        meaning="`Delete` or `Retain`: what happens to a volume after its claim is deleted",
        schema=one_of("Delete", "Retain"),
    )
    yield Value(
        path="storageClass.annotations",
        default={},
        meaning="The annotations of the StorageClass, for example to make it the default class",
        schema=TEXTS,
    )


def _of_driver() -> Iterator[Value]:
    names: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
    reference: Schema = {
        "type": "object",
        "required": ["namespace"],
        "additionalProperties": False,
        "properties": {
            "namespace": pattern("namespace"),
            "secrets": names,
            "configMaps": names,
        },
    }
    yield Value(
        path="csi.enabled",
        default=False,
        meaning="Whether to install the CSI driver `efs.csi.aws.com`, and SharedVolumes",
        schema=SWITCH,
    )
    yield Value(
        path="csi.only",
        default=False,
        meaning="Whether to install only the CSI driver, without tunnel volumes and their StorageClass; needs"
        " `csi.enabled`",
        schema=SWITCH,
    )
    yield Value(
        path="csi.podTokens",
        default=True,
        meaning="Whether the kubelet gives the driver tokens of pods, for"
        " [the identity of the pod](../../../docs/csi.md#the-identity-of-the-pod). Disable it while pods of"
        " the AWS driver run: they refuse volumes with tokens",
        schema=SWITCH,
    )
    yield Value(
        path="csi.kubeletDirectory",
        default=DEFAULT_KUBELET_FOLDER,
        meaning="The kubelet's `--root-dir`",
        schema=pattern("kubelet_folder"),
    )
    yield Value(
        path="csi.classReferences",
        default=[],
        meaning="The Secrets and ConfigMaps that classes of the driver name, so that the controller can read"
        " them: for each namespace, `namespace`, and `secrets` and `configMaps`, lists of names",
        schema={"type": "array", "items": reference},
    )


def _of_workload(name: str) -> Iterator[Value]:
    asset, words = WORKLOADS[name]
    pod = first_object(asset)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables: Schema = {
        **TEXTS,
        "type": ["object", "array", "null"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    }
    both = " A list applies to the tunnel agent too" if name == "node" else ""
    yield Value(
        path=f"{name}.env",
        default=None,
        meaning=f"Settings of {words}: variables as in [settings.md](../../../docs/settings.md), except"
        f" those that the chart itself sets; a mapping, or a list as in a container.{both}".removesuffix("."),
        schema=variables,
    )
    yield Value(
        path=f"{name}.serviceAccountAnnotations",
        default={},
        meaning=f"Annotations of the service account of {words}, such as `eks.amazonaws.com/role-arn`",
        schema=TEXTS,
    )
    yield Value(
        path=f"{name}.podAnnotations",
        default={},
        meaning=f"Annotations of the pods of {words}",
        schema=TEXTS,
    )
    yield Value(
        path=f"{name}.nodeSelector",
        default=pod["nodeSelector"],
        meaning=f"Labels of the nodes where {words} runs",
        schema=TEXTS,
    )
    yield Value(
        path=f"{name}.tolerations",
        default=pod.get("tolerations", []),
        meaning=f"Taints of nodes that {words} tolerates",
        schema=OBJECTS,
    )
    yield Value(
        path=f"{name}.resources",
        default=container["resources"],
        meaning=f"Resource requests and limits of {words}",
        schema=OBJECT,
    )


def own_variables(asset: str) -> list[str]:
    """The variables of a workload that belong to the chart: manifests set them, or depend on them."""
    (container,) = first_object(asset)["spec"]["template"]["spec"]["containers"]
    return sorted(({one["name"] for one in container["env"]} | KEPT_BY_MANIFESTS) - {HEALTH_HOST})


def defaults(values: Sequence[Value]) -> dict[str, Any]:
    """The contents of values.yaml."""
    found: dict[str, Any] = {}
    for value in values:
        *parents, last = value.path.split(".")
        node = found
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value.default
    return found


def schema(values: Sequence[Value]) -> dict[str, Any]:
    """The schema of the values. It rejects unknown values, so Helm reports spelling mistakes."""
    top = _closed()
    # Helm passes this value to every subchart.
    top["properties"]["global"] = {"type": "object"}
    for value in values:
        *parents, last = value.path.split(".")
        node = top
        for parent in parents:
            node = node["properties"].setdefault(parent, _closed())
        node["properties"][last] = {"description": f"{value.meaning}.", **value.schema}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of kube-efs", **top}


def _closed() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}
