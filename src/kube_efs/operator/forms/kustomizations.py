"""Directories for ``kubectl apply -k``: a base for Kubernetes, overlays for the CSI driver and OpenShift."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import relpath
from typing import Any, Final

from kube_efs.operator.forms.json_patches import difference
from kube_efs.operator.forms.yaml_text import document, documents, text_of
from kube_efs.operator.manifests import (
    Manifest,
    RenderOptions,
    render_asset,
    render_manifests,
    static_assets,
    values_of,
    workload_assets,
)
from kube_efs.operator.platforms import Platform

FOLDER: Final = "kustomize"
_BASE: Final = "base"
_KIND: Final = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
# kustomize replaces images only in known fields. The controller has the image of workers in a variable.
_IMAGES: Final = {"images": [{"kind": "Deployment", "path": "spec/template/spec/containers/env/value"}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """One directory: its path, its base, and the options of both."""

    folder: str
    below: str
    before: RenderOptions
    options: RenderOptions


BASE_OPTIONS: Final = RenderOptions(platform=Platform.KUBERNETES, csi=False)
_WITH_CSI: Final = RenderOptions(platform=Platform.KUBERNETES, csi=True)
OVERLAYS: Final = (
    Overlay(folder="overlays/csi", below=_BASE, before=BASE_OPTIONS, options=_WITH_CSI),
    Overlay(
        folder="overlays/openshift",
        below=_BASE,
        before=BASE_OPTIONS,
        options=RenderOptions(platform=Platform.OPENSHIFT, csi=False),
    ),
    Overlay(
        folder="overlays/openshift-csi",
        below="overlays/csi",
        before=_WITH_CSI,
        options=RenderOptions(platform=Platform.OPENSHIFT, csi=True),
    ),
)


def kustomize_files() -> Mapping[str, str]:
    """The text of each file, by its path below the directory."""
    found = dict(_folder(_BASE, _resources(BASE_OPTIONS, without=()), {}))
    found["images.yaml"] = document(_IMAGES)
    for overlay in OVERLAYS:
        found |= _overlay(overlay)
    return found


def _overlay(overlay: Overlay) -> Iterator[tuple[str, str]]:
    added = _resources(overlay.options, without=tuple(_assets(overlay.before)))
    patches = {"patches": _patches(overlay)}
    return _folder(overlay.folder, added, patches, relpath(overlay.below, overlay.folder))


def _assets(options: RenderOptions) -> Iterator[str]:
    yield from static_assets(options)
    yield from workload_assets(options)


def _resources(options: RenderOptions, *, without: Sequence[str]) -> Mapping[str, Sequence[Manifest]]:
    values = values_of(options)
    return {name: render_asset(name, values) for name in _assets(options) if name not in without}


def _folder(
    folder: str, resources: Mapping[str, Sequence[Manifest]], more: Mapping[str, Any], *below: str
) -> Iterator[tuple[str, str]]:
    listing = {**_KIND, "resources": [*below, *(f"{name}.yaml" for name in resources)], **more}
    yield f"{folder}/kustomization.yaml", document(listing)
    for name, manifests in resources.items():
        yield f"{folder}/{name}.yaml", documents(manifests)


def _patches(overlay: Overlay) -> list[Any]:
    """The changes of the overlay to the objects of its base."""
    after = {_name(one): one for one in render_manifests(overlay.options)}
    patches = []
    for one in render_manifests(overlay.before):
        steps = difference(one, after[_name(one)])
        if steps:
            target = {"kind": one["kind"], "name": one["metadata"]["name"]}
            patches.append({"target": target, "patch": text_of(steps)})
    return patches


def _name(manifest: Manifest) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]
