"""The API server of a simulated cluster: objects in memory, with the rules that clients need.

Guards and fences depend on these rules. Every write is atomic and gets the next resource version. A wrong
``uid`` or ``resourceVersion``, in a body or in the preconditions of a deletion, gives 409. An object with
finalizers stays until the last one is removed. A pod on a node stays until its kubelet reports its end. A
watch gives every change of its kind, in order, from the requested version.

It checks neither permissions nor schemas: real API servers do that in other tests.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias

import httpx2
import msgspec
from tests.simulation.history import History
from tests.simulation.virtual import VirtualLoop

Body: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str]
# Kind, the object before and after; None when it did not or does not exist.
Observer: TypeAlias = Callable[[str, Body | None, Body | None], None]
# Kind and name of an object that a client gets.
Reader: TypeAlias = Callable[[str, str], None]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ENDED = frozenset({"Succeeded", "Failed"})

_KINDS = {
    "persistentvolumes": ("v1", "PersistentVolume"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "pods": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "namespaces": ("v1", "Namespace"),
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "events": ("v1", "Event"),
    "storageclasses": ("storage.k8s.io/v1", "StorageClass"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "csinodes": ("storage.k8s.io/v1", "CSINode"),
    "daemonsets": ("apps/v1", "DaemonSet"),
}
_MERGED_BY = {"schedulingGates": "name", "ownerReferences": "uid", "containers": "name", "volumes": "name"}
_PRIMITIVE = frozenset({"finalizers"})
_DELETE_FROM = "$deleteFromPrimitiveList/"


class Refused(Exception):
    """An answer with an error, as a Status of the API."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    @property
    def content(self) -> bytes:
        """The Status."""
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Status",
                "status": "Failure",
                "code": self.code,
                "reason": self.reason,
                "message": str(self),
            }
        )


@dataclass(slots=True, kw_only=True)
class Request:
    """The request of a client; ``extensions`` are those of its HTTP library, with the timeouts."""

    method: str
    url: Any
    params: Mapping[str, str]
    content: bytes
    content_type: str
    author: str
    extensions: Mapping[str, Any]

    @property
    def parts(self) -> "tuple[str, str | None, str | None, str | None]":
        """Plural, namespace, name and subresource."""
        return _parts(self.url.path)

    @property
    def kind(self) -> str:
        """The plural."""
        return self.parts[0]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    code: int
    content: bytes = b""
    watch: "Watch | None" = None


@dataclass(frozen=True, slots=True)
class _Event:
    version: int
    line: bytes
    body: Body


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a list or watch."""

    namespace: str | None
    labels: tuple[tuple[str, str], ...] = ()
    name: str | None = None

    def holds(self, body: Body) -> bool:
        """Whether the selection contains the object."""
        meta = body["metadata"]
        if self.namespace is not None and meta.get("namespace") != self.namespace:
            return False
        if self.name is not None and meta["name"] != self.name:
            return False
        return not self.labels or all(
            (meta.get("labels") or {}).get(key) == value for key, value in self.labels
        )


class Watch(httpx2.AsyncByteStream):
    """A stream of changes, delivered in order with a delay."""

    def __init__(self, loop: VirtualLoop, selection: Selection, lag: Callable[[], float]) -> None:
        self._loop = loop
        self._selection = selection
        self._lag = lag
        # Timers of one moment fire in any order, so they carry no data.
        self._under_way: deque[bytes] = deque()
        self._lines: deque[bytes | Exception | None] = deque()
        self._last_at = loop.time()
        self._waiter: Any = None
        self.is_over = False

    def tell(self, event: _Event) -> None:
        """Deliver a change later."""
        if not self.is_over and self._selection.holds(event.body):
            self._last_at = max(self._last_at, self._loop.time() + self._lag())
            self._under_way.append(event.line)
            self._loop.after(self._last_at - self._loop.time(), self._arrive)

    def end(self, error: Exception | None = None) -> None:
        """End the watch: the server ends it, or the connection breaks."""
        if not self.is_over:
            self._deliver(error)
            self.is_over = True

    def _arrive(self) -> None:
        self._deliver(self._under_way.popleft())

    def _deliver(self, line: bytes | Exception | None) -> None:
        if self.is_over:
            return
        self._lines.append(line)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while not self._lines:
                self._waiter = self._loop.create_future()
                await self._waiter
            line = self._lines.popleft()
            if line is None:
                return
            if isinstance(line, Exception):
                raise line
            yield line

    async def aclose(self) -> None:
        self.is_over = True


class ApiServer:
    """Objects by kind (plural, as in paths), namespace and name; bodies are immutable."""

    def __init__(self, loop: VirtualLoop, history: History, *, page_most: int = 500) -> None:
        self._loop = loop
        self._history = history
        self._page_most = page_most
        self.version = 1
        self._oldest = 0
        self._uids = 0
        self._tokens = 0
        self._objects: dict[str, dict[Key, Body]] = {plural: {} for plural in _KINDS}
        self._raw: dict[str, dict[Key, bytes]] = {plural: {} for plural in _KINDS}
        self._events: dict[str, list[_Event]] = {plural: [] for plural in _KINDS}
        self._watches: dict[str, list[Watch]] = {plural: [] for plural in _KINDS}
        self._pages: dict[str, tuple[int, list[bytes]]] = {}
        self.observers: list[Observer] = []
        self.readers: list[Reader] = []
        # The process of the current request, and the time of sending; empty for users.
        self.author = ""
        self.sent_at = 0.0
        self.logs: dict[str, list[str]] = {}

    # --- for the parts of the cluster

    def all(self, plural: str) -> list[Body]:
        """Every object of that kind."""
        return list(self._objects[plural].values())

    def find(self, plural: str, name: str, namespace: str = "") -> Body | None:
        """That object; None when it does not exist."""
        return self._objects[plural].get((namespace, name))

    def now(self) -> str:
        """The time of the server, in the format of the API."""
        return (BEGIN + timedelta(seconds=self._loop.time())).strftime("%Y-%m-%dT%H:%M:%SZ")

    def create(self, plural: str, body: Body) -> Body:
        """Create an object; raises Refused when its name exists."""
        version, kind = _KINDS[plural]
        body = _copied(body)
        meta = body.setdefault("metadata", {})
        key = (meta.get("namespace") or "", meta["name"])
        if key in self._objects[plural]:
            raise Refused(409, "AlreadyExists", f'{plural} "{meta["name"]}" already exists')
        self._uids += 1
        body["apiVersion"], body["kind"] = version, kind
        meta["uid"] = f"{_digits(plural):08x}-0000-4000-8000-{self._uids:012x}"
        meta["creationTimestamp"] = self.now()
        meta.pop("deletionTimestamp", None)
        _default(plural, body)
        self._commit(plural, key, None, body)
        return body

    def update(self, plural: str, name: str, change: Callable[[Body], None], namespace: str = "") -> Body:
        """Change an object atomically; raises Refused when it does not exist."""
        key = (namespace, name)
        old = self._existing(plural, key)
        new = _copied(old)
        change(new)
        return self._replace(plural, key, old, new)

    def delete(
        self,
        plural: str,
        name: str,
        namespace: str = "",
        *,
        preconditions: Mapping[str, str] | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Delete an object, or mark it if it has finalizers; raises Refused."""
        key = (namespace, name)
        old = self._existing(plural, key)
        for field, wanted in (preconditions or {}).items():
            if wanted and old["metadata"][field] != wanted:
                message = f"Precondition failed: {field} in precondition: {wanted}"
                raise Refused(409, "Conflict", message)
        stays = bool(old["metadata"].get("finalizers"))
        if plural == "pods":
            is_over = (old.get("status") or {}).get("phase") in ENDED
            runs = bool(old["spec"].get("nodeName")) and not is_over and grace_seconds != 0
            stays = stays or runs
        if not stays:
            self._commit(plural, key, old, None)
        elif "deletionTimestamp" not in old["metadata"]:
            new = _copied(old)
            new["metadata"]["deletionTimestamp"] = self.now()
            self._commit(plural, key, old, new)

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Remove an object at once, if it exists; only for the part that has ended it."""
        old = self._objects[plural].get((namespace, name))
        if old is not None:
            self._commit(plural, (namespace, name), old, None)

    def forget_events(self) -> None:
        """Compact: watches can no longer begin before now."""
        self._oldest = self.version

    def cut_watches(self, chosen: Callable[[], bool]) -> None:
        """Break the connections of the selected watches."""
        for watches in self._watches.values():
            for watch in watches:
                if chosen():
                    watch.end(httpx2.ReadError("connection reset"))

    # --- for clients

    def serve(self, request: Request, lag: Callable[[], float]) -> Answer:
        """Carry out the request; errors are answers, too. ``lag`` is the delay of changes in a watch."""
        self.author = request.author
        try:
            return self._serve(request, lag)
        except Refused as refusal:
            return Answer(refusal.code, refusal.content)
        finally:
            self.author = ""

    def _serve(self, request: Request, lag: Callable[[], float]) -> Answer:
        plural, namespace, name, _ = request.parts
        if plural not in _KINDS:
            raise Refused(404, "NotFound", f"the server could not find {request.url.path}")
        key = (namespace or "", name or "")
        if request.method == "GET":
            return self._read(request, key, lag)
        body = msgspec.json.decode(request.content) if request.content else {}
        if request.method == "POST":
            if namespace:
                body.setdefault("metadata", {})["namespace"] = namespace
            made = self.create(plural, body)
            return Answer(201, self._raw[plural][key[0], made["metadata"]["name"]])
        if request.method == "PUT":
            old = self._existing(plural, key)
            body["metadata"] = {**old["metadata"], **body["metadata"]}
            body["apiVersion"], body["kind"] = _KINDS[plural]
            return Answer(200, msgspec.json.encode(self._replace(plural, key, old, body)))
        if request.method == "PATCH":
            return Answer(200, self._patch(plural, key, request.content_type, body))
        grace = body.get("gracePeriodSeconds", request.params.get("gracePeriodSeconds"))
        self.delete(
            plural,
            key[1],
            key[0],
            preconditions=body.get("preconditions"),
            grace_seconds=int(grace) if grace is not None else None,
        )
        return Answer(200, b'{"apiVersion":"v1","kind":"Status","status":"Success"}')

    def _read(self, request: Request, key: Key, lag: Callable[[], float]) -> Answer:
        plural, namespace, name, sub = request.parts
        query = request.params
        if name is None:
            selection = _selection(namespace, query)
            if query.get("watch") == "true":
                return self._watch(plural, selection, query, lag)
            return Answer(200, self._list(plural, selection, query))
        self._existing(plural, key)
        if sub == "log":
            return Answer(200, "".join(f"{line}\n" for line in self.logs.get(name, ())).encode())
        for reader in self.readers:
            reader(plural, name)
        return Answer(200, self._raw[plural][key])

    def _list(self, plural: str, selection: Selection, query: Mapping[str, str]) -> bytes:
        token = query.get("continue")
        if token:
            if token not in self._pages:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
            version, items = self._pages.pop(token)
        else:
            version = self.version
            raws = self._raw[plural]
            items = [raws[key] for key, body in self._objects[plural].items() if selection.holds(body)]
        most = min(int(query.get("limit") or self._page_most), self._page_most)
        page, rest = items[:most], items[most:]
        following = ""
        if rest and query.get("limit"):
            self._tokens += 1
            following = f"page-{self._tokens}"
            self._pages[following] = (version, rest)
        else:
            page = items
        api_version, kind = _KINDS[plural]
        head = (
            f'{{"apiVersion":"{api_version}","kind":"{kind}List","metadata":{{"resourceVersion":"{version}"'
            f',"continue":"{following}"}},"items":['
        )
        return head.encode() + b",".join(page) + b"]}"

    def _watch(
        self, plural: str, selection: Selection, query: Mapping[str, str], lag: Callable[[], float]
    ) -> Answer:
        since = int(query.get("resourceVersion") or 0)
        if since < self._oldest:
            raise Refused(410, "Expired", f"too old resource version: {since} ({self._oldest})")
        watch = Watch(self._loop, selection, lag)
        for event in self._events[plural]:
            if event.version > since:
                watch.tell(event)
        live = [one for one in self._watches[plural] if not one.is_over]
        self._watches[plural] = [*live, watch]
        self._loop.after(float(query.get("timeoutSeconds") or 300), watch.end)
        return Answer(200, watch=watch)

    def _patch(self, plural: str, key: Key, content_type: str, patch: Any) -> bytes:
        old = self._objects[plural].get(key)
        if content_type.startswith("application/apply-patch"):
            if old is None:
                self.create(plural, patch)
                return self._raw[plural][key]
            # Fields that a manager no longer sets are removed; it manages only data.
            new = {**_merged(_copied(old), patch, is_strategic=True), "data": patch.get("data") or {}}
        elif old is None:
            raise _not_found(plural, key)
        elif content_type.startswith("application/json-patch"):
            new = _copied(old)
            for step in patch:
                _step(new, step)
        else:
            is_strategic = content_type.startswith("application/strategic")
            new = _merged(_copied(old), patch, is_strategic=is_strategic)
        self._replace(plural, key, old, new)
        return self._raw[plural].get(key) or msgspec.json.encode(new)

    # --- the storage

    def _existing(self, plural: str, key: Key) -> Body:
        found = self._objects[plural].get(key)
        if found is None:
            raise _not_found(plural, key)
        return found

    def _replace(self, plural: str, key: Key, old: Body, new: Body) -> Body:
        before, meta = old["metadata"], new["metadata"]
        for field in ("uid", "resourceVersion"):
            if meta.get(field) and meta[field] != before[field]:
                message = f"the object has been modified: {field} is {before[field]}, not {meta[field]}"
                raise Refused(409, "Conflict", message)
        for field in (
            "uid",
            "resourceVersion",
            "name",
            "namespace",
            "creationTimestamp",
            "deletionTimestamp",
        ):
            if field in before:
                meta[field] = before[field]
        if "deletionTimestamp" in before and set(meta.get("finalizers") or ()) - set(
            before.get("finalizers") or ()
        ):
            raise Refused(422, "Invalid", "no new finalizers can be added if the object is being deleted")
        if new == old:
            return old
        goes = "deletionTimestamp" in before and not meta.get("finalizers")
        if goes and not (plural == "pods" and not before.get("finalizers")):
            self._commit(plural, key, old, None)
        else:
            self._commit(plural, key, old, new)
        return new

    def _commit(self, plural: str, key: Key, old: Body | None, new: Body | None) -> None:
        self.version += 1
        body = new if new is not None else _copied(old or {})
        body["metadata"]["resourceVersion"] = str(self.version)
        raw = msgspec.json.encode(body)
        if new is None:
            del self._objects[plural][key], self._raw[plural][key]
            kind = b"DELETED"
        else:
            self._objects[plural][key], self._raw[plural][key] = new, raw
            kind = b"ADDED" if old is None else b"MODIFIED"
        event = _Event(self.version, b'{"type":"%s","object":%s}\n' % (kind, raw), body)
        self._events[plural].append(event)
        for watch in self._watches[plural]:
            watch.tell(event)
        for observer in self.observers:
            observer(plural, old, new)


def _digits(plural: str) -> int:
    return list(_KINDS).index(plural) + 1


def _default(plural: str, body: Body) -> None:
    """The fields that the API server, or a controller at once, adds to a new object."""
    meta = body["metadata"]
    if plural == "persistentvolumes":
        meta["finalizers"] = [*(meta.get("finalizers") or ()), "kubernetes.io/pv-protection"]
        body["status"] = {"phase": "Pending"}
    elif plural == "persistentvolumeclaims":
        meta["finalizers"] = [*(meta.get("finalizers") or ()), "kubernetes.io/pvc-protection"]
        body["status"] = {"phase": "Pending"}
    elif plural == "pods":
        body["status"] = {"phase": "Pending"}


def _copied(body: Body) -> Body:
    copy: Body = msgspec.json.decode(msgspec.json.encode(body))
    return copy


def _not_found(plural: str, key: Key) -> Refused:
    return Refused(404, "NotFound", f'{plural} "{key[1]}" not found')


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, str | None, str | None, str | None]:
    """Plural, namespace, name and subresource of a path."""
    found = path.strip("/").split("/")
    rest = found[2:] if found[0] == "api" else found[3:]
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return rest[0], namespace, rest[1] if len(rest) > 1 else None, rest[2] if len(rest) > 2 else None


def _selection(namespace: str | None, query: Mapping[str, str]) -> Selection:
    labels = _pairs(query.get("labelSelector") or "")
    return Selection(namespace, labels, dict(_pairs(query.get("fieldSelector") or "")).get("metadata.name"))


def _pairs(selector: str) -> tuple[tuple[str, str], ...]:
    found = (one.partition("=") for one in selector.split(",") if one)
    return tuple((key, value) for key, _, value in found)


def _merged(target: Any, patch: Any, *, is_strategic: bool) -> Any:
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if is_strategic and name.startswith(_DELETE_FROM):
            field = name.removeprefix(_DELETE_FROM)
            found[field] = [one for one in found.get(field) or () if one not in value]
        elif value is None:
            found.pop(name, None)
        elif is_strategic and isinstance(value, list) and name in _PRIMITIVE:
            before = found.get(name) or []
            found[name] = [*before, *(one for one in value if one not in before)]
        elif is_strategic and isinstance(value, list) and name in _MERGED_BY:
            found[name] = _merged_list(found.get(name) or (), value, _MERGED_BY[name])
        else:
            found[name] = _merged(found.get(name), value, is_strategic=is_strategic)
    return found


def _merged_list(before: Iterable[Body], patch: Iterable[Body], by: str) -> list[Body]:
    found = {one[by]: one for one in before}
    for one in patch:
        if "$patch" in one and one["$patch"] == "delete":
            found.pop(one[by], None)
        elif by in one:
            found[one[by]] = _merged(found.get(one[by]), one, is_strategic=True)
    return list(found.values())


def _step(body: Any, step: Body) -> None:
    """One step of a JSON patch, of the forms test, add, replace and remove."""
    *above, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    try:
        for name in above:
            body = body[int(name)] if isinstance(body, list) else body[name]
        place = int(last) if isinstance(body, list) and last != "-" else last
        match step["op"]:
            case "test" if body[place] != step["value"]:
                raise Refused(422, "Invalid", f"the test of {step['path']} failed")
            case "add" if isinstance(body, list):
                body.insert(len(body) if place == "-" else place, step["value"])
            case "add" | "replace":
                body[place] = step["value"]
            case "remove":
                del body[place]
    except (LookupError, TypeError, ValueError) as error:
        raise Refused(422, "Invalid", f"there is no {step['path']}") from error
