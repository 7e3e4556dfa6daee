"""The operator as a bundle of the Operator Lifecycle Manager (OLM), in the format registry+v1.

The package has the name of the community operator, and a newer version than all of its versions. To upgrade,
an administrator therefore only changes the Subscription to a catalog with this bundle.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import yaml

from kube_efs.operator.cluster_csi_driver import DRIVER_NAME
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
SUGGESTED_NAMESPACE: Final = "openshift-cluster-csi-drivers"
_CSV: Final = "operators.coreos.com/v1alpha1"
_ACCOUNT: Final = "kube-efs-operator"
_FEATURES: Final = {
    "disconnected": True,
    "proxy-aware": True,
    "csi": True,
    "token-auth-aws": True,
    "tls-profiles": True,
    "fips-compliant": False,
    "token-auth-azure": False,
    "token-auth-gcp": False,
}
_LABELS: Final = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": PACKAGE,
    "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
    "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
}
_SAMPLE: Final = {
    "apiVersion": "operator.openshift.io/v1",
    "kind": "ClusterCSIDriver",
    "metadata": {"name": DRIVER_NAME},
    "spec": {"managementState": "Managed", "logLevel": "Normal", "operatorLogLevel": "Normal"},
}


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
            "labels": {f"operatorframework.io/arch.{name}": "supported" for name in ("amd64", "arm64")},
        },
        "spec": {
            "displayName": "Amazon EFS volumes (kube-efs)",
            "description": _description(),
            "version": number,
            "minKubeVersion": "1.30.0",
            "maturity": "beta",
            "keywords": ["storage", "csi", "efs", "nfs"],
            "provider": {"name": "kube-efs"},
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
    features = {
        f"features.operators.openshift.io/{name}": str(has).lower() for name, has in _FEATURES.items()
    }
    return {
        "alm-examples": json.dumps([_SAMPLE], indent=2),
        "capabilities": "Full Lifecycle",
        "categories": "Storage",
        "containerImage": options.image,
        "olm.skipRange": f"<{number}",
        "operatorframework.io/suggested-namespace": SUGGESTED_NAMESPACE,
        **features,
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
                "spec": deployment["spec"],
            }
        ],
    }


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
        "description": f"A {kind} of kube-efs.",
    }


def _description() -> str:
    return (
        "Volumes on Amazon EFS, with TLS between every node and AWS.\n\n"
        f"Nothing is installed until there is a `ClusterCSIDriver` named `{DRIVER_NAME}`; deleting it removes"
        " the driver, and leaves volumes, claims and data. The driver of an older operator is taken over node"
        " by node, in the namespace in which it runs.\n"
    )


def _containerfile() -> str:
    labels = "".join(f"LABEL {name}={value}\n" for name, value in _LABELS.items())
    return f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"
