"""The assets, filled in: what ``kubectl apply`` and the operator bring into a cluster.

A string of an asset may contain placeholders, ``{name}``. They are filled in after the YAML is parsed, so
no value can change the structure of an object.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, TypeAlias

import yaml

from kube_efs.model.errors import InvalidSetting
from kube_efs.operator.platforms import Platform
from kube_efs.settings import DEFAULT_NAMESPACE, DEFAULT_PROVISIONER, own_image

Manifest: TypeAlias = Mapping[str, Any]

DEFAULT_STORAGE_CLASS = "efs-stunnel"

# In the order in which a cluster can take them.
_ASSETS = ("namespace", "service-accounts", "controller-rbac", "tunnel-rbac", "storage-class")
_WORKLOADS = ("controller", "tunnel")
_OPENSHIFT_ASSETS = ("security-context-constraints",)

# Anybody but root; OpenShift gives each namespace ids of its own instead.
_USER_ID = 65532
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = rf"{_LABEL}(\.{_LABEL})*"
_ACCEPTED: Mapping[str, tuple[str, str]] = {
    "namespace": (_LABEL, "use a namespace's name, such as efs"),
    "image": (r"[A-Za-z0-9][\w.:/@-]*", "use an image's name, such as registry.example.com/kube-efs:0.1.0"),
    "provisioner": (rf"{_NAME}(/[A-Za-z0-9._-]+)?", "use a name such as example.com/efs"),
    "storage_class_name": (_NAME, "use a storage class's name, such as efs"),
    "region": (_LABEL, "use a region's name, such as us-east-1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What differs between installations.

    ``region`` None means that each process asks its instance. Raises InvalidSetting.
    """

    platform: Platform
    namespace: str = DEFAULT_NAMESPACE
    image: str = field(default_factory=own_image)
    provisioner: str = DEFAULT_PROVISIONER
    storage_class_name: str = DEFAULT_STORAGE_CLASS
    region: str | None = None

    def __post_init__(self) -> None:
        for name, (pattern, remedy) in _ACCEPTED.items():
            value = getattr(self, name)
            if value is not None and not re.fullmatch(pattern, value):
                raise InvalidSetting("is not acceptable", field=name, value=value, remedy=remedy)


def render_manifests(options: RenderOptions) -> tuple[Manifest, ...]:
    """Every object of an installation, in the order in which a cluster can take them."""
    is_openshift = options.platform is Platform.OPENSHIFT
    assets = (*_ASSETS, *(_OPENSHIFT_ASSETS if is_openshift else ()), *_WORKLOADS)
    values = _values(options)
    return tuple(_filled(document, values) for asset in assets for document in load_asset(asset))


def load_asset(name: str) -> Iterator[Any]:
    """The objects of one asset, with their placeholders."""
    text = files("kube_efs.operator").joinpath("assets", f"{name}.yaml").read_text(encoding="utf-8")
    return iter(yaml.safe_load_all(text))


def render_text(options: RenderOptions, *, as_json: bool) -> str:
    """The objects as ``kubectl apply`` reads them: a stream of YAML documents, or one list in JSON."""
    manifests = render_manifests(options)
    if as_json:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2) + "\n"
    return yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=True)


def _values(options: RenderOptions) -> Mapping[str, object]:
    region = {"name": "AWS_REGION", "value": options.region}
    return {
        "namespace": options.namespace,
        "image": options.image,
        "provisioner": options.provisioner,
        "storage_class_name": options.storage_class_name,
        "region_variable": region if options.region else None,
        "user_id": None if options.platform is Platform.OPENSHIFT else _USER_ID,
    }


def _filled(node: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON
    """The same with values for placeholders; an entry or item whose whole value is None falls away."""
    match node:
        case str():
            return _text(node, values)
        case Mapping():
            filled = {key: _filled(value, values) for key, value in node.items()}
            return {key: value for key, value in filled.items() if value is not None}
        case list():
            return [value for value in (_filled(item, values) for item in node) if value is not None]
        case _:
            return node


def _text(text: str, values: Mapping[str, object]) -> object:
    whole = _PLACEHOLDER.fullmatch(text)
    if whole:
        return values[whole[1]]
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), text)


def render_asset(name: str, values: Mapping[str, object]) -> tuple[Manifest, ...]:
    """The objects of one asset, with these values for its placeholders."""
    return tuple(_filled(document, values) for document in load_asset(name))
