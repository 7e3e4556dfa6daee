"""JSON merge patches (RFC 7386) and JSON patches (RFC 6902)."""

import jsonpatch

from tinykube.errors import InvalidValue
from tinykube.objects.json_types import Json, JsonValue


class PatchInvalid(InvalidValue):
    """A patch is malformed, or does not fit the object it is for; ``problem`` is what to answer."""


def merge_patch(target: Json, patch: JsonValue) -> Json:
    """The object after a merge patch: null removes a key, objects merge, everything else replaces.

    Raises:
        PatchInvalid: the patch is no JSON object.
    """
    if not isinstance(patch, dict):
        raise PatchInvalid("a merge patch must be a JSON object", value=patch)
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = merge_patch(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = value
    return result


def json_patch(target: Json, operations: JsonValue) -> Json:
    """The object after these operations, all of them or none.

    Raises:
        PatchInvalid: an operation is malformed, its path does not exist, or a test fails.
    """
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise PatchInvalid("a JSON patch must be a list of operations", value=operations)
    try:
        result = jsonpatch.apply_patch(target, [_lenient(operation) for operation in operations])
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise PatchInvalid(f"the JSON patch cannot be applied: {error}") from error
    except (TypeError, KeyError, AttributeError) as error:
        # What the library lets through when a path leads into a plain value or a member has the wrong type.
        raise PatchInvalid(f"the JSON patch does not fit the object: {error}") from error
    if not isinstance(result, dict):
        raise PatchInvalid("the JSON patch leaves no JSON object", value=result)
    return result


def _lenient(operation: Json) -> Json:
    """The operation as kube-apiserver takes it: ``replace`` sets a member of a map that is not there too."""
    last = str(operation.get("path", "")).rpartition("/")[2]
    if operation.get("op") == "replace" and last and not last.isdigit():
        return {**operation, "op": "add"}
    return operation
