"""The token of its service account in a pod, as the admission plugin ServiceAccount puts it there."""

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.metadata import generated_name
from tinykube.objects.users import POD_TOKEN_SECONDS

_ROOT_CA = "kube-root-ca.crt"
_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_LISTS = ("initContainers", "containers")


def wants_token(pod: Json, account: Json | None) -> bool:
    """Whether the pod gets the token: the pod's own word counts more than its account's."""
    for found in (lookup(pod, "spec", "automountServiceAccountToken"), _automounts(account)):
        if found is not None:
            return bool(found)
    return True


def with_token(pod: Json) -> Json:
    """The pod with a token mounted in each container that has nothing else at that path."""
    spec = pod["spec"]
    name = generated_name("kube-api-access-")
    mounted = {key: [_mounted(one, name) for one in spec[key]] for key in _LISTS if spec.get(key)}
    if all(mounted[key] == spec[key] for key in mounted):
        return pod
    volumes = [*(spec.get("volumes") or ()), _volume(name)]
    return {**pod, "spec": {**spec, **mounted, "volumes": volumes}}


def _automounts(account: Json | None) -> bool | None:
    return None if account is None else account.get("automountServiceAccountToken")


def _mounted(container: Json, volume: str) -> Json:
    mounts = container.get("volumeMounts") or []
    if any(mount.get("mountPath") == _PATH for mount in mounts):
        return container
    return {**container, "volumeMounts": [*mounts, {"name": volume, "readOnly": True, "mountPath": _PATH}]}


def _volume(name: str) -> Json:
    namespace = {
        "path": "namespace",
        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
    }
    sources: list[Json] = [
        {"serviceAccountToken": {"expirationSeconds": POD_TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": _ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}
