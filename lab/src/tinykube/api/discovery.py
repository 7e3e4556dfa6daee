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
    "gitVersion": "v1.36.3+tinykube",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux",
}
_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_TITLE = "Kubernetes"
# kubectl asks before it applies: does PATCH of this kind know ``fieldValidation`` and ``dryRun``? Fields of
# kinds are not published here, nor how patches merge, which kubectl has built in.
_PATCH_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")


class Discovery:
    """Answers requests for anything but resources."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def answer(self, request: web.Request) -> web.Response:
        """The document at this path; plain 404 where there is none, as kube-apiserver does."""
        document: Json | None = None
        match [part for part in request.path.split("/") if part]:
            case ["version"]:
                document = _VERSION
            case ["api"]:
                addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": request.host}]
                document = {
                    "kind": "APIVersions",
                    "versions": ["v1"],
                    "serverAddressByClientCIDRs": addresses,
                }
            case ["apis"]:
                groups = [group for name in self._registry.groups() if (group := self._group(name))]
                document = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["apis", name]:
                group = self._group(name)
                document = group and {"kind": "APIGroup", "apiVersion": "v1", **group}
            case ["api" | "apis" as root, *group, version] if (root == "api") == (not group):
                document = self._resources("/".join(group), version)
            case ["openapi", "v2"]:
                return web.Response(body=_document_v2(), headers={"Content-Type": _PROTOBUF})
            case ["openapi", "v3"]:
                document = _index_v3(self._registry)
            case ["openapi", "v3", "api" | "apis", *group, version]:
                document = _document_v3(self._registry, "/".join(group), version)
        if document is None:
            return page_not_found()
        return web.Response(body=encode(document), headers={"Content-Type": JSON})

    def _group(self, name: str) -> Json | None:
        """A group with its versions; None for the core group and for those that are not served."""
        if not name or (versions := self._registry.groups().get(name)) is None:
            return None
        entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
        return {"name": name, "versions": entries, "preferredVersion": entries[0]}

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


def _plain_entries(resource: ResourceType) -> list[Json]:
    shared = {"singularName": "", "namespaced": resource.namespaced, "kind": resource.kind}
    main = {
        "name": resource.plural,
        **shared,
        "singularName": resource.singular,
        "verbs": list(resource.verbs),
        **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
    }
    subresources = [
        {
            "name": f"{resource.plural}/{name}",
            **shared,
            **dict(zip(("group", "version", "kind"), SUBRESOURCE_KINDS.get(name, ()), strict=False)),
            "verbs": list(verbs),
        }
        for name, verbs in resource.subresources.items()
    ]
    return [main, *subresources]


def _index_v3(registry: Registry) -> Json:
    """The document of ``/openapi/v3``: where each group version's own document is."""
    paths: Json = {}
    for group, versions in registry.groups().items():
        for version in versions:
            name = f"apis/{group}/{version}" if group else f"api/{version}"
            document = _document_v3(registry, group, version)
            digest = hashlib.sha256(encode(document)).hexdigest()
            paths[name] = {"serverRelativeURL": f"/openapi/v3/{name}?hash={digest[:32].upper()}"}
    return {"paths": paths}


def _document_v3(registry: Registry, group: str, version: str) -> Json | None:
    """The OpenAPI 3 document of one group version; None when it is not served."""
    types = registry.in_version(group, version)
    if not types:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": _TITLE, "version": "unversioned"},
        "paths": {_path(one): {"patch": _patching(one)} for one in types if "patch" in one.verbs},
        "components": {"schemas": {}},
    }


def _document_v2() -> bytes:
    """The OpenAPI 2 document, empty, in gnostic's protocol buffers, the only form that kubectl reads.

    Fields of ``openapi.v2.Document``: 1 swagger, 2 info (1 title, 2 version).
    """
    info = _text_field(1, _TITLE) + _text_field(2, "unversioned")
    return _text_field(1, "2.0") + bytes([2 << 3 | 2, len(info)]) + info


def _text_field(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode()


def _path(resource: ResourceType) -> str:
    root = f"/apis/{resource.group}" if resource.group else "/api"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{root}/{resource.version}{scope}/{resource.plural}/{{name}}"


def _patching(resource: ResourceType) -> Json:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string"}} for name in _PATCH_PARAMETERS
        ],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": kind,
    }
