"""Resource types that CustomResourceDefinitions add while the server runs."""

from tinykube.custom.schemas import compile_schema
from tinykube.kinds.definitions import CLEANUP_FINALIZER
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.resources import GroupResource, Registry, ResourceType, Strategy
from tinykube.objects.service import ObjectService, WriteOptions
from tinykube.objects.storage import Change, ObjectKey, Store
from tinykube.objects.values import Json, lookup
from tinykube.patch.merge_rules import rules_from_schema
from tinykube.printers import printer_for_definition

DEFINITIONS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")


def types_of(definition: Json) -> list[ResourceType]:
    """The version of a definition as a resource type, if it is served."""
    versions = lookup(definition, "spec", "versions") or []
    return [_type(definition, version) for version in versions if version.get("served")]


def _type(definition: Json, version: Json) -> ResourceType:
    spec, names = definition["spec"], definition["spec"]["names"]
    schema = lookup(version, "schema", "openAPIV3Schema") or {}
    compiled = compile_schema(schema)
    return ResourceType(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names["singular"],
        list_kind=names["listKind"],
        short_names=tuple(names.get("shortNames") or ()),
        namespaced=spec["scope"] == "Namespaced",
        has_status=lookup(version, "subresources", "status") is not None,
        unconditional_update=False,
        counts_generations=True,
        custom=True,
        printer=printer_for_definition(version.get("additionalPrinterColumns") or ()),
        merge_rules=rules_from_schema(schema),
        decode=compiled.decode,
        strategy=Strategy(default=compiled.default, other_problems=lambda new, _: compiled.validate(new)),
    )


class CustomTypes:
    """Keeps the registry in step with the stored definitions, and removes objects whose type goes away."""

    def __init__(self, store: Store, registry: Registry, service: ObjectService) -> None:
        self._store = store
        self._registry = registry
        self._service = service
        store.subscribe(self._on_change)

    def _on_change(self, resource: GroupResource, change: Change) -> None:
        if resource == DEFINITIONS:
            self._register(change)
            if "deletionTimestamp" in change.new.json["metadata"] and not change.deleted:
                self._delete_objects(change.new.json)
                self._release_if_empty(change.new.json)
        elif change.deleted and (definition := self._ending_definition(resource)):
            self._release_if_empty(definition)

    def _register(self, change: Change) -> None:
        old = types_of(change.old.json) if change.old else []
        self._registry.replace(old, [] if change.deleted else types_of(change.new.json))

    def _ending_definition(self, resource: GroupResource) -> Json | None:
        """The definition of a resource, if it is being deleted."""
        name = f"{resource.resource}.{resource.group}"
        stored = self._store.get(DEFINITIONS, ObjectKey("", name))
        return stored.json if stored and "deletionTimestamp" in stored.json["metadata"] else None

    def _delete_objects(self, definition: Json) -> None:
        for resource in types_of(definition):
            for stored in self._store.snapshot(resource.group_resource):
                if "deletionTimestamp" not in stored.json["metadata"]:
                    self._service.delete(resource, stored.key, DeleteOptions())

    def _release_if_empty(self, definition: Json) -> None:
        """Let the definition go when no object of its type is left."""
        spec, key = definition["spec"], ObjectKey("", definition["metadata"]["name"])
        if self._store.snapshot(GroupResource(spec["group"], spec["names"]["plural"])):
            return
        held = self._store.get(DEFINITIONS, key)
        if held is not None and CLEANUP_FINALIZER in (held.json["metadata"].get("finalizers") or ()):
            definitions = self._registry.get(DEFINITIONS.group, "v1", DEFINITIONS.resource)
            self._service.change(definitions, key, _without_cleanup, WriteOptions(manager="kube-apiserver"))


def _without_cleanup(definition: Json) -> Json:
    metadata = definition["metadata"]
    kept = [name for name in metadata.get("finalizers") or () if name != CLEANUP_FINALIZER]
    return {**definition, "metadata": {**metadata, "finalizers": kept}}
