"""What the server can do: versions, groups and resources."""

from aiohttp import web

from tinykube.api import openapi
from tinykube.api.negotiation import JSON
from tinykube.objects.json_types import Json
from tinykube.objects.resources import SUBRESOURCE_KINDS, Registry, ResourceType
from tinykube.objects.storage import encode

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
            return web.Response(
                body=openapi.document_v2_protobuf(), headers={"Content-Type": openapi.PROTOBUF}
            )
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
                return openapi.index_v3(self._registry)
            case ["v3", "api" | "apis", *group, version]:
                return openapi.document_v3(self._registry, "/".join(group), version)
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
