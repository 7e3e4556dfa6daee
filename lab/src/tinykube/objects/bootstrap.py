"""The objects that every cluster has from the start, and those that come with each namespace."""

from tinykube.objects.admission import NAMESPACES
from tinykube.objects.json_types import Json
from tinykube.objects.resources import GroupResource, Registry
from tinykube.objects.service import ObjectService, WriteOptions
from tinykube.objects.storage import Change, ObjectKey, Store

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_OPTIONS = WriteOptions(manager="kube-apiserver")


class Bootstrap:
    """Creates what nobody asks for: the first namespaces, and in each namespace the service account."""

    def __init__(self, store: Store, registry: Registry, service: ObjectService) -> None:
        self._store = store
        self._registry = registry
        self._service = service
        store.subscribe(self._on_change)

    def create_namespaces(self) -> None:
        """Create the namespaces that are not there yet."""
        for name in _NAMESPACES:
            self._ensure("namespaces", ObjectKey("", name))

    def _on_change(self, resource: GroupResource, change: Change) -> None:
        if resource == NAMESPACES and change.old is None:
            self._ensure("serviceaccounts", ObjectKey(change.new.key.name, "default"))

    def _ensure(self, plural: str, key: ObjectKey) -> None:
        resource = self._registry.get("", "v1", plural)
        if self._store.get(resource.group_resource, key) is None:
            body: Json = {"metadata": {"name": key.name}}
            self._service.create(resource, key.namespace, body, _OPTIONS)
