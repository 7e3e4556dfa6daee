"""How patches and server-side apply treat the lists and maps of each kind.

Kubernetes keeps this in markers on its Go types (``+listType``, ``+listMapKey``, ``+mapType``,
``+structType``, ``patchStrategy``, ``patchMergeKey``) and, for custom resources, in ``x-kubernetes-*``
extensions of the schema. What no rule speaks of is the default: maps are merged key by key, lists are
replaced as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tinykube.objects.values import Json, JsonValue


class ListType(StrEnum):
    """``x-kubernetes-list-type``."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for one value and, by ``child``, for the values inside it.

    ``fields`` has the rules of named fields; ``elements`` those of every other key of a map and of every
    element of a list. ``list_type``, ``keys`` and ``atomic`` are for server-side apply; ``key_defaults`` are
    the values of keys that an element may leave out. ``merge_key`` (for lists of objects) and ``merge_set``
    (for lists of plain values) are for strategic merge patches, whose rules differ in places.
    """

    fields: Mapping[str, "Rules"] = field(default_factory=lambda: MappingProxyType({}))
    elements: "Rules | None" = None
    list_type: ListType = ListType.ATOMIC
    keys: tuple[str, ...] = ()
    key_defaults: Mapping[str, JsonValue] = field(default_factory=lambda: MappingProxyType({}))
    atomic: bool = False
    merge_key: str = ""
    merge_set: bool = False

    def child(self, name: str) -> "Rules":
        """The rules of the value under this key of a map."""
        return self.fields.get(name) or self.elements or DEFAULT

    @property
    def element(self) -> "Rules":
        """The rules of every element of a list."""
        return self.elements or DEFAULT


DEFAULT: Final = Rules()
"""Maps are merged, lists replaced, at every depth."""

_ATOMIC = Rules(atomic=True)
_SET = Rules(list_type=ListType.SET, merge_set=True)


def _struct(**fields: Rules) -> Rules:
    return Rules(fields=MappingProxyType(fields))


def _keyed(*keys: str, of: Rules = DEFAULT, **key_defaults: str) -> Rules:
    """A list whose elements differ in these keys; strategic merge patches use the first only."""
    return Rules(
        list_type=ListType.MAP,
        keys=keys,
        key_defaults=MappingProxyType(key_defaults),
        elements=of,
        merge_key=keys[0],
    )


_METADATA = _struct(finalizers=_SET, ownerReferences=_keyed("uid", of=_ATOMIC))
_CONDITIONS = _struct(conditions=_keyed("type"))
_CONTAINERS = _keyed(
    "name",
    of=_struct(
        env=_keyed(
            "name",
            of=_struct(
                valueFrom=_struct(
                    configMapKeyRef=_ATOMIC, fieldRef=_ATOMIC, resourceFieldRef=_ATOMIC, secretKeyRef=_ATOMIC
                )
            ),
        ),
        ports=_keyed("containerPort", "protocol", protocol="TCP"),
        volumeMounts=_keyed("mountPath"),
    ),
)
_CLAIM_SPEC = _struct(dataSource=_ATOMIC, selector=_ATOMIC)
_POD_SPEC = _struct(
    affinity=_struct(nodeAffinity=_struct(requiredDuringSchedulingIgnoredDuringExecution=_ATOMIC)),
    containers=_CONTAINERS,
    imagePullSecrets=_keyed("name", of=_ATOMIC),
    initContainers=_CONTAINERS,
    nodeSelector=_ATOMIC,
    volumes=_keyed("name", of=_struct(csi=_struct(nodePublishSecretRef=_ATOMIC))),
)
_POD_STATUS = _struct(
    conditions=_keyed("type"),
    podIPs=_keyed("ip"),
)
_POD_TEMPLATE = _struct(metadata=_METADATA, spec=_POD_SPEC)
_WORKLOAD_SPEC = _struct(selector=_ATOMIC, template=_POD_TEMPLATE)
_VOLUME_SPEC = _struct(
    csi=_struct(
        controllerExpandSecretRef=_ATOMIC,
        controllerPublishSecretRef=_ATOMIC,
        nodeExpandSecretRef=_ATOMIC,
        nodePublishSecretRef=_ATOMIC,
        nodeStageSecretRef=_ATOMIC,
    ),
    nodeAffinity=_struct(required=_ATOMIC),
)


def _kind(**fields: Rules) -> Rules:
    return _struct(metadata=_METADATA, **fields)


_ANY_KIND = _kind()
_KINDS: Final[Mapping[tuple[str, str], Rules]] = MappingProxyType(
    {
        ("", "Event"): _kind(involvedObject=_ATOMIC, related=_ATOMIC),
        ("", "Namespace"): _kind(status=_CONDITIONS),
        ("", "Node"): _kind(
            spec=_struct(podCIDRs=_SET),
            status=_struct(addresses=_keyed("type"), conditions=_keyed("type")),
        ),
        ("", "PersistentVolume"): _kind(spec=_VOLUME_SPEC),
        ("", "PersistentVolumeClaim"): _kind(spec=_CLAIM_SPEC, status=_CONDITIONS),
        ("", "Pod"): _kind(spec=_POD_SPEC, status=_POD_STATUS),
        ("", "Service"): _kind(
            spec=_struct(ports=_keyed("port", "protocol", protocol="TCP"), selector=_ATOMIC),
            status=_CONDITIONS,
        ),
        ("", "ServiceAccount"): _kind(secrets=_keyed("name", of=_ATOMIC)),
        ("apiextensions.k8s.io", "CustomResourceDefinition"): _kind(status=_CONDITIONS),
        ("apps", "DaemonSet"): _kind(spec=_WORKLOAD_SPEC, status=_CONDITIONS),
        ("apps", "Deployment"): _kind(spec=_WORKLOAD_SPEC, status=_CONDITIONS),
        ("apps", "StatefulSet"): _kind(spec=_WORKLOAD_SPEC, status=_CONDITIONS),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _kind(roleRef=_ATOMIC),
        ("rbac.authorization.k8s.io", "RoleBinding"): _kind(roleRef=_ATOMIC),
        ("storage.k8s.io", "CSIDriver"): _kind(
            spec=_struct(volumeLifecycleModes=Rules(list_type=ListType.SET))
        ),
        ("storage.k8s.io", "CSINode"): _kind(spec=_struct(drivers=_keyed("name"))),
    }
)


def rules_for(group: str, kind: str) -> Rules:
    """The rules of a built-in kind; those of its metadata alone when nothing else is special about it."""
    return _KINDS.get((group, kind), _ANY_KIND)


def rules_from_schema(schema: Json) -> Rules:
    """The rules of a custom resource, from the ``openAPIV3Schema`` of its version."""
    rules = _from_schema(schema)
    return replace(rules, fields=MappingProxyType({**rules.fields, "metadata": _METADATA}))


def _from_schema(schema: Json) -> Rules:
    elements = schema.get("items") or schema.get("additionalProperties")
    keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
    key_schemas = (schema.get("items") or {}).get("properties", {})
    return Rules(
        fields=MappingProxyType(
            {name: _from_schema(inner) for name, inner in schema.get("properties", {}).items()}
        ),
        elements=_from_schema(elements) if isinstance(elements, dict) else None,
        list_type=ListType(schema.get("x-kubernetes-list-type", ListType.ATOMIC)),
        keys=keys,
        key_defaults=MappingProxyType(
            {key: key_schemas[key]["default"] for key in keys if "default" in key_schemas.get(key, {})}
        ),
        atomic=schema.get("x-kubernetes-map-type") == "atomic",
    )
