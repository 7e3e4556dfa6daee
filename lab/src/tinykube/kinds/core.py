"""Events, namespaces, nodes, secrets, roles and their bindings."""

import base64
from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.metadata import label_problem, path_segment_problem, with_metadata
from tinykube.objects.resources import Strategy
from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, lookup, without

_FREE_NAMESPACES = frozenset({"default", "kube-system"})
_NAME_LABEL = "kubernetes.io/metadata.name"
_NAMESPACE_FINALIZER = "kubernetes"
_NO_NODE_STATUS: Json = {
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    "nodeInfo": dict.fromkeys(
        (
            "architecture",
            "bootID",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        ),
        "",
    ),
}
"""What the status of a node holds even before its kubelet has written anything."""


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
    return {**result, "type": secret.get("type") or "Opaque"}


def _about_its_namespace(event: Json, _old: Json | None) -> Iterator[Cause]:
    namespace = event["metadata"].get("namespace", "")
    about = lookup(event, "involvedObject", "namespace") or ""
    if about != namespace and (about or namespace not in _FREE_NAMESPACES):
        yield Cause("involvedObject.namespace", "must be that of the event")


# Fields that Go's encoder writes even when they are empty; clients read them without asking.
_EVENT_DEFAULTS = Defaults(
    values={
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    }
)


def _allocatable(status: Json) -> Json:
    """The status where all of what a node has can be used, unless it says otherwise."""
    has_capacity = status.get("capacity") and not status.get("allocatable")
    return {**status, "allocatable": status["capacity"]} if has_capacity else status


_NODE = Defaults(
    values={"status": _NO_NODE_STATUS},
    inside={
        "status": Defaults(values=_NO_NODE_STATUS, quantities=("capacity", "allocatable"), then=_allocatable)
    },
)


_GROUP = "rbac.authorization.k8s.io"


def _subject(subject: Json) -> Json:
    if subject.get("kind") in {"User", "Group"} and not subject.get("apiGroup"):
        return {**subject, "apiGroup": _GROUP}
    return subject


_ROLE = Strategy(name_rule=path_segment_problem)
_BINDING = Strategy(
    name_rule=path_segment_problem,
    default=Defaults(
        inside={"roleRef": Defaults(values={"apiGroup": _GROUP}), "subjects": Defaults(then=_subject)}
    ),
    immutable=("roleRef",),
)


STRATEGIES = {
    ("", "Event"): Strategy(
        default=_EVENT_DEFAULTS,
        other_problems=_about_its_namespace,
        deletion=DeletionRules(collects_dependents=False),
    ),
    ("", "Namespace"): Strategy(
        name_rule=label_problem,
        default=_with_name_label,
        prepare_create=_active,
        prepare_update=_with_old_finalizers,
        deletion=DeletionRules(held=_has_content, mark=_terminating, collects_dependents=False),
    ),
    ("", "Node"): Strategy(default=_NODE, prepare_create=lambda node: {**node, "status": _NO_NODE_STATUS}),
    ("", "Secret"): Strategy(default=_secret_defaults, immutable=("type",)),
    (_GROUP, "Role"): _ROLE,
    (_GROUP, "ClusterRole"): _ROLE,
    (_GROUP, "RoleBinding"): _BINDING,
    (_GROUP, "ClusterRoleBinding"): _BINDING,
}
