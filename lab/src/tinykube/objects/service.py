"""The rules between HTTP and the store: create, update, patch and delete as kube-apiserver does them.

All methods are synchronous, so that each runs as one transaction on the event loop.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from tinykube.objects.admission import Admission
from tinykube.objects.decoding import decoding, in_stored_form
from tinykube.objects.deletion import DeleteOptions, begin_deletion, removed_by_update
from tinykube.objects.metadata import (
    for_creation,
    for_update,
    metadata_problems,
    metadata_update_problems,
    with_metadata,
)
from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import (
    ApiError,
    Cause,
    bad_request,
    conflict,
    invalid_object,
    not_found,
)
from tinykube.objects.storage import ObjectKey, Store, Stored
from tinykube.objects.subresources import bound_pod, evicted_pod
from tinykube.objects.values import Json, Undecodable, json_equal, lookup, timestamp, without
from tinykube.patch.apply import Writer, same_but_for_times


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to write: on whose behalf, and to which subresource (if any).

    ``dry_run`` stores nothing; ``strict`` refuses fields that the type does not know, which are left out
    else.
    """

    manager: str = "unknown"
    subresource: str = ""
    dry_run: bool = False
    strict: bool = False


class Written(NamedTuple):
    """The object as it is now, and whether it is new."""

    stored: Stored
    created: bool


class Deleted(NamedTuple):
    """The object's last state, and whether it is gone."""

    stored: Stored
    gone: bool


class ObjectService:
    """Reads and writes of single objects."""

    def __init__(self, store: Store, admission: Admission, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._admission = admission
        self._clock = clock

    def get(self, resource: ResourceType, key: ObjectKey) -> Stored:
        """The object; raises 404."""
        found = self._store.get(resource.group_resource, key)
        if found is None:
            raise not_found(resource.subject(key.name))
        return found

    def create(self, resource: ResourceType, namespace: str, body: Json, options: WriteOptions) -> Stored:
        """A new object from what the client sent."""
        if lookup(body, "metadata", "resourceVersion"):  # the code is that of kube-apiserver
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        with decoding(resource):
            new = _decoded(resource, body, options)
        _check_namespace(resource, namespace, new)
        new = self._writer(resource, options).write(None, new)
        return self._create(resource, namespace, new, options)

    def update(self, resource: ResourceType, key: ObjectKey, body: Json, options: WriteOptions) -> Stored:
        """The object replaced by what the client sent."""
        with decoding(resource):
            new = _decoded(resource, body, options)
        _check_identity(resource, key, new)
        old = self.get(resource, key)
        _check_uid(resource, new, old)
        return self._update(resource, old, new, options)

    def change(
        self, resource: ResourceType, key: ObjectKey, changed: Callable[[Json], Json], options: WriteOptions
    ) -> Stored:
        """The object after a function, such as a patch."""
        old = self.get(resource, key)
        wanted = changed(old.json)
        try:
            new = _decoded(resource, wanted, options)
        except Undecodable as error:
            raise invalid_object(resource.subject(key.name), [Cause("patch", str(error))]) from error
        _check_identity(resource, key, new)
        return self._update(resource, old, new, options)

    def apply(self, resource: ResourceType, key: ObjectKey, applied: Json, options: WriteOptions) -> Written:
        """The object after a server-side apply, which creates it when it is not there."""
        old = self._store.get(resource.group_resource, key)
        if old is None and options.subresource:
            raise not_found(resource.subject(key.name))
        with decoding(resource):
            config, unknown = in_stored_form(resource, applied)
            if unknown:  # the code is that of kube-apiserver
                raise ApiError(500, "", f"{resource.kind} has no such fields: {', '.join(unknown)}")
            _check_identity(resource, key, config)
            if config["metadata"].get("resourceVersion"):
                _check_version(resource, key.name, config, old)
            merged = self._writer(resource, options).apply(old.json if old else None, applied)
            new = _decoded(resource, merged, options)
        if old is None:
            return Written(self._create(resource, key.namespace, new, options), created=True)
        return Written(self._replace(resource, old, new, options), created=False)

    def bind(self, resource: ResourceType, key: ObjectKey, binding: Json, *, dry_run: bool) -> None:
        """Send a pod to the node that a Binding names; raises 409 when it cannot go there."""
        old = self.get(resource, key)
        new = bound_pod(old.json, binding, resource.subject(key.name), self._clock())
        self._put(resource, new, old, dry_run=dry_run)

    def evict(self, resource: ResourceType, key: ObjectKey, options: DeleteOptions) -> None:
        """Have a pod end as by ``delete``, and its status say why; raises 409 when it is another pod."""
        old = self.get(resource, key)
        _check_deletion(resource, old, options)
        self._put(resource, evicted_pod(old.json, self._clock()), old, dry_run=options.dry_run)
        self.delete(resource, key, replace(options, resource_version=None))  # which has just moved on

    def delete(self, resource: ResourceType, key: ObjectKey, options: DeleteOptions) -> Deleted:
        """The object removed, or marked as being deleted while something holds it."""
        old = self.get(resource, key)
        _check_deletion(resource, old, options)
        self._admission.check_deletion(resource, key)
        deletion = begin_deletion(old.json, options, resource.strategy.deletion, self._clock())
        last = old
        if deletion.marked is not None:
            last = self._put(resource, deletion.marked, old, dry_run=options.dry_run)
        if deletion.remove and not options.dry_run:
            last = self._store.remove(resource.group_resource, key)
        return Deleted(last, gone=deletion.remove)

    def _update(self, resource: ResourceType, old: Stored, new: Json, options: WriteOptions) -> Stored:
        _check_version(resource, old.key.name, new, old)
        new = self._writer(resource, options).write(old.json, new)
        return self._replace(resource, old, new, options)

    def _writer(self, resource: ResourceType, options: WriteOptions) -> Writer:
        return Writer(
            resource=resource,
            name=options.manager,
            subresource=options.subresource,
            now=timestamp(self._clock()),
        )

    def _create(self, resource: ResourceType, namespace: str, new: Json, options: WriteOptions) -> Stored:
        strategy = resource.strategy
        new = for_creation(new, namespace, self._clock(), generation=resource.counts_generations)
        new = strategy.prepare_create(without(new, "status") if resource.has_status else new)
        new = self._admission.admit_creation(resource, namespace, new)
        name = new["metadata"].get("name", "")
        _refuse(
            resource,
            name,
            strategy.problems(new, None),
            metadata_problems(new, strategy.name_rule),
        )
        if self._store.get(resource.group_resource, ObjectKey(namespace, name)):
            subject = resource.subject(name)
            raise ApiError(409, "AlreadyExists", f"{subject} already exists", **subject.details)
        return self._put(resource, new, None, dry_run=options.dry_run)

    def _replace(self, resource: ResourceType, old: Stored, new: Json, options: WriteOptions) -> Stored:
        strategy = resource.strategy
        new = for_update(new, old.json)
        new = self._with_only_what_may_change(resource, new, old.json, options.subresource)
        new = _with_generation(resource, new, old.json)
        _refuse(
            resource,
            old.key.name,
            metadata_update_problems(new, old.json),
            strategy.problems(new, old.json),
        )
        if removed_by_update(new, old.json, strategy.deletion) and not options.dry_run:
            return Stored(self._store.remove(resource.group_resource, old.key).revision, new)
        return self._put(resource, new, old, dry_run=options.dry_run)

    def _with_only_what_may_change(
        self, resource: ResourceType, new: Json, old: Json, subresource: str
    ) -> Json:
        """The object with everything that this (sub)resource does not write as it was."""
        if subresource == "status":
            metadata = new["metadata"]
            if resource.custom:
                metadata = {**old["metadata"], "managedFields": metadata.get("managedFields", [])}
            status = {"status": new["status"]} if new.get("status") is not None else {}
            return {**without(old, "status"), "metadata": metadata, **status}
        if resource.has_status:
            new = {**without(new, "status"), **({"status": old["status"]} if "status" in old else {})}
        return new if subresource else resource.strategy.prepare_update(new, old)

    def _put(self, resource: ResourceType, new: Json, old: Stored | None, *, dry_run: bool) -> Stored:
        """Store the object, unless nothing has changed: then neither does its version, as in Kubernetes."""
        if old is not None and same_but_for_times(new, old.json):
            return old
        if dry_run:
            return Stored(old.revision if old else 0, new)
        return self._store.put(resource.group_resource, new)


def _decoded(resource: ResourceType, body: Json, options: WriteOptions) -> Json:
    decoded, unknown = in_stored_form(resource, body)
    if unknown and options.strict:
        raise Undecodable(", ".join(f'unknown field "{path}"' for path in unknown))
    return resource.strategy.default(decoded)


def _with_generation(resource: ResourceType, new: Json, old: Json) -> Json:
    """The object with its generation counted up if more than metadata and status differ."""
    generation = old["metadata"].get("generation")
    if not resource.counts_generations or generation is None:
        return new
    ignored = ("metadata", "status") if resource.has_status else ("metadata",)
    if json_equal(without(new, *ignored), without(old, *ignored)):
        return new
    return with_metadata(new, generation=generation + 1)


def _refuse(resource: ResourceType, name: str, *problems: Iterable[Cause]) -> None:
    causes = list(chain(*problems))
    if causes:
        raise invalid_object(resource.subject(name), causes)


def _check_namespace(resource: ResourceType, namespace: str, new: Json) -> None:
    """The object may leave its namespace to the URL, but not name another one."""
    given = new["metadata"].get("namespace", "")
    if resource.namespaced and given not in {"", namespace}:
        raise bad_request(f"the namespace of the object ({given}) is not that of the URL ({namespace})")


def _check_identity(resource: ResourceType, key: ObjectKey, new: Json) -> None:
    given = new["metadata"].get("name", "")
    if given != key.name:
        raise bad_request(f"the name of the object ({given}) is not that of the URL ({key.name})")
    _check_namespace(resource, key.namespace, new)


def _check_uid(resource: ResourceType, new: Json, old: Stored) -> None:
    """An update that names a uid is for that object only, and for no successor of the same name."""
    wanted, found = new["metadata"].get("uid"), old.json["metadata"]["uid"]
    if wanted and wanted != found:
        raise conflict(resource.subject(old.key.name), f"uid {wanted} is wanted and {found} found")


def _check_version(resource: ResourceType, name: str, new: Json, old: Stored | None) -> None:
    """Optimistic concurrency: the version must be the current one, and given unless the kind lets it be."""
    wanted = new["metadata"].get("resourceVersion")
    if not wanted and old and not resource.unconditional_update:
        cause = Cause("metadata.resourceVersion", "must be specified for an update")
        raise invalid_object(resource.subject(name), [cause])
    if wanted and wanted != (str(old.revision) if old else ""):
        raise conflict(resource.subject(name))


def _check_deletion(resource: ResourceType, old: Stored, options: DeleteOptions) -> None:
    """A deletion may name the uid and the version that it is meant for."""
    for name, wanted in (("uid", options.uid), ("resourceVersion", options.resource_version)):
        found = old.json["metadata"][name]
        if wanted is not None and wanted != found:
            raise conflict(resource.subject(old.key.name), f"{name} {wanted} is wanted and {found} found")
