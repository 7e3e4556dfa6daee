"""Requests about resources: from an HTTP request to the service and back."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime

from aiohttp import web

from tinykube.api.discovery import page_not_found
from tinykube.api.lists import Selection, list_page, parse_list_query, parse_selection, parse_watch_query
from tinykube.api.pods import PodCommands, PodLogs, run_command, stream_log
from tinykube.api.rendering import Renderer, event_line
from tinykube.api.requests import (
    JSON,
    Parameters,
    Patch,
    PatchType,
    ResourcePath,
    check_patch_options,
    parse_delete_options,
    parse_dry_run,
    parse_eviction,
    parse_field_validation,
    parse_object,
    parse_patch,
    representation,
)
from tinykube.api.watches import EventType, watch_events
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.resources import Registry, ResourceType
from tinykube.objects.service import Deleted, ObjectService, WriteOptions, Written
from tinykube.objects.statuses import (
    ApiError,
    bad_request,
    method_not_allowed,
    success,
    unknown_resource,
)
from tinykube.objects.storage import ObjectKey, Store, Stored, encode
from tinykube.objects.subresources import scale_of, scaling
from tinykube.objects.users import User, Users
from tinykube.objects.values import Json, lookup
from tinykube.patch.patches import PatchInvalid, json_patch, merge_patch, strategic_merge_patch
from tinykube.printers import IncludeObject

USER = web.RequestKey("user", User)
"""Where a request keeps who has sent it."""
_WATCH_SECONDS = (1800, 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What the handlers work on."""

    store: Store
    registry: Registry
    service: ObjectService
    clock: Callable[[], datetime]
    users: Users
    pod_logs: PodLogs
    pod_commands: PodCommands


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request about a resource whose path has been understood."""

    request: web.Request
    path: ResourcePath
    resource: ResourceType
    parameters: Parameters

    @property
    def key(self) -> ObjectKey:
        """The object that the path names."""
        return ObjectKey(self.path.namespace, self.path.name)

    @property
    def verb(self) -> str:
        """The verb of Kubernetes' authorization that the request amounts to."""
        method, name = self.request.method, self.path.name
        if method in {"GET", "HEAD"}:
            if name:
                return "get"
            return "watch" if self.parameters.flag("watch") else "list"
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch"}
        return verbs.get(method) or ("delete" if name else "deletecollection")

    async def read_object(self) -> Json:
        """The object in the body; raises 400 or 415."""
        return parse_object(await self.request.read(), self.content_type)

    @property
    def content_type(self) -> str:
        """The media type of the body; empty when the client does not say."""
        return self.request.headers.get("Content-Type", "")

    def write_options(self) -> WriteOptions:
        """How to write; the manager's name is that of the client program unless given."""
        agent = self.request.headers.get("User-Agent", "").partition("/")[0]
        return WriteOptions(
            manager=self.parameters.text("fieldManager") or agent or "unknown",
            subresource=self.path.subresource,
            dry_run=parse_dry_run(self.parameters),
            validation=parse_field_validation(self.parameters),
        )


class ResourceHandlers:
    """Answers requests about resources."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._answers: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def handle(self, request: web.Request, path: ResourcePath) -> web.StreamResponse:
        """The answer to a request; raises ApiError."""
        resource = self._backend.registry.find(path.group, path.version, path.resource)
        if resource is None or (path.namespace and not resource.namespaced):
            return self._nothing_there(path)
        if path.subresource and path.subresource not in resource.subresources:
            raise unknown_resource()
        call = Call(request=request, path=path, resource=resource, parameters=Parameters(request.query))
        _check_verb(call)
        if path.subresource == "exec":
            found = self._backend.service.get(resource, call.key)
            return await run_command(request, found, self._backend.pod_commands)
        if path.subresource == "scale":
            return await self._scale(call)
        return await self._answers[call.verb](call)

    def _nothing_there(self, path: ResourcePath) -> web.Response:
        """404 in the two forms of kube-apiserver: for what a built-in version lacks, and for all else."""
        if any(
            not resource.custom for resource in self._backend.registry.in_version(path.group, path.version)
        ):
            raise unknown_resource()
        return page_not_found()

    async def _get(self, call: Call) -> web.StreamResponse:
        found = self._backend.service.get(call.resource, call.key)
        if call.path.subresource == "log":
            return await stream_log(call.request, found, self._backend.pod_logs)
        return self._one(call, found)

    async def _create(self, call: Call) -> web.Response:
        body = await call.read_object()
        if call.path.subresource == "token":
            return self._issue_token(call, body)
        if call.path.subresource == "eviction":
            return self._evict(call, body)
        if call.path.subresource:
            return self._bind(call, body)
        if "list" not in call.resource.verbs:
            return _json(201, encode(answer_review(call.resource, body, call.request[USER])))
        options = call.write_options()
        created = self._backend.service.create(call.resource, call.path.namespace, body, options)
        return _warned(self._one(call, created, code=201), options)

    def _bind(self, call: Call, body: Json) -> web.Response:
        options = call.write_options()
        self._backend.service.bind(call.resource, call.key, body, dry_run=options.dry_run)
        return _json(201, encode({**success(), "code": 201}))

    def _evict(self, call: Call, body: Json) -> web.Response:
        options = parse_eviction(body, call.path.name, call.parameters)
        self._backend.service.evict(call.resource, call.key, options)
        return _json(201, encode({**success(), "code": 201}))

    def _issue_token(self, call: Call, body: Json) -> web.Response:
        account = self._backend.service.get(call.resource, call.key).json
        issued = self._backend.users.issue(account, body, self._backend.clock())
        return _json(201, encode(issued))

    async def _scale(self, call: Call) -> web.Response:
        service = self._backend.service
        if call.verb == "get":
            return _json(200, encode(scale_of(service.get(call.resource, call.key).json)))
        if call.verb == "patch":
            patch = parse_patch(await call.request.read(), call.content_type, custom=False)
            written = patch_object(service, call.resource, call.key, patch, call.write_options()).stored
        else:
            body = await call.read_object()
            changed = scaling(lambda _: body)
            written = service.change(call.resource, call.key, changed, call.write_options())
        return _json(200, encode(scale_of(written.json)))

    async def _update(self, call: Call) -> web.Response:
        body, options = await call.read_object(), call.write_options()
        written = self._backend.service.update(call.resource, call.key, body, options)
        return _warned(self._one(call, written.stored, code=201 if written.created else 200), options)

    async def _patch(self, call: Call) -> web.Response:
        patch = parse_patch(await call.request.read(), call.content_type, custom=call.resource.custom)
        check_patch_options(patch, call.parameters)
        options, force = call.write_options(), call.parameters.flag("force")
        written = patch_object(self._backend.service, call.resource, call.key, patch, options, force=force)
        return _warned(self._one(call, written.stored, code=201 if written.created else 200), options)

    async def _delete(self, call: Call) -> web.Response:
        options = await _delete_options(call)
        deleted = self._backend.service.delete(call.resource, call.key, options)
        return self._deleted(call, deleted)

    def _deleted(self, call: Call, deleted: Deleted) -> web.Response:
        if call.resource.returns_deleted or not deleted.gone:
            return self._one(call, deleted.stored)
        uid = deleted.stored.json["metadata"]["uid"]
        return _json(200, encode(success({**call.resource.subject(call.path.name).details, "uid": uid})))

    async def _delete_collection(self, call: Call) -> web.Response:
        options = await _delete_options(call)
        page = list_page(self._backend.store, parse_list_query(self._selection(call), call.parameters))
        for stored in page.items:
            try:
                self._backend.service.delete(call.resource, stored.key, options)
            except ApiError as error:
                if error.code != 404:
                    raise
        return _json(200, self._renderer(call).page(page))

    async def _list(self, call: Call) -> web.Response:
        renderer = self._renderer(call)
        query = parse_list_query(self._selection(call), call.parameters)
        return _json(200, renderer.page(list_page(self._backend.store, query)))

    async def _watch(self, call: Call) -> web.StreamResponse:
        renderer = self._renderer(call)
        query = parse_watch_query(self._selection(call), call.parameters)
        seconds = query.timeout_seconds or random.uniform(*_WATCH_SECONDS)  # noqa: S311 - spreads re-watches
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        await response.prepare(call.request)
        first = True
        try:
            async for events in watch_events(self._backend.store, query, seconds):
                lines = []
                for event in events:
                    lines.append(renderer.event(event, first=first))
                    first = False
                await response.write(b"".join(lines))
                renderer = replace(renderer, now=self._backend.clock())
        except ApiError as error:
            await response.write(event_line(EventType.ERROR, encode(error.status)))
        await response.write_eof()
        return response

    def _selection(self, call: Call) -> Selection:
        return parse_selection(call.resource, call.path.namespace, call.path.name, call.parameters)

    def _one(self, call: Call, stored: Stored, *, code: int = 200) -> web.Response:
        return _json(code, self._renderer(call).one(stored) + b"\n")

    def _renderer(self, call: Call) -> Renderer:
        accept = call.request.headers.get("Accept", "")
        text = call.parameters.text("includeObject")
        if text not in {"", *IncludeObject}:
            raise bad_request(f"includeObject must be one of {', '.join(IncludeObject)}")
        return Renderer(
            resource=call.resource,
            representation=representation(accept),
            include_object=IncludeObject(text) if text else IncludeObject.METADATA,
            now=self._backend.clock(),
        )


def _check_verb(call: Call) -> None:
    """Raises 405 for what the resource cannot do, and for methods that do not fit the path."""
    named, verb, subresource = bool(call.path.name), call.verb, call.path.subresource
    wants_name = {"get", "update", "patch", "delete"}
    if subresource:
        allowed = verb in call.resource.subresources[subresource]
    else:
        allowed = verb in call.resource.verbs and (verb in wants_name) == named
    if not allowed:
        raise method_not_allowed()
    if call.resource.namespaced and not call.path.namespace and verb not in {"list", "watch"}:
        raise method_not_allowed()


async def _delete_options(call: Call) -> DeleteOptions:
    content = await call.request.read()
    return parse_delete_options(content, call.content_type, call.parameters)


def _warned(response: web.Response, options: WriteOptions) -> web.Response:
    """The answer with its warnings, each in a header of its own (RFC 7234) that kubectl shows."""
    for text in dict.fromkeys(options.warnings):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


def _json(code: int, content: bytes) -> web.Response:
    return web.Response(status=code, body=content, headers={"Content-Type": JSON})


def patch_object(
    service: ObjectService,
    resource: ResourceType,
    key: ObjectKey,
    patch: Patch,
    options: WriteOptions,
    *,
    force: bool = False,
) -> Written:
    """The object after a patch; server-side apply may create it. Raises ApiError."""
    if patch.type is PatchType.APPLY:
        _check_type(resource, patch)
        return service.apply(resource, key, patch.content, options, force=force)
    changed = _change(resource, patch)
    if options.subresource == "scale":
        changed = scaling(changed)
    try:
        return Written(service.change(resource, key, changed, options), created=False)
    except PatchInvalid as error:
        # What is no list of operations is the client's mistake, an operation that fails is a refusal.
        fits = patch.type is PatchType.JSON and isinstance(patch.content, list)
        raise (ApiError(422, "Invalid", str(error)) if fits else bad_request(str(error))) from error


def _check_type(resource: ResourceType, patch: Patch) -> None:
    """An applied configuration must name the type of the URL."""
    api_version, kind = (lookup(patch.content, key) or "" for key in ("apiVersion", "kind"))
    if (api_version, kind) != (resource.api_version, resource.kind):
        raise bad_request(f"{api_version} {kind} is not {resource.api_version} {resource.kind}")


def _change(resource: ResourceType, patch: Patch) -> Callable[[Json], Json]:
    match patch.type:
        case PatchType.JSON:
            return lambda current: json_patch(current, patch.content)
        case PatchType.MERGE:
            return lambda current: merge_patch(current, patch.content)
        case _:
            return lambda current: strategic_merge_patch(current, patch.content, resource.rules)


def answer_review(resource: ResourceType, review: Json, user: User) -> Json:
    """The review of that user with its status."""
    is_about_identity = resource.kind == "SelfSubjectReview"
    identity: Json = {"userInfo": {"username": user.name, "groups": list(user.groups)}}
    return {
        **review,
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": review.get("metadata") or {},
        "spec": review.get("spec") or {},
        "status": identity if is_about_identity else {"allowed": True},
    }
