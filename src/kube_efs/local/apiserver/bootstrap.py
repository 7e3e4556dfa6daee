"""The objects that every cluster has from the start."""

from kube_efs.local.apiserver.handlers import Backend
from kube_efs.local.apiserver.json_types import Json
from kube_efs.local.apiserver.service import WriteOptions
from kube_efs.local.apiserver.storage import ObjectKey

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def create_initial_objects(backend: Backend) -> None:
    """Create the namespaces that are not there yet."""
    namespaces = backend.registry.get("", "v1", "namespaces")
    for name in _NAMESPACES:
        if backend.store.get(namespaces.storage, ObjectKey("", name)) is None:
            body: Json = {"metadata": {"name": name}}
            backend.service.create(namespaces, "", body, WriteOptions(manager="kube-apiserver"))
