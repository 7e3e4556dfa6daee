"""Admission: what else must hold, or is added, before an object is created or deleted.

These are the admission plugins of kube-apiserver that users of storage notice: NamespaceLifecycle,
StorageObjectInUseProtection and ServiceAccount.
"""

from tinykube.objects.metadata import generated_name, with_metadata
from tinykube.objects.resources import GroupKind, GroupResource, ResourceType
from tinykube.objects.statuses import Subject, forbidden, not_found
from tinykube.objects.storage import ObjectKey, Store
from tinykube.objects.users import POD_TOKEN_SECONDS
from tinykube.objects.values import Json

NAMESPACES = GroupResource("", "namespaces")
_ACCOUNTS = GroupResource("", "serviceaccounts")
_IMMORTAL_NAMESPACES = frozenset({"default", "kube-system", "kube-public"})
_POD = GroupKind("", "Pod")
_PROTECTION = {
    GroupKind("", "PersistentVolumeClaim"): "kubernetes.io/pvc-protection",
    GroupKind("", "PersistentVolume"): "kubernetes.io/pv-protection",
}
_ROOT_CA = "kube-root-ca.crt"
_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_CONTAINERS = ("initContainers", "containers")


class Admission:
    """The plugins; they read other objects from the store and write nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def admit_creation(self, resource: ResourceType, namespace: str, new: Json) -> Json:
        """The object to create, completed; raises 403 or 404."""
        if resource.namespaced:
            self._check_namespace(resource, namespace, new["metadata"].get("name", ""))
        if resource.group_kind == _POD:
            new = self._with_token(resource, namespace, new)
        if protection := _PROTECTION.get(resource.group_kind):
            finalizers = new["metadata"].get("finalizers") or []
            if protection not in finalizers:
                new = with_metadata(new, finalizers=[*finalizers, protection])
        return new

    def check_deletion(self, resource: ResourceType, key: ObjectKey) -> None:
        """Raises 403 for the namespaces that every cluster has."""
        if resource.group_resource == NAMESPACES and key.name in _IMMORTAL_NAMESPACES:
            raise forbidden(resource.subject(key.name), "this namespace may not be deleted")

    def _check_namespace(self, resource: ResourceType, namespace: str, name: str) -> None:
        found = self._store.get(NAMESPACES, ObjectKey("", namespace))
        if found is None:
            raise not_found(Subject(group="", resource="namespaces", name=namespace))
        if "deletionTimestamp" in found.json["metadata"]:
            problem = f"namespace {namespace} is being terminated"
            raise forbidden(resource.subject(name), problem, field="metadata.namespace")

    def _with_token(self, resource: ResourceType, namespace: str, pod: Json) -> Json:
        """The pod with the token of its account; raises 403 when that is to come and is not there."""
        name = pod["spec"]["serviceAccountName"]
        found = self._store.get(_ACCOUNTS, ObjectKey(namespace, name))
        if not _wants_token(pod, found.json if found else {}):
            return pod
        if found is None:
            subject = resource.subject(pod["metadata"].get("name", ""))
            raise forbidden(subject, f"service account {namespace}/{name} not found")
        return _mount_token(pod)


def _wants_token(pod: Json, account: Json) -> bool:
    """Whether the pod gets the token: the pod's own word counts more than its account's."""
    said = (one.get("automountServiceAccountToken") for one in (pod["spec"], account))
    return next((bool(word) for word in said if word is not None), True)


def _mount_token(pod: Json) -> Json:
    """The pod with a token mounted in each container that has nothing else at that path."""
    spec = pod["spec"]
    name = generated_name("kube-api-access-")
    mounted = {key: [_mounted(one, name) for one in spec[key]] for key in _CONTAINERS if spec.get(key)}
    if all(mounted[key] == spec[key] for key in mounted):
        return pod
    volumes = [*(spec.get("volumes") or ()), _volume(name)]
    return {**pod, "spec": {**spec, **mounted, "volumes": volumes}}


def _mounted(container: Json, volume: str) -> Json:
    mounts = container.get("volumeMounts") or []
    if any(mount.get("mountPath") == _MOUNT_PATH for mount in mounts):
        return container
    return {
        **container,
        "volumeMounts": [*mounts, {"name": volume, "readOnly": True, "mountPath": _MOUNT_PATH}],
    }


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
