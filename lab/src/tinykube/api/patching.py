"""The four kinds of patches, applied through the service."""

from collections.abc import Callable

from tinykube.api.request_bodies import Patch, PatchType
from tinykube.objects.json_types import Json, lookup
from tinykube.objects.resources import ResourceType
from tinykube.objects.scales import scaling
from tinykube.objects.service import ObjectService, WriteOptions, Written
from tinykube.objects.statuses import ApiError, bad_request
from tinykube.objects.storage import ObjectKey
from tinykube.patch.patches import PatchInvalid, json_patch, merge_patch
from tinykube.patch.strategic_patch import strategic_merge_patch


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
