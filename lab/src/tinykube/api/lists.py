"""Which objects a list, a watch or the deletion of a collection means."""

from dataclasses import dataclass

from tinykube.api.requests import Parameters
from tinykube.objects.resources import ResourceType
from tinykube.objects.selectors import (
    Requirement,
    SelectorInvalid,
    parse_field_selector,
    parse_label_selector,
)
from tinykube.objects.statuses import bad_request
from tinykube.objects.storage import Store, Stored
from tinykube.objects.values import Json, lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Objects of one type: those of a namespace (empty: all), a name (empty: all), and the selectors."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def objects(self, store: Store) -> list[Stored]:
        """All of them, as they are now."""
        found = store.snapshot(self.resource.group_resource, self.namespace)
        return [stored for stored in found if self.includes(stored.json)]

    def includes(self, stored: Json) -> bool:
        """Whether this stored object is meant."""
        metadata = stored["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        labels = metadata.get("labels") or {}
        return (
            (not self.name or metadata["name"] == self.name)
            and all(one.holds(labels.get(one.key)) for one in self.labels)
            # A field that is not there has the empty value.
            and all(one.holds(str(lookup(stored, *one.key.split(".")) or "")) for one in self.fields)
        )


def parse_selection(resource: ResourceType, namespace: str, name: str, parameters: Parameters) -> Selection:
    """The selection of a request; raises 400 where a selector cannot be understood."""
    try:
        return Selection(
            resource=resource,
            namespace=namespace,
            name=name,
            labels=parse_label_selector(parameters.text("labelSelector")),
            fields=parse_field_selector(parameters.text("fieldSelector"), resource.group, resource.kind),
        )
    except SelectorInvalid as error:
        raise bad_request(str(error)) from error
