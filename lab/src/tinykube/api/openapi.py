"""Enough OpenAPI for kubectl: which write requests there are, and their query parameters.

kubectl asks before it applies: does PATCH of this kind know ``fieldValidation`` and ``dryRun``? Fields of
kinds are not published here, nor how patches merge, which kubectl has built in.
"""

import hashlib

from tinykube.objects.json_types import Json
from tinykube.objects.resources import Registry, ResourceType
from tinykube.objects.storage import encode

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

    Fields of ``openapi.v2.Document``: 1 swagger, 2 info (1 title, 2 version).
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
