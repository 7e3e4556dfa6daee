"""What the server can do: versions, groups, resources, and as much OpenAPI as kubectl asks for."""

import hashlib

from aiohttp import web

from tinykube.api.requests import JSON
from tinykube.objects.resources import SUBRESOURCE_KINDS, Registry, ResourceType
from tinykube.objects.storage import encode
from tinykube.objects.values import Json

_VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3+kube-efs",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux",
}


class Discovery:
    """Answers requests for anything but resources."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def answer(self, request: web.Request) -> web.Response:
        """The document at this path; plain 404 where there is none, as kube-apiserver does."""
        parts = [part for part in request.path.split("/") if part]
        if parts == ["openapi", "v2"]:
            return web.Response(body=document_v2_protobuf(), headers={"Content-Type": PROTOBUF})
        document = (
            self._openapi(parts[1:]) if parts[:1] == ["openapi"] else self._document(parts, request.host)
        )
        return page_not_found() if document is None else _json(document)

    def _document(self, parts: list[str], host: str) -> Json | None:
        match parts:
            case ["version"]:
                return _VERSION
            case ["api"]:
                return _core_versions(host)
            case ["apis"]:
                return self._group_list()
            case ["apis", group]:
                return self._group(group)
            case ["api" | "apis", *group, version] if (parts[0] == "api") == (not group):
                return self._resources("/".join(group), version)
            case _:
                return None

    def _openapi(self, parts: list[str]) -> Json | None:
        match parts:
            case ["v3"]:
                return index_v3(self._registry)
            case ["v3", "api" | "apis", *group, version]:
                return document_v3(self._registry, "/".join(group), version)
            case _:
                return None

    def _group_list(self) -> Json:
        groups = [_group(group, versions) for group, versions in self._groups(core=False).items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _group(self, group: str) -> Json | None:
        versions = self._groups(core=False).get(group)
        return (
            None if versions is None else {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}
        )

    def _groups(self, *, core: bool) -> dict[str, list[str]]:
        groups = self._registry.groups()
        return {group: versions for group, versions in groups.items() if (group == "") == core}

    def _resources(self, group: str, version: str) -> Json | None:
        types = self._registry.in_version(group, version)
        if not types:
            return None
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": types[0].api_version,
            "resources": [entry for resource in types for entry in _plain_entries(resource)],
        }


def page_not_found() -> web.Response:
    """The answer for paths that nothing is served at."""
    return web.Response(status=404, text="404 page not found\n")


def _json(document: Json) -> web.Response:
    return web.Response(body=encode(document), headers={"Content-Type": JSON})


def _core_versions(host: str) -> Json:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    }


def _group(group: str, versions: list[str]) -> Json:
    entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": entries, "preferredVersion": entries[0]}


def _plain_entries(resource: ResourceType) -> list[Json]:
    shared = {"singularName": "", "namespaced": resource.namespaced, "kind": resource.kind}
    main = {
        "name": resource.plural,
        **shared,
        "singularName": resource.singular,
        "verbs": list(resource.verbs),
        **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
        **({"categories": list(resource.categories)} if resource.categories else {}),
    }
    subresources = [
        {"name": f"{resource.plural}/{name}", **shared, **_kind_of(name), "verbs": list(verbs)}
        for name, verbs in resource.subresources.items()
    ]
    return [main, *subresources]


def _kind_of(subresource: str) -> Json:
    """The type of a subresource that has one of its own."""
    found = SUBRESOURCE_KINDS.get(subresource)
    return dict(zip(("group", "version", "kind"), found, strict=True)) if found else {}


PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_TITLE = "Kubernetes"
_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")


def index_v3(registry: Registry) -> Json:
    """The document of ``/openapi/v3``: where each group version's own document is."""
    paths: Json = {}
    for group, versions in registry.groups().items():
        for version in versions:
            name = f"apis/{group}/{version}" if group else f"api/{version}"
            document = document_v3(registry, group, version)
            digest = hashlib.sha256(encode(document)).hexdigest()
            paths[name] = {"serverRelativeURL": f"/openapi/v3/{name}?hash={digest[:32].upper()}"}
    return {"paths": paths}


def document_v3(registry: Registry, group: str, version: str) -> Json | None:
    """The OpenAPI 3 document of one group version; None when it is not served."""
    types = registry.in_version(group, version)
    if not types:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": _TITLE, "version": "unversioned"},
        "paths": {path: item for resource in types for path, item in _paths(resource)},
        "components": {"schemas": {}},
    }


def document_v2_protobuf() -> bytes:
    """The OpenAPI 2 document, empty, in gnostic's protocol buffers, the only form that kubectl reads.

    Fields of ``v2.Document``: 1 swagger, 2 info (1 title, 2 version).
    """
    info = _text_field(1, _TITLE) + _text_field(2, "unversioned")
    return _text_field(1, "2.0") + bytes([2 << 3 | 2, len(info)]) + info


def _text_field(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode()


def _paths(resource: ResourceType) -> list[tuple[str, Json]]:
    root = f"/apis/{resource.group}" if resource.group else "/api"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"{root}/{resource.version}{scope}/{resource.plural}"
    return [
        (collection, {"post": _operation(resource, "post")} if "create" in resource.verbs else {}),
        (
            f"{collection}/{{name}}",
            {
                method: _operation(resource, method)
                for method in ("put", "patch")
                if "patch" in resource.verbs
            },
        ),
    ]


def _operation(resource: ResourceType, method: str) -> Json:
    names = (*_WRITE_PARAMETERS, "force") if method == "patch" else _WRITE_PARAMETERS
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": method,
        "x-kubernetes-group-version-kind": kind,
    }
