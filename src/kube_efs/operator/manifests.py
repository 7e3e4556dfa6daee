"""Renders the manifests of ``assets``, which ``kubectl apply`` or the operator applies to a cluster.

A string of an asset may contain placeholders, ``{name}``. A mapping may contain ``$if: name``, and is then
rendered only if that value is set. Both are replaced after the YAML is parsed, so no value can change the
structure of an object.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import yaml

from kube_efs.model.errors import InvalidSetting
from kube_efs.model.names import KUBE_EFS, NEW_INSTALLATION, OPENSHIFT_EFS_STUNNEL, NameSet
from kube_efs.operator.platforms import Platform
from kube_efs.settings.base import own_image
from kube_efs.settings.controller import DEFAULT_PROVISIONER

Manifest: TypeAlias = Mapping[str, Any]

DEFAULT_KUBELET_FOLDER = "/var/lib/kubelet"

_OWN_NAMESPACES = frozenset({KUBE_EFS.namespace, OPENSHIFT_EFS_STUNNEL.namespace})
# In the order in which they must be applied.
NAMESPACE = "namespace"
_ASSETS = ("service-accounts", "controller-rbac", "tunnel-rbac", "tunnel-admission")
STORAGE_CLASS = "storage-class"
_SHARED_VOLUME_ASSETS = ("shared-volumes-crd", "shared-volumes-rbac")
_CSI_ASSETS = ("csi-driver", "node-rbac", "node-admission", *_SHARED_VOLUME_ASSETS)
_WORKLOADS = ("controller", "tunnel")
_CSI_WORKLOADS = ("node",)
_CONSTRAINTS = "security-context-constraints"
_CSI_CONSTRAINTS = "security-context-constraints-csi"
CLASS_REFERENCES = "class-references-rbac"

# Any user except root. OpenShift assigns other IDs to each namespace.
_USER_ID = 65532
# On the node, so that tunnels keep their ports when the agent's pod is replaced.
_STATE_FOLDER = "/var/lib/kube-efs"
_SOCKET_FOLDER = "/run/kube-efs"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = rf"{_LABEL}(\.{_LABEL})*"
ACCEPTED: Mapping[str, tuple[str, str]] = {
    "namespace": (_LABEL, "use a namespace's name, such as efs"),
    "image": (r"[A-Za-z0-9][\w.:/@-]*", "use an image's name, such as registry.example.com/kube-efs:0.2.0"),
    "provisioner": (rf"{_NAME}(/[A-Za-z0-9._-]+)?", "use a name such as example.com/efs"),
    "storage_class_name": (_NAME, "use a storage class's name, such as efs"),
    "region": (_LABEL, "use a region's name, such as us-east-1"),
    "kubelet_folder": (
        r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+",
        "use the kubelet's --root-dir, such as /var/lib/kubelet",
    ),
}
_REFERENCE = re.compile(rf"({_LABEL})/({_NAME})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """The options of an installation; raises InvalidSetting.

    ``namespace`` and ``storage_class_name`` None are replaced by those of ``names``.
    ``region`` None: each process finds the region of its node. ``fips`` uses FIPS endpoints of AWS, and FIPS
    mode in the tunnels. ``csi`` adds the driver ``efs.csi.aws.com``; with ``csi_only``, there are no tunnel
    volumes. ``pod_tokens`` lets the kubelet give the driver tokens of pods, which the AWS driver refuses.
    ``secrets`` and ``config_maps``, each as NAMESPACE/NAME, are the objects that its classes refer
    to; the controller can read only these. ``create_namespace`` adds the Namespace. One of the names of
    kube-efs is always there: it is ours.
    """

    platform: Platform
    names: NameSet = NEW_INSTALLATION
    namespace: str = None  # type: ignore[assignment]  # replaced when the value is created
    create_namespace: bool = False
    image: str = field(default_factory=own_image)
    provisioner: str = DEFAULT_PROVISIONER
    storage_class_name: str = None  # type: ignore[assignment]  # as above
    region: str | None = None
    fips: bool = False
    csi: bool = False
    csi_only: bool = False
    pod_tokens: bool = True
    kubelet_folder: str = DEFAULT_KUBELET_FOLDER
    secrets: tuple[str, ...] = ()
    config_maps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.names.names
        defaults = {"namespace": names.namespace, "storage_class_name": names.storage_class}
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name, (pattern, remedy) in ACCEPTED.items():
            value = getattr(self, name)
            if value is not None and not re.fullmatch(pattern, value):
                raise InvalidSetting("is not valid", field=name, value=value, remedy=remedy)
        if self.csi_only and not self.csi:
            remedy = "add the CSI driver"
            raise InvalidSetting("needs the CSI driver", field="csi_only", value=True, remedy=remedy)
        for option, references in (("--secret", self.secrets), ("--config-map", self.config_maps)):
            for value in references:
                # In the problem: before a value, the option would mark it as a secret, which is removed.
                if not self.csi:
                    problem, remedy = "is for the CSI driver only", "leave it out, or add the CSI driver"
                    raise InvalidSetting(f"of {option} {problem}", value=value, remedy=remedy)
                if not _REFERENCE.fullmatch(value):
                    remedy = "use NAMESPACE/NAME"
                    raise InvalidSetting(f"of {option} is not valid", value=value, remedy=remedy)

    @property
    def has_namespace(self) -> bool:
        """Whether the Namespace is one of the objects.

        ``kubectl delete -f`` deletes it with everything in it. One that existed before, such as that of a
        platform's operators, must therefore not be among them.
        """
        return self.create_namespace or self.namespace in _OWN_NAMESPACES


def render_manifests(options: RenderOptions) -> tuple[Manifest, ...]:
    """Every object of an installation, in the order in which they must be applied."""
    values = values_of(options)
    before = [manifest for asset in static_assets(options) for manifest in _render(asset, values)]
    after = [manifest for asset in workload_assets(options) for manifest in _render(asset, values)]
    return (*before, *_class_references(options, values), *after)


def static_assets(options: RenderOptions) -> Iterator[str]:
    """The names of the assets without workloads."""
    if options.has_namespace:
        yield NAMESPACE
    yield from _ASSETS
    if not options.csi_only:
        yield STORAGE_CLASS
    if options.csi:
        yield from _CSI_ASSETS
    if options.platform is Platform.OPENSHIFT:
        yield _CONSTRAINTS
        if options.csi:
            yield _CSI_CONSTRAINTS


def workload_assets(options: RenderOptions) -> Iterator[str]:
    """The names of the assets of workloads."""
    yield from _WORKLOADS
    if options.csi:
        yield from _CSI_WORKLOADS


def _class_references(options: RenderOptions, values: Mapping[str, object]) -> Iterator[Manifest]:
    """The permissions to read the objects that classes refer to, for each namespace of these objects."""
    names: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for kind, references in (("secrets", options.secrets), ("config_maps", options.config_maps)):
        for reference in dict.fromkeys(references):
            namespace, name = reference.split("/")
            names[namespace][kind].append(name)
    for namespace, of_kinds in names.items():
        common = {"referenced_namespace": namespace, "secrets": None, "config_maps": None}
        yield from _render(CLASS_REFERENCES, {**values, **common, **of_kinds})


def _render(asset: str, values: Mapping[str, object]) -> Iterator[Manifest]:
    return (_fill(document, values) for document in _parsed(asset))


def load_asset(name: str) -> Iterator[Any]:
    """The objects of one asset, with their placeholders."""
    return iter(deepcopy(_parsed(name)))


@cache
def _parsed(asset: str) -> tuple[Any, ...]:
    # The operator renders the same assets in each pass, and parsing takes most of the time.
    text = files("kube_efs.operator").joinpath("assets", f"{asset}.yaml").read_text(encoding="utf-8")
    return tuple(yaml.safe_load_all(text))


def text_of(manifests: Sequence[Manifest], *, as_json: bool) -> str:
    """YAML documents, or one List in JSON."""
    if as_json:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2) + "\n"
    return yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=True)


def digest(content: Any) -> str:  # noqa: ANN401 - any JSON
    """A digest of a manifest or a part of it, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def values_of(options: RenderOptions) -> Mapping[str, object]:
    """The values of the placeholders of all assets."""
    is_openshift = options.platform is Platform.OPENSHIFT
    names = options.names.names
    return {
        **asdict(names),
        "name_set": names.name_set.value,
        "tunnel_status": names.tunnel_status,
        "older_config_map": None if options.csi_only else names.older_config_map,
        "namespace": options.namespace,
        "image": options.image,
        "provisioner": options.provisioner,
        "storage_class_name": options.storage_class_name,
        "region": options.region,
        "fips": options.fips,
        "csi": options.csi,
        "csi_only": options.csi_only,
        "pod_tokens": options.pod_tokens,
        "tunnel_volumes": not options.csi_only,
        "backends": "csi" if options.csi_only else "tunnel,directory,csi",
        "openshift": is_openshift,
        "operator_constraints": "restricted-v2" if is_openshift else None,
        "user_id": None if is_openshift else _USER_ID,
        # This user owns directories of the node, so the ID cannot depend on the namespace.
        "tunnel_user_id": None if is_openshift and not options.csi else _USER_ID,
        "kubelet_folder": options.kubelet_folder,
        "state_folder": _STATE_FOLDER,
        "socket_folder": _SOCKET_FOLDER,
    }


def _fill(node: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON
    """With values instead of placeholders.

    An entry or item whose whole value is None is removed. A list that becomes empty is removed too.
    """
    match node:
        case str():
            return _text(node, values)
        case {"$if": condition, **rest}:
            return _fill(rest, values) if values[condition] else None
        case Mapping():
            filled = {key: _fill(value, values) for key, value in node.items()}
            return {key: value for key, value in filled.items() if value is not None}
        case []:
            return []
        case [*items]:
            return [value for value in (_fill(item, values) for item in items) if value is not None] or None
        case _:
            return node


def _text(text: str, values: Mapping[str, object]) -> object:
    whole = _PLACEHOLDER.fullmatch(text)
    if whole:
        return values[whole[1]]
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), text)


def render_asset(name: str, values: Mapping[str, object]) -> tuple[Manifest, ...]:
    """The objects of one asset, with these values for its placeholders."""
    return tuple(_render(name, values))
