"""What must hold between a request and the object that it is for, before any rule of the kind is asked."""

from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.json_types import Json, lookup
from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import ApiError, Cause, bad_request, conflict, invalid_object
from tinykube.objects.storage import ObjectKey, Stored


def check_is_new(body: Json) -> None:
    """An object to create has no version yet; the code is that of kube-apiserver."""
    if lookup(body, "metadata", "resourceVersion"):
        raise ApiError(500, "", "resourceVersion should not be set on objects to be created")


def check_identity(resource: ResourceType, key: ObjectKey, new: Json) -> None:
    """The object must have the name, and may have no other namespace than that of the URL."""
    given = new["metadata"].get("name", "")
    if given != key.name:
        raise bad_request(f"the name of the object ({given}) is not that of the URL ({key.name})")
    check_namespace(resource, key.namespace, new)


def check_namespace(resource: ResourceType, namespace: str, new: Json) -> None:
    """The object may leave its namespace to the URL, but not name another one."""
    given = new["metadata"].get("namespace", "")
    if resource.namespaced and given not in {"", namespace}:
        raise bad_request(f"the namespace of the object ({given}) is not that of the URL ({namespace})")


def check_uid(resource: ResourceType, name: str, new: Json, old: Stored | None) -> None:
    """An update that names a uid is for that object only, and for no successor of the same name."""
    wanted, found = new["metadata"].get("uid"), old.json["metadata"]["uid"] if old else ""
    if wanted and wanted != found:
        raise conflict(resource.subject(name), f"uid {wanted} is wanted and {found or 'none'} found")


def check_version(resource: ResourceType, name: str, new: Json, old: Stored | None) -> None:
    """Optimistic concurrency: the version must be the current one, and given unless the kind lets it be."""
    wanted = new["metadata"].get("resourceVersion")
    if not wanted and old and not resource.unconditional_update:
        cause = Cause("metadata.resourceVersion", "must be specified for an update")
        raise invalid_object(resource.subject(name), [cause])
    if wanted and wanted != (str(old.revision) if old else ""):
        raise conflict(resource.subject(name))


def check_deletion(resource: ResourceType, old: Stored, options: DeleteOptions) -> None:
    """A deletion may name the uid and the version that it is meant for."""
    for field, wanted in (("uid", options.uid), ("resourceVersion", options.resource_version)):
        found = old.json["metadata"][field]
        if wanted is not None and wanted != found:
            raise conflict(resource.subject(old.key.name), f"{field} {wanted} is wanted and {found} found")
