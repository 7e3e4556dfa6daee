"""What an object of each built-in kind holds before anybody has set anything.

Go's structs are there without being set, so kube-apiserver never says that somebody owns ``spec`` itself
where it is such a struct (``"f:spec": {".": {}}``), while it says so of maps, pointers and most lists.
Objects are completed by these before they are compared to find out who set what. Custom resources begin as
nothing.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tinykube.objects.json_types import Json

_NOTHING: Json = {}
_PARTS: Json = {"spec": {}, "status": {}}
_POD_TEMPLATE: Json = {"metadata": {}, "spec": {"containers": []}}
NO_NODE_STATUS: Json = {
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
_TARGET: Json = {"apiGroup": "", "kind": "", "name": ""}

_OBJECTS: Mapping[tuple[str, str], Json] = MappingProxyType(
    {
        ("", "Event"): {
            "involvedObject": {},
            "source": {},
            **dict.fromkeys(("firstTimestamp", "lastTimestamp", "eventTime")),
            **dict.fromkeys(("reportingComponent", "reportingInstance"), ""),
        },
        ("", "Namespace"): _PARTS,
        ("", "Node"): {"spec": {}, "status": NO_NODE_STATUS},
        ("", "PersistentVolume"): _PARTS,
        ("", "PersistentVolumeClaim"): {"spec": {"resources": {}}, "status": {}},
        ("", "Pod"): {"spec": {"containers": []}, "status": {}},
        ("", "Service"): {"spec": {}, "status": {"loadBalancer": {}}},
        ("apiextensions.k8s.io", "CustomResourceDefinition"): {
            "spec": {"names": {}},
            "status": {"acceptedNames": {"plural": "", "kind": ""}, "conditions": []},
        },
        ("apps", "DaemonSet"): {"spec": {"template": _POD_TEMPLATE, "updateStrategy": {}}, "status": {}},
        ("apps", "Deployment"): {"spec": {"template": _POD_TEMPLATE, "strategy": {}}, "status": {}},
        ("apps", "StatefulSet"): {"spec": {"template": _POD_TEMPLATE, "updateStrategy": {}}, "status": {}},
        ("coordination.k8s.io", "Lease"): {"spec": {}},
        ("rbac.authorization.k8s.io", "ClusterRoleBinding"): {"roleRef": _TARGET},
        ("rbac.authorization.k8s.io", "RoleBinding"): {"roleRef": _TARGET},
        ("storage.k8s.io", "CSIDriver"): {"spec": {}},
        ("storage.k8s.io", "CSINode"): {"spec": {"drivers": []}},
    }
)


def zero_object(group: str, kind: str) -> Json:
    """The object as it is before its author has set anything."""
    return _OBJECTS.get((group, kind), _NOTHING)


def completed(json_object: Json, zero: Json) -> Json:
    """The object with all that its kind holds anyway."""
    given = {
        key: completed(value, zero[key])
        if isinstance(value, dict) and isinstance(zero.get(key), dict)
        else value
        for key, value in json_object.items()
    }
    return {**zero, **given}
