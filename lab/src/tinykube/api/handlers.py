"""Requests about resources: from an HTTP request to the service and back."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime

from aiohttp import web

from tinykube.api.discovery import page_not_found
from tinykube.api.lists import Selection, list_page, parse_selection
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
    parse_object,
    parse_patch,
    read_delete_options,
    wants_table,
)
from tinykube.api.watches import EventType, parse_watch_query, watch_events
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.resources import Registry, ResourceType
from tinykube.objects.service import ObjectService, WriteOptions, Written
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

USER = web.RequestKey("user", User)
"""Where a request keeps who has sent it."""
_WATCH_SECONDS = (1800, 3600)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


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
        return _VERBS.get(method) or ("delete" if name else "deletecollection")

    async def read_object(self) -> Json:
        """The object in the body; raises 400 or 415."""
        return parse_object(await self.request.read(), self.content_type)

    async def delete_options(self) -> DeleteOptions:
        """How to delete; raises 400 or 422."""
        return parse_delete_options(await self.request.read(), self.content_type, self.parameters)

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
            strict=self.parameters.text("fieldValidation") == "Strict",
        )


@dataclass(frozen=True, kw_only=True)
class ResourceHandlers:
    """Answers requests about resources, with what they are answered from."""

    store: Store
    registry: Registry
    service: ObjectService
    clock: Callable[[], datetime]
    users: Users
    pod_logs: PodLogs | None
    pod_commands: PodCommands | None

    async def handle(self, request: web.Request, path: ResourcePath) -> web.StreamResponse:
        """The answer to a request; raises ApiError."""
        resource = self.registry.find(path.group, path.version, path.resource)
        if resource is None or (path.namespace and not resource.namespaced):
            return self._nothing_there(path)
        if path.subresource and path.subresource not in resource.subresources:
            raise unknown_resource()
        call = Call(request=request, path=path, resource=resource, parameters=Parameters(request.query))
        _check_verb(call)
        answers: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }
        match path.subresource:
            case "exec":
                return await run_command(request, self.service.get(resource, call.key), self.pod_commands)
            case "scale":
                return await self._scale(call)
        return await answers[call.verb](call)

    def _nothing_there(self, path: ResourcePath) -> web.Response:
        """404 in the two forms of kube-apiserver: for what a built-in version lacks, and for all else."""
        if any(not resource.custom for resource in self.registry.in_version(path.group, path.version)):
            raise unknown_resource()
        return page_not_found()

    async def _get(self, call: Call) -> web.StreamResponse:
        found = self.service.get(call.resource, call.key)
        if call.path.subresource == "log":
            return await stream_log(call.request, found, self.pod_logs)
        return self._one(call, found)

    async def _create(self, call: Call) -> web.Response:
        body, resource = await call.read_object(), call.resource
        match call.path.subresource:
            case "token":
                account = self.service.get(resource, call.key)
                return _json(201, encode(self.users.issue(account, body, self.clock())))
            case "eviction":
                if lookup(body, "metadata", "name") != call.path.name:
                    raise bad_request("an Eviction names the pod of the URL")
                options = read_delete_options(body.get("deleteOptions") or {}, call.parameters)
                self.service.evict(resource, call.key, options)
                return _json(201, encode({**success(), "code": 201}))
            case "binding":
                self.service.bind(resource, call.key, body, dry_run=parse_dry_run(call.parameters))
                return _json(201, encode({**success(), "code": 201}))
        if "list" not in resource.verbs:
            return _json(201, encode(answer_review(resource, body, call.request[USER])))
        created = self.service.create(resource, call.path.namespace, body, call.write_options())
        return self._one(call, created, code=201)

    async def _scale(self, call: Call) -> web.Response:
        if call.verb == "get":
            return _json(200, encode(scale_of(self.service.get(call.resource, call.key).json)))
        patch = parse_patch(await call.request.read(), call.content_type, custom=False)
        written = patch_object(self.service, call.resource, call.key, patch, call.write_options())
        return _json(200, encode(scale_of(written.stored.json)))

    async def _update(self, call: Call) -> web.Response:
        body = await call.read_object()
        return self._one(call, self.service.update(call.resource, call.key, body, call.write_options()))

    async def _patch(self, call: Call) -> web.Response:
        patch = parse_patch(await call.request.read(), call.content_type, custom=call.resource.custom)
        check_patch_options(patch, call.parameters)
        written = patch_object(self.service, call.resource, call.key, patch, call.write_options())
        return self._one(call, written.stored, code=201 if written.created else 200)

    async def _delete(self, call: Call) -> web.Response:
        deleted = self.service.delete(call.resource, call.key, await call.delete_options())
        if call.resource.returns_deleted or not deleted.gone:
            return self._one(call, deleted.stored)
        uid = deleted.stored.json["metadata"]["uid"]
        return _json(200, encode(success({**call.resource.subject(call.path.name).details, "uid": uid})))

    async def _delete_collection(self, call: Call) -> web.Response:
        options = await call.delete_options()
        page = list_page(self.store, self._selection(call), call.parameters)
        for stored in page.items:
            self.service.delete(call.resource, stored.key, options)
        return _json(200, self._renderer(call).page(page))

    async def _list(self, call: Call) -> web.Response:
        renderer = self._renderer(call)
        return _json(200, renderer.page(list_page(self.store, self._selection(call), call.parameters)))

    async def _watch(self, call: Call) -> web.StreamResponse:
        renderer = self._renderer(call)
        query = parse_watch_query(self._selection(call), call.parameters)
        seconds = query.timeout_seconds or random.uniform(*_WATCH_SECONDS)  # noqa: S311 - spreads re-watches
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        await response.prepare(call.request)
        first = True
        try:
            async for events in watch_events(self.store, query, seconds):
                lines = []
                for event in events:
                    lines.append(renderer.event(event, first=first))
                    first = False
                await response.write(b"".join(lines))
                renderer = replace(renderer, now=self.clock())
        except ApiError as error:
            await response.write(event_line(EventType.ERROR, encode(error.status)))
        await response.write_eof()
        return response

    def _selection(self, call: Call) -> Selection:
        return parse_selection(call.resource, call.path.namespace, call.path.name, call.parameters)

    def _one(self, call: Call, stored: Stored, *, code: int = 200) -> web.Response:
        return _json(code, self._renderer(call).one(stored) + b"\n")

    def _renderer(self, call: Call) -> Renderer:
        table = wants_table(call.request.headers.get("Accept", ""))
        return Renderer(resource=call.resource, table=table, now=self.clock())


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


def _json(code: int, content: bytes) -> web.Response:
    return web.Response(status=code, body=content, headers={"Content-Type": JSON})


def patch_object(
    service: ObjectService,
    resource: ResourceType,
    key: ObjectKey,
    patch: Patch,
    options: WriteOptions,
) -> Written:
    """The object after a patch; server-side apply may create it. Raises ApiError."""
    content = patch.content

    def changed(current: Json) -> Json:
        match patch.type:
            case PatchType.JSON:
                return json_patch(current, content)
            case PatchType.MERGE:
                return merge_patch(current, content)
            case _:
                return strategic_merge_patch(current, content, resource.rules)

    if patch.type is PatchType.APPLY:
        api_version, kind = (lookup(content, key) or "" for key in ("apiVersion", "kind"))
        if (api_version, kind) != (resource.api_version, resource.kind):
            raise bad_request(f"{api_version} {kind} is not {resource.api_version} {resource.kind}")
        return service.apply(resource, key, content, options)
    change = scaling(changed) if options.subresource == "scale" else changed
    try:
        return Written(service.change(resource, key, change, options), created=False)
    except PatchInvalid as error:
        # What is no list of operations is the client's mistake, an operation that fails is a refusal.
        fits = patch.type is PatchType.JSON and isinstance(content, list)
        raise (ApiError(422, "Invalid", str(error)) if fits else bad_request(str(error))) from error


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
