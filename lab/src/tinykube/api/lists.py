"""Lists: which objects, as of which revision, and in which pages."""

from dataclasses import dataclass

from tinykube.api.queries import ListQuery, Position, Selection
from tinykube.objects.json_types import Json
from tinykube.objects.statuses import ApiError, expired, version_too_large
from tinykube.objects.storage import HistoryGone, Store, Stored


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
