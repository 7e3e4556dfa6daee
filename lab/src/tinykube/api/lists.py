"""Lists: which objects, as of which revision, and in which pages."""

import base64
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from tinykube.api.requests import Parameters
from tinykube.objects.decoding import in_wire_form
from tinykube.objects.resources import ResourceType
from tinykube.objects.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorInvalid,
    parse_field_selector,
    parse_label_selector,
)
from tinykube.objects.statuses import ApiError, bad_request, expired, invalid_option, version_too_large
from tinykube.objects.storage import HistoryGone, ObjectKey, Store, Stored
from tinykube.objects.values import Json

_TOKEN_VERSION = "meta.k8s.io/v1"  # noqa: S105 - the format's version, as in real continue tokens
_LATEST = -1


class VersionMatch(StrEnum):
    """How the resource version of a request relates to that of the answer."""

    UNSET = ""
    EXACT = "Exact"
    NOT_OLDER_THAN = "NotOlderThan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Objects of one type: those of a namespace (empty: all), a name (empty: all), and the selectors."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    labels: LabelSelector = field(default_factory=LabelSelector)
    fields: FieldSelector = field(default_factory=FieldSelector)

    @property
    def selective(self) -> bool:
        """Whether anything but the namespace restricts it."""
        return bool(self.name or self.labels.requirements or self.fields.requirements)

    def includes(self, stored: Json) -> bool:
        """Whether this stored object is meant."""
        metadata = stored["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        if not self.selective:
            return True
        return (
            (not self.name or metadata["name"] == self.name)
            and self.labels.matches(metadata.get("labels") or {})
            and self.fields.matches(in_wire_form(self.resource, stored))
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
    """Where a paged list goes on: the snapshot's revision (None: the latest) and the last key given."""

    revision: int | None
    after: ObjectKey

    def token(self) -> str:
        """The opaque ``continue`` token."""
        revision = _LATEST if self.revision is None else self.revision
        content = {"v": _TOKEN_VERSION, "rv": revision, "start": "/".join(self.after)}
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, token: str) -> Self:
        """The position that a token means; raises 400."""
        try:
            content: Any = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            namespace, _, name = content["start"].partition("/")
            revision = int(content["rv"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise bad_request(f"continue is not a token of this server: {error}") from error
        return cls(None if revision == _LATEST else revision, ObjectKey(namespace, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """A list: of what, as of when, and which page."""

    selection: Selection
    revision: int | None = None
    match: VersionMatch = VersionMatch.UNSET
    limit: int | None = None
    position: Position | None = None

    @property
    def exact(self) -> bool:
        """Whether the answer must be of exactly ``revision``; a page of an old revision is so too."""
        if not self.revision:
            return False
        return self.match is VersionMatch.EXACT or (self.match is VersionMatch.UNSET and bool(self.limit))


def parse_list_query(selection: Selection, parameters: Parameters) -> ListQuery:
    """The list that a request asks for; raises 400 or 422."""
    match = _parse_match(parameters)
    revision = parameters.resource_version()
    token = parameters.text("continue")
    if token and revision:
        raise bad_request("specifying resource version is not allowed when using continue")
    if match is VersionMatch.EXACT and revision == 0:
        raise invalid_option(_MATCH, "must not be Exact for any version")
    return ListQuery(
        selection=selection,
        revision=revision,
        match=match,
        limit=max(parameters.number("limit") or 0, 0) or None,
        position=Position.parse(token) if token else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchQuery:
    """A watch: of what, from when, and what is sent besides changes."""

    selection: Selection
    revision: int | None = None
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout_seconds: int | None = None


def parse_watch_query(selection: Selection, parameters: Parameters) -> WatchQuery:
    """The watch that a request asks for; raises 400 or 422."""
    initial_events = parameters.flag("sendInitialEvents") if "sendInitialEvents" in parameters else None
    match = VersionMatch(parameters.text(_MATCH))
    if initial_events is None and match:
        raise invalid_option(_MATCH, "needs sendInitialEvents")
    if initial_events is not None and match is not VersionMatch.NOT_OLDER_THAN:
        raise invalid_option(_MATCH, "must be NotOlderThan with sendInitialEvents")
    return WatchQuery(
        selection=selection,
        revision=parameters.resource_version(),
        bookmarks=parameters.flag("allowWatchBookmarks"),
        initial_events=initial_events,
        timeout_seconds=parameters.number("timeoutSeconds"),
    )


_MATCH = "resourceVersionMatch"


def _parse_match(parameters: Parameters) -> VersionMatch:
    text = parameters.text(_MATCH)
    if text not in set(VersionMatch):
        raise invalid_option(_MATCH, "must be Exact or NotOlderThan")
    if text and not parameters.text("resourceVersion"):
        raise invalid_option(_MATCH, "needs a resourceVersion")
    return VersionMatch(text)


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


def list_page(store: Store, query: ListQuery) -> Page:
    """The page that a query asks for; raises 410 when its snapshot is forgotten, 504 for the future."""
    selection, position = query.selection, query.position
    revision = _revision(store, query)
    try:
        objects = store.snapshot(selection.resource.group_resource, selection.namespace, revision=revision)
    except HistoryGone as error:
        raise _expired(query, error) from error
    if position is not None:
        objects = [stored for stored in objects if stored.key > position.after]
    return _page(objects, revision or store.revision, selection, query.limit)


def _revision(store: Store, query: ListQuery) -> int | None:
    """The revision to read at; None for the latest."""
    if query.position is not None:
        return query.position.revision
    if query.revision is not None and query.revision > store.revision:
        raise version_too_large(query.revision, store.revision)
    return query.revision if query.exact else None


def _page(objects: list[Stored], revision: int, selection: Selection, limit: int | None) -> Page:
    chosen = [stored for stored in objects if selection.includes(stored.json)]
    if limit is None or len(chosen) <= limit:
        return Page(items=chosen, revision=revision)
    items = chosen[:limit]
    return Page(
        items=items,
        revision=revision,
        next_page=Position(revision, items[-1].key),
        # As in Kubernetes, whose pages cannot count what a selector would still leave out.
        remaining=None if selection.selective else len(chosen) - limit,
    )


def _expired(query: ListQuery, error: HistoryGone) -> ApiError:
    """410; of a later page with a token for the rest of the list as it is now."""
    refusal = expired(f"too old resource version, the oldest is {error.oldest}")
    if query.position is not None:
        refusal.status["metadata"] = {"continue": Position(None, query.position.after).token()}
    return refusal
