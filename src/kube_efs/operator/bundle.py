"""The operator as a bundle of the Operator Lifecycle Manager (OLM), in the format registry+v1.

The package has the name of the community operator, and a newer version than all of its versions. To upgrade,
an administrator therefore only changes the Subscription to a catalog with this bundle.

The rules are those of ``operator-sdk bundle validate``, in ``pkg/validation`` of ``operator-framework/api``.
"""

import base64
import copy
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

import yaml

from kube_efs.model.names import PLATFORM_NAMESPACE
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.manifests import (
    Manifest,
    RenderOptions,
    render_asset,
    render_manifests,
    values_of,
)
from kube_efs.operator.operator_manifests import render_operator_roles

PACKAGE: Final = "aws-efs-operator"
CHANNEL: Final = "stable"
SUGGESTED_NAMESPACE: Final = PLATFORM_NAMESPACE
_CSV: Final = "operators.coreos.com/v1alpha1"
_ACCOUNT: Final = "kube-efs-operator"
_DESCRIPTIONS: Final = {
    "SharedVolume": "An access point of an EFS file system, as a PersistentVolumeClaim of this namespace.",
}
_FEATURES: Final = {
    "proxy-aware": True,
    "csi": True,
    "token-auth-aws": True,
    "tls-profiles": True,
    "fips-compliant": False,
    "token-auth-azure": False,
    "token-auth-gcp": False,
    "cnf": False,
    "cni": False,
}
_ARCHITECTURES: Final = ("amd64", "arm64")
_SUPPORTED: Final = (*(f"arch.{one}" for one in _ARCHITECTURES), "os.linux")
_LABELS: Final = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": PACKAGE,
    "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
    "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
}
# The console offers to create it after the installation. It is not an example: its kind belongs to OpenShift.
_DRIVER: Final = {
    "apiVersion": "operator.openshift.io/v1",
    "kind": "ClusterCSIDriver",
    "metadata": {"name": DRIVER},
    "spec": {"managementState": "Managed", "logLevel": "Normal", "operatorLogLevel": "Normal"},
}
# One for each kind of the bundle.
_EXAMPLES: Final = (
    {
        "apiVersion": "aws-efs.managed.openshift.io/v1alpha1",
        "kind": "SharedVolume",
        "metadata": {"name": "example", "namespace": "default"},
        "spec": {"fileSystemID": "fs-0123456789abcdef0", "accessPointID": "fsap-0123456789abcdef0"},
    },
)


def render_bundle(options: RenderOptions) -> Mapping[str, str]:
    """The text of each file of the bundle, by its path."""
    definitions = _definitions(options)
    files: dict[str, Any] = {
        f"manifests/{PACKAGE}.clusterserviceversion.yaml": render_service_version(options),
        **{f"manifests/{one['metadata']['name']}.crd.yaml": one for one in definitions},
        "metadata/annotations.yaml": {"annotations": _LABELS},
    }
    texts = {path: yaml.safe_dump(content, sort_keys=False) for path, content in files.items()}
    return {**texts, "bundle.Containerfile": _containerfile()}


def render_service_version(options: RenderOptions) -> Manifest:
    """The ClusterServiceVersion, which OLM shows and installs."""
    number = version("kube-efs")
    return {
        "apiVersion": _CSV,
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{number}",
            "namespace": "placeholder",
            "annotations": _annotations(options, number),
            "labels": {f"operatorframework.io/{name}": "supported" for name in _SUPPORTED},
        },
        "spec": {
            "displayName": "Amazon EFS volumes (kube-efs)",
            "description": _description(),
            "version": number,
            "minKubeVersion": "1.30.0",
            "maturity": "beta",
            "keywords": ["storage", "csi", "efs", "nfs"],
            "provider": {"name": "kube-efs"},
            "icon": [{"base64data": _icon(), "mediatype": "image/svg+xml"}],
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "install": {"strategy": "deployment", "spec": _install(options)},
            "customresourcedefinitions": {"owned": [_owned(one) for one in _definitions(options)]},
            "relatedImages": [{"name": "kube-efs", "image": options.image}],
        },
    }


def _annotations(options: RenderOptions, number: str) -> dict[str, str]:
    # A mirror of a registry finds images by their digests only.
    features = {"disconnected": "@sha256:" in options.image, **_FEATURES}
    return {
        "alm-examples": json.dumps(_EXAMPLES, indent=2),
        "capabilities": "Full Lifecycle",
        "categories": "Storage",
        "containerImage": options.image,
        "olm.skipRange": f"<{number}",
        "operatorframework.io/initialization-resource": json.dumps(_DRIVER),
        "operatorframework.io/suggested-namespace": SUGGESTED_NAMESPACE,
        **{f"features.operators.openshift.io/{name}": str(has).lower() for name, has in features.items()},
    }


def _install(options: RenderOptions) -> dict[str, Any]:
    roles = render_operator_roles(options)
    (deployment,) = [
        one for one in render_asset("operator", values_of(options)) if one["kind"] == "Deployment"
    ]
    return {
        "clusterPermissions": _permissions(roles, "ClusterRole"),
        "permissions": _permissions(roles, "Role"),
        "deployments": [
            {
                "name": deployment["metadata"]["name"],
                "label": deployment["metadata"]["labels"],
                "spec": _with_architectures(deployment["spec"]),
            }
        ],
    }


def _with_architectures(deployment: Manifest) -> dict[str, Any]:
    """Only on nodes that the labels of the bundle name: OLM also installs it in clusters with other nodes."""
    changed = copy.deepcopy(dict(deployment))
    expressions = [
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": "kubernetes.io/arch", "operator": "In", "values": [*_ARCHITECTURES]},
    ]
    nodes = changed["template"]["spec"]["affinity"]["nodeAffinity"]
    nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [{"matchExpressions": expressions}]
    }
    return changed


def _permissions(roles: Sequence[Manifest], kind: str) -> list[dict[str, Any]]:
    return [{"serviceAccountName": _ACCOUNT, "rules": one["rules"]} for one in roles if one["kind"] == kind]


def _definitions(options: RenderOptions) -> list[Manifest]:
    """The definitions of kube-efs. That of ClusterCSIDriver is OpenShift's, or the operator applies it."""
    return [one for one in render_manifests(options) if one["kind"] == "CustomResourceDefinition"]


def _owned(definition: Manifest) -> dict[str, str]:
    kind = definition["spec"]["names"]["kind"]
    return {
        "name": definition["metadata"]["name"],
        "version": definition["spec"]["versions"][0]["name"],
        "kind": kind,
        "displayName": kind,
        "description": _DESCRIPTIONS[kind],
    }


def _icon() -> str:
    picture = files("kube_efs.operator").joinpath("assets", "icon.svg").read_bytes()
    return base64.b64encode(picture).decode()


def _description() -> str:
    return (
        "Volumes on Amazon EFS, with TLS between every node and AWS.\n\n"
        f"Nothing is installed until there is a `ClusterCSIDriver` named `{DRIVER}`; deleting it removes"
        " the driver, and leaves volumes, claims and data. The driver of an older operator is taken over node"
        " by node, in the namespace in which it runs.\n"
    )


def _containerfile() -> str:
    labels = "".join(f"LABEL {name}={value}\n" for name, value in _LABELS.items())
    return f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"
