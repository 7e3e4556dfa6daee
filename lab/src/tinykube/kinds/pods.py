"""Pods, and the pod templates inside workloads: defaults, quality of service, grace, immutability."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.resources import Strategy
from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, json_equal, lookup, without

_MUTABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")
_READ_MODE = 0o644
# What the admission plugin DefaultTolerationSeconds adds to every pod.
_TOLERATIONS = tuple(
    {
        "key": f"node.kubernetes.io/{condition}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for condition in ("not-ready", "unreachable")
)


def _pull_policy(container: Json) -> Json:
    image = container.get("image", "")
    tag = image.rsplit("/", 1)[-1].partition(":")[2] if "@" not in image else "digest"
    policy = "Always" if tag in {"", "latest"} else "IfNotPresent"
    return {**container, "imagePullPolicy": container.get("imagePullPolicy") or policy}


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
    then=_pull_policy,
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


def _host_ports(spec: Json) -> Json:
    if not spec.get("hostNetwork"):
        return spec
    port = Defaults(then=lambda one: {**one, "hostPort": one.get("hostPort") or one.get("containerPort")})
    return Defaults(inside={"containers": Defaults(inside={"ports": port})})(spec)


POD_SPEC = Defaults(
    values={
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    },
    inside={"containers": _CONTAINER, "initContainers": _CONTAINER, "volumes": _VOLUME},
    then=lambda spec: _host_ports(_service_account(spec)),
)
POD_TEMPLATE = Defaults(values={"metadata": {}, "spec": {}}, inside={"spec": POD_SPEC})


def _requests_as_limits(container: Json) -> Json:
    limits = lookup(container, "resources", "limits")
    if not limits:
        return container
    resources = container["resources"]
    return {
        **container,
        "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}},
    }


def _addresses(status: Json) -> Json:
    """The status with the list of addresses that the older field stands for."""
    address = status.get("podIP")
    return {**status, "podIPs": [{"ip": address}]} if address and not status.get("podIPs") else status


# Go's encoder writes these times even when they have never been set.
_CONDITION = Defaults(values={"lastProbeTime": None, "lastTransitionTime": None})
_EACH_REQUESTS = Defaults(then=_requests_as_limits)
_POD = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(
            values={"enableServiceLinks": True},
            inside={"containers": _EACH_REQUESTS, "initContainers": _EACH_REQUESTS},
            then=POD_SPEC,
        ),
        "status": Defaults(inside={"conditions": _CONDITION}, then=_addresses),
    },
)


def _prepare(pod: Json) -> Json:
    """A new pod as the strategy and the admission plugins complete it."""
    spec = {"preemptionPolicy": "PreemptLowerPriority", "priority": 0, **pod["spec"]}
    spec = _service_account({"serviceAccountName": "default", **spec})
    status = {"phase": "Pending", "qosClass": _quality_of_service(spec)}
    return _with_tolerations({**pod, "spec": spec, "status": status})


def _with_tolerations(pod: Json, _old: Json | None = None) -> Json:
    given = pod["spec"].get("tolerations") or []
    taken = {toleration.get("key") for toleration in given}
    added = [toleration for toleration in _TOLERATIONS if toleration["key"] not in taken]
    return {**pod, "spec": {**pod["spec"], "tolerations": [*given, *added]}}


def _with_old_quality(status: Json, old: Json) -> Json:
    kept = old.get("qosClass")
    return {**status, "qosClass": kept} if kept and not status.get("qosClass") else status


def _quality_of_service(spec: Json) -> str:
    """``Guaranteed`` when every container's requests equal its limits of cpu and memory."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(one.get("limits") or ()) and json_equal(one.get("requests"), one["limits"])
        for one in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _problems(new: Json, old: Json | None) -> Iterator[Cause]:
    if old is not None and not json_equal(_fixed(new["spec"]), _fixed(old["spec"])):
        yield Cause("spec", f"is immutable but for images and {', '.join(_MUTABLE)}")


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
        prepare_update=_with_tolerations,
        prepare_status=_with_old_quality,
        required=("spec.containers",),
        other_problems=_problems,
        deletion=DeletionRules(grace=_grace),
    ),
}
