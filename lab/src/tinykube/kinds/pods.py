"""Pods, and the pod templates inside workloads: defaults, grace, immutability."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.resources import Strategy
from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, json_equal, lookup, without

_MUTABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")
_READ_MODE = 0o644


def _volume_source(volume: Json) -> Json:
    return volume if len(volume) > 1 else {**volume, "emptyDir": {}}


_PROBE = Defaults(
    values={"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
    inside={"httpGet": Defaults(values={"path": "/", "scheme": "HTTP"})},
)
_FIELD_REF = Defaults(inside={"fieldRef": Defaults(values={"apiVersion": "v1"})})
_RESOURCES = Defaults(quantities=("limits", "requests"))
_CONTAINER = Defaults(
    values={
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    },
    inside={
        "env": Defaults(inside={"valueFrom": _FIELD_REF}),
        "livenessProbe": _PROBE,
        "ports": Defaults(values={"protocol": "TCP"}),
        "readinessProbe": _PROBE,
        "resources": _RESOURCES,
        "startupProbe": _PROBE,
    },
)
_DOWNWARD = Defaults(values={"defaultMode": _READ_MODE}, inside={"items": _FIELD_REF})
_VOLUME = Defaults(
    inside={
        "configMap": Defaults(values={"defaultMode": _READ_MODE}),
        "downwardAPI": _DOWNWARD,
        "hostPath": Defaults(values={"type": ""}),
        "projected": Defaults(
            values={"defaultMode": _READ_MODE},
            inside={
                "sources": Defaults(
                    inside={
                        "downwardAPI": Defaults(inside={"items": _FIELD_REF}),
                        "serviceAccountToken": Defaults(values={"expirationSeconds": 3600}),
                    }
                )
            },
        ),
        "secret": Defaults(values={"defaultMode": _READ_MODE}),
    },
    then=_volume_source,
)


def _service_account(spec: Json) -> Json:
    """The two names of the service account, the older of which mirrors the other."""
    name = spec.get("serviceAccountName") or spec.get("serviceAccount")
    return {**spec, "serviceAccountName": name, "serviceAccount": name} if name else spec


POD_SPEC = Defaults(
    values={
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    },
    inside={"containers": _CONTAINER, "initContainers": _CONTAINER, "volumes": _VOLUME},
    then=_service_account,
)
POD_TEMPLATE = Defaults(values={"metadata": {}, "spec": {}}, inside={"spec": POD_SPEC})


_POD = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(values={"enableServiceLinks": True}, then=POD_SPEC),
        # Go's encoder writes these times even when they have never been set.
        "status": Defaults(
            inside={"conditions": Defaults(values={"lastProbeTime": None, "lastTransitionTime": None})}
        ),
    },
)


def _prepare(pod: Json) -> Json:
    """A new pod as the strategy and the admission plugins complete it."""
    spec = _service_account({"serviceAccountName": "default", **pod["spec"]})
    return {**pod, "spec": spec, "status": {"phase": "Pending"}}


def _problems(new: Json, old: Json | None) -> Iterator[Cause]:
    if old is not None and not json_equal(_fixed(new["spec"]), _fixed(old["spec"])):
        yield Cause("spec", f"is immutable except images and {', '.join(_MUTABLE)}")


def _fixed(spec: Json) -> Json:
    """What no update may change."""
    containers = {
        field: [without(container, "image") for container in spec.get(field) or ()]
        for field in ("containers", "initContainers")
    }
    return {**without(spec, *_MUTABLE), **containers}


def _grace(pod: Json, asked: int | None) -> int:
    """The seconds that a pod gets to end: none when it does not run."""
    scheduled = bool(lookup(pod, "spec", "nodeName"))
    if not scheduled or lookup(pod, "status", "phase") in {"Failed", "Succeeded"}:
        return 0
    if asked is not None:
        return asked
    return int(lookup(pod, "spec", "terminationGracePeriodSeconds") or 0)


STRATEGIES = {
    ("", "Pod"): Strategy(
        default=_POD,
        prepare_create=_prepare,
        required=("spec.containers",),
        other_problems=_problems,
        deletion=DeletionRules(grace=_grace),
    ),
}
