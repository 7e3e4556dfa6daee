"""Namespaces, secrets, config maps, services and nodes."""

import base64
import binascii
from collections.abc import Callable, Iterator
from uuid import UUID

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.json_types import Json, json_equal, without
from tinykube.objects.metadata import IMMUTABLE, with_metadata
from tinykube.objects.names import config_key_problem, label_problem, service_name_problem
from tinykube.objects.statuses import Cause, Undecodable, forbidden_field, invalid
from tinykube.objects.strategies import Strategy
from tinykube.objects.zero_objects import NO_NODE_STATUS

_ADDRESS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
_LAST_PORT = 65535
_NAME_LABEL = "kubernetes.io/metadata.name"
_NAMESPACE_FINALIZER = "kubernetes"


def _with_name_label(namespace: Json) -> Json:
    name = namespace["metadata"].get("name")
    if not name:
        return namespace
    return with_metadata(namespace, labels={**(namespace["metadata"].get("labels") or {}), _NAME_LABEL: name})


def _active(namespace: Json) -> Json:
    finalizers = (namespace.get("spec") or {}).get("finalizers") or []
    if _NAMESPACE_FINALIZER not in finalizers:
        finalizers = [*finalizers, _NAMESPACE_FINALIZER]
    spec = {**(namespace.get("spec") or {}), "finalizers": finalizers}
    return _with_name_label({**namespace, "spec": spec, "status": {"phase": "Active"}})


def _with_old_finalizers(new: Json, old: Json) -> Json:
    """Only the ``finalize`` subresource changes ``spec.finalizers``."""
    return {**new, "spec": old["spec"]}


def _has_content(namespace: Json) -> bool:
    return bool((namespace.get("spec") or {}).get("finalizers"))


def _terminating(namespace: Json) -> Json:
    marked = with_metadata(namespace, deletionGracePeriodSeconds=None)
    return {**marked, "status": {**namespace.get("status", {}), "phase": "Terminating"}}


def _secret_defaults(secret: Json) -> Json:
    """The secret with ``stringData`` moved into ``data``, and a type."""
    plain = {
        key: base64.b64encode(str(text).encode()).decode()
        for key, text in (secret.get("stringData") or {}).items()
    }
    result = without(secret, "stringData")
    if plain:
        result["data"] = {**(result.get("data") or {}), **plain}
    for value in (result.get("data") or {}).values():
        _check_base64(value)
    return {**result, "type": secret.get("type") or "Opaque"}


def _check_base64(value: object) -> None:
    try:
        base64.b64decode(str(value), validate=True)
    except binascii.Error as error:
        raise Undecodable("illegal base64 data") from error


def _secret_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    if old is not None and new["type"] != old["type"]:
        yield invalid("type", new["type"], IMMUTABLE)
    yield from _data_problems("data")(new, old)


def _data_problems(*fields: str) -> Callable[[Json, Json | None], Iterator[Cause]]:
    """The rules for these maps of data: their keys, and that they stay as they are once immutable."""
    problem = "field is immutable when `immutable` is set"

    def problems(new: Json, old: Json | None) -> Iterator[Cause]:
        for field in fields:
            for key in new.get(field) or ():
                if wrong := config_key_problem(key):
                    yield invalid(f"{field}[{key}]", key, wrong)
        if old is None or not old.get("immutable"):
            return
        if not new.get("immutable"):
            yield forbidden_field("immutable", problem)
        for field in fields:
            if not json_equal(new.get(field) or {}, old.get(field) or {}):
                yield forbidden_field(field, problem)

    return problems


def _port_defaults(port: Json) -> Json:
    return {**port, "targetPort": port.get("targetPort") or port.get("port")}


def _with_address(service: Json) -> Json:
    """The new service with an address that nothing answers at: this cluster has no service network."""
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return {**service, "status": {"loadBalancer": {}}}
    number = UUID(service["metadata"]["uid"]).int
    address = spec.get("clusterIP") or f"10.96.{number >> 8 & 0xFF}.{number & 0xFF}"
    spec = {
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        **spec,
        "clusterIP": address,
        "clusterIPs": [address],
    }
    return {**service, "spec": spec, "status": {"loadBalancer": {}}}


def _with_old_address(new: Json, old: Json) -> Json:
    kept = {key: old["spec"][key] for key in _ADDRESS if key in old["spec"]}
    return {**new, "spec": {**kept, **new["spec"]}}


def _service_problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    for index, port in enumerate(new["spec"].get("ports") or ()):
        number = port.get("port") or 0
        if not 1 <= number <= _LAST_PORT:
            yield invalid(
                f"spec.ports[{index}].port", number, f"must be between 1 and {_LAST_PORT}, inclusive"
            )


_SERVICE_DEFAULTS = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(
            values={
                "type": "ClusterIP",
                "sessionAffinity": "None",
                "internalTrafficPolicy": "Cluster",
            },
            inside={"ports": Defaults(values={"protocol": "TCP"}, then=_port_defaults)},
        )
    },
)


def _allocatable(status: Json) -> Json:
    """The status where all of what a node has can be used, unless it says otherwise."""
    has_capacity = status.get("capacity") and not status.get("allocatable")
    return {**status, "allocatable": status["capacity"]} if has_capacity else status


_NODE = Defaults(
    values={"status": NO_NODE_STATUS},
    inside={
        "status": Defaults(values=NO_NODE_STATUS, quantities=("capacity", "allocatable"), then=_allocatable)
    },
)

STRATEGIES = {
    ("", "ConfigMap"): Strategy(problems=_data_problems("data", "binaryData")),
    ("", "Namespace"): Strategy(
        name_rule=label_problem,
        default=_with_name_label,
        prepare_create=_active,
        prepare_update=_with_old_finalizers,
        deletion=DeletionRules(held=_has_content, mark=_terminating, collects_dependents=False),
    ),
    ("", "Node"): Strategy(default=_NODE, prepare_create=lambda node: {**node, "status": NO_NODE_STATUS}),
    ("", "Secret"): Strategy(default=_secret_defaults, problems=_secret_problems),
    ("", "Service"): Strategy(
        name_rule=service_name_problem,
        default=_SERVICE_DEFAULTS,
        prepare_create=_with_address,
        prepare_update=_with_old_address,
        problems=_service_problems,
    ),
}
