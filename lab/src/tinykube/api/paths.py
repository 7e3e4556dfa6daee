"""What the path of a request names, after ``k8s.io/apiserver/pkg/endpoints/request/requestinfo.go``."""

from dataclasses import dataclass
from urllib.parse import unquote

# Below a namespace's name these are parts of the namespace object itself, not resources in it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePath:
    """A path such as ``/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME/SUBRESOURCE``."""

    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_resource_path(raw_path: str) -> ResourcePath | None:
    """What a percent-encoded path names; None when it is not the path of a resource."""
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
        else:
            namespace = ""
    resource, name, subresource = (*rest, "", "")[:3]
    if len(rest) > 3 or not resource:
        return None
    return ResourcePath(
        group=group,
        version=version,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
    )
