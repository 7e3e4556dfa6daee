"""OpenShift templates: openshift-efs-stunnel's parameters, for the objects of this version."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.operator.forms.yaml_text import document
from kube_efs.operator.manifests import (
    Manifest,
    RenderOptions,
    render_asset,
    static_assets,
    values_of,
    workload_assets,
)
from kube_efs.operator.platforms import Platform

FOLDER: Final = "openshift"
_NAMES: Final = OPENSHIFT_EFS_STUNNEL
_MANAGER: Final = "${REGISTRY}/${EFS_MANAGER_IMAGE}:${EFS_MANAGER_IMAGE_TAG}"
_STUNNEL: Final = "${REGISTRY}/${EFS_STUNNEL_IMAGE}:${EFS_STUNNEL_IMAGE_TAG}"
# The registry of OpenShift 4, by its name inside the cluster.
_REGISTRY: Final = "image-registry.openshift-image-registry.svc:5000"
_NODES: Final = '{"kubernetes.io/os": "linux"}'
_BASE: Final = ("debian", "trixie-slim")
_PARTS: Final = {"app.kubernetes.io/part-of": "kube-efs"}
_OF_NAMESPACE: Final = ("NAMESPACE", _NAMES.namespace, "The namespace of kube-efs; it must exist.")
_OF_REGISTRY: Final = ("REGISTRY", _REGISTRY, "The registry of the images.")
_OF_IMAGES: Final = (
    ("EFS_MANAGER_IMAGE", f"{_NAMES.namespace}/efs-manager", "The image of the controller and of workers."),
    ("EFS_MANAGER_IMAGE_TAG", "latest", "Its tag."),
    ("EFS_STUNNEL_IMAGE", f"{_NAMES.namespace}/efs-stunnel", "The image of the processes on nodes."),
    ("EFS_STUNNEL_IMAGE_TAG", "latest", "Its tag."),
    ("EFS_STUNNEL_NODE_SELECTOR", _NODES, "Labels of the nodes that have tunnels, as JSON."),
)
_OF_BASE: Final = (
    ("BASE_IMAGE", _BASE[0], "The image stream in namespace openshift that the images are based on."),
    ("BASE_IMAGE_TAG", _BASE[1], "Its tag."),
)


def openshift_files() -> Mapping[str, str]:
    """The text of each file, by its name."""
    documents = {
        "install-template.yaml": _install("efs-stunnel", csi=False),
        "install-csi-template.yaml": _install("efs-stunnel-csi", csi=True),
        "build-template.yaml": _build(),
        "debian-imagestream.yaml": _base_stream(),
    }
    return {name: document(one) for name, one in documents.items()}


def _template(name: str, parameters: tuple[tuple[str, str, str], ...], objects: list[Any]) -> Manifest:
    return {
        "apiVersion": "template.openshift.io/v1",
        "kind": "Template",
        "metadata": {"name": name, "labels": _PARTS},
        "parameters": [
            {"name": name, "description": description, "value": value, "required": True}
            for name, value, description in parameters
        ],
        "objects": objects,
    }


def _install(name: str, *, csi: bool) -> Manifest:
    options = RenderOptions(platform=Platform.OPENSHIFT, names=_NAMES.name_set, csi=csi)
    objects = [*_rendered(static_assets(options), options), *_rendered(workload_assets(options), options)]
    # The builds need the namespace, so it exists before. `oc create` would fail for an existing object.
    kept = [_with_selector(one) for one in objects if one["kind"] != "Namespace"]
    return _template(name, (_OF_NAMESPACE, _OF_REGISTRY, *_OF_IMAGES), kept)


def _rendered(assets: Iterator[str], options: RenderOptions) -> Iterator[Manifest]:
    for asset in assets:
        image = _MANAGER if asset == "controller" else _STUNNEL
        yield from render_asset(asset, {**values_of(options), "namespace": "${NAMESPACE}", "image": image})


def _with_selector(manifest: Manifest) -> Manifest:
    if manifest["kind"] != "DaemonSet" or manifest["metadata"]["name"] != _NAMES.tunnel:
        return manifest
    spec = manifest["spec"]
    pod = {**spec["template"]["spec"], "nodeSelector": "${{EFS_STUNNEL_NODE_SELECTOR}}"}
    return {**manifest, "spec": {**spec, "template": {**spec["template"], "spec": pod}}}


def _build() -> Manifest:
    """Both images of openshift-efs-stunnel. The second is the first with another name."""
    argument = {"name": "BASE", "value": "${REGISTRY}/openshift/${BASE_IMAGE}:${BASE_IMAGE_TAG}"}
    manager = {"dockerfilePath": "Containerfile", "buildArgs": [argument]}
    stunnel = {"from": {"kind": "ImageStreamTag", "name": "efs-manager:latest"}}
    return _template(
        "efs-stunnel-build",
        (_OF_REGISTRY, *_OF_BASE),
        [
            _stream("efs-manager"),
            _stream("efs-stunnel"),
            _build_of("efs-manager", {"type": "Binary", "binary": {}}, manager),
            _build_of("efs-stunnel", {"type": "Dockerfile", "dockerfile": "FROM efs-manager\n"}, stunnel),
        ],
    )


def _stream(name: str) -> Manifest:
    return {
        "apiVersion": "image.openshift.io/v1",
        "kind": "ImageStream",
        "metadata": {"name": name, "labels": _PARTS},
        "spec": {"lookupPolicy": {"local": False}},
    }


def _build_of(name: str, source: Manifest, strategy: Manifest) -> Manifest:
    return {
        "apiVersion": "build.openshift.io/v1",
        "kind": "BuildConfig",
        "metadata": {"name": name, "labels": _PARTS},
        "spec": {
            "source": source,
            "strategy": {"type": "Docker", "dockerStrategy": strategy},
            "output": {"to": {"kind": "ImageStreamTag", "name": f"{name}:latest"}},
        },
    }


def _base_stream() -> Manifest:
    """The base image of the builds, for clusters that do not have it in the namespace openshift."""
    name, tag = _BASE
    return {
        "apiVersion": "image.openshift.io/v1",
        "kind": "ImageStream",
        "metadata": {"name": name, "namespace": "openshift", "labels": _PARTS},
        "spec": {
            "tags": [
                {
                    "name": tag,
                    "from": {"kind": "DockerImage", "name": f"{name}:{tag}"},
                    "importPolicy": {},
                    # So that builds pull it from the registry of the cluster.
                    "referencePolicy": {"type": "Local"},
                }
            ]
        },
    }
