"""Lists: which objects, as of which revision, and in which pages."""

import base64
import json
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from tinykube.api.requests import Parameters
from tinykube.objects.resources import ResourceType
from tinykube.objects.selectors import (
    Requirement,
    SelectorInvalid,
    parse_field_selector,
    parse_label_selector,
)
from tinykube.objects.statuses import bad_request
from tinykube.objects.storage import ObjectKey, Store, Stored
from tinykube.objects.values import Json, lookup

_TOKEN_VERSION = "meta.k8s.io/v1"  # noqa: S105 - the format's version, as in real continue tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Objects of one type: those of a namespace (empty: all), a name (empty: all), and the selectors."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    @property
    def selective(self) -> bool:
        """Whether anything but the namespace restricts it."""
        return bool(self.name or self.labels or self.fields)

    def includes(self, stored: Json) -> bool:
        """Whether this stored object is meant."""
        metadata = stored["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        if not self.selective:
            return True
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


class Position(NamedTuple):
    """Where a paged list continues: the revision of its first page and the last key given."""

    revision: int
    after: ObjectKey

    def token(self) -> str:
        """The opaque ``continue`` token."""
        content = {"v": _TOKEN_VERSION, "rv": self.revision, "start": "/".join(self.after)}
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, token: str) -> Self:
        """The position that a token means; raises 400."""
        try:
            content: Any = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            namespace, _, name = content["start"].partition("/")
            return cls(int(content["rv"]), ObjectKey(namespace, name))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise bad_request(f"continue is not a token of this server: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some objects of a list; ``next_page`` while there are more, ``remaining`` where that can be known."""

    items: list[Stored]
    revision: int
    next_page: Position | None = None
    remaining: int | None = None

    @property
    def metadata(self) -> Json:
        """The ListMeta of this page."""
        found: Json = {"resourceVersion": str(self.revision)}
        if self.next_page is not None:
            found["continue"] = self.next_page.token()
        if self.remaining is not None:
            found["remainingItemCount"] = self.remaining
        return found


def list_page(store: Store, selection: Selection, parameters: Parameters) -> Page:
    """The page that a request asks for; raises 400.

    Lists are of the latest version, whichever is asked for. Every page has the revision of the first one, so
    a watch from there shows what has changed between them.
    """
    token, limit = parameters.text("continue"), max(parameters.number("limit") or 0, 0)
    position = Position.parse(token) if token else None
    revision = position.revision if position else store.revision
    chosen = [
        stored
        for stored in store.snapshot(selection.resource.group_resource, selection.namespace)
        if (position is None or stored.key > position.after) and selection.includes(stored.json)
    ]
    if not limit or len(chosen) <= limit:
        return Page(items=chosen, revision=revision)
    return Page(
        items=chosen[:limit],
        revision=revision,
        next_page=Position(revision, chosen[limit - 1].key),
        # As in Kubernetes, whose pages cannot count what a selector would still leave out.
        remaining=None if selection.selective else len(chosen) - limit,
    )
