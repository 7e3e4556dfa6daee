"""What the server can do: versions, groups, resources, in the plain and the aggregated form."""

from aiohttp import web

from tinykube.api import openapi
from tinykube.api.negotiation import JSON, parse_accept
from tinykube.objects.json_types import Json
from tinykube.objects.resources import SUBRESOURCE_KINDS, Registry, ResourceType
from tinykube.objects.storage import encode

_AGGREGATED = frozenset(
    {
        ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"),
        ("apidiscovery.k8s.io", "v2beta1", "APIGroupDiscoveryList"),
    }
)
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
        aggregated = _aggregated_form(request.headers.get("Accept", ""))
        if parts in (["api"], ["apis"]) and aggregated:
            groups = self._groups(core=parts == ["api"])
            shown = _aggregated_list(groups, aggregated[1], self._registry)
            return _json(shown, f"{JSON};g={aggregated[0]};v={aggregated[1]};as={aggregated[2]}")
        if parts == ["openapi", "v2"] and JSON not in request.headers.get("Accept", JSON):
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
            case ["v2"]:
                return openapi.document_v2()
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


def _json(document: Json, content_type: str = JSON) -> web.Response:
    return web.Response(body=encode(document), headers={"Content-Type": content_type})


def _aggregated_form(accept: str) -> tuple[str, str, str] | None:
    """The aggregated form that the client prefers to the plain one; None when there is none."""
    for one in parse_accept(accept):
        if one.conversion in _AGGREGATED:
            return one.conversion
        if not any(one.conversion):
            return None
    return None


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


def _aggregated_list(groups: dict[str, list[str]], version: str, registry: Registry) -> Json:
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group, "creationTimestamp": None}
                if group
                else {"creationTimestamp": None},
                "versions": [
                    {
                        "version": group_version,
                        "resources": [
                            _aggregated_entry(resource)
                            for resource in registry.in_version(group, group_version)
                        ],
                        "freshness": "Current",
                    }
                    for group_version in versions
                ],
            }
            for group, versions in groups.items()
        ],
    }


def _aggregated_entry(resource: ResourceType) -> Json:
    response_kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    subresources = [
        {"subresource": name, "responseKind": _kind_of(name) or response_kind, "verbs": list(verbs)}
        for name, verbs in resource.subresources.items()
    ]
    return {
        "resource": resource.plural,
        "responseKind": response_kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
        **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
        **({"categories": list(resource.categories)} if resource.categories else {}),
        **({"subresources": subresources} if subresources else {}),
    }
