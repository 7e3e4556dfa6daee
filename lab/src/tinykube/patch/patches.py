"""JSON patches (RFC 6902), JSON merge patches (RFC 7386) and strategic merge patches.

kubectl sends strategic merge patches for built-in kinds. Unlike in a merge patch, lists of objects are merged
by a key of their elements, and directives say what cannot be said by values alone: ``$patch`` (replace,
delete), ``$retainKeys``, ``$deleteFromPrimitiveList/FIELD`` and ``$setElementOrder/FIELD``. The behavior is
that of ``k8s.io/apimachinery/pkg/util/strategicpatch``.
"""

from collections.abc import Callable

import jsonpatch

from tinykube.errors import InvalidValue
from tinykube.objects.values import Json, JsonValue, json_equal, without
from tinykube.patch.merge_rules import Rules

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_DELETE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


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
        result = jsonpatch.apply_patch(target, operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise PatchInvalid(f"the JSON patch cannot be applied: {error}") from error
    except (TypeError, KeyError, AttributeError) as error:
        # What the library lets through when a path leads into a plain value or a member has the wrong type.
        raise PatchInvalid(f"the JSON patch does not fit the object: {error}") from error
    if not isinstance(result, dict):
        raise PatchInvalid("the JSON patch leaves no JSON object", value=result)
    return result


def strategic_merge_patch(target: Json, patch: JsonValue, rules: Rules) -> Json:
    """The object after the patch; ``rules`` are those of its kind.

    Raises:
        PatchInvalid: the patch is no object, a directive is malformed, or a list element lacks its key.
    """
    if not isinstance(patch, dict):
        raise PatchInvalid("a strategic merge patch must be a JSON object", value=patch)
    return _merge_maps(target, patch, rules)


def _merge_maps(target: Json, patch: Json, rules: Rules) -> Json:
    if _PATCH in patch:
        return _directed(patch)
    result = _retained(target, patch)
    for key, value in patch.items():
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            if isinstance(result.get(name), list):
                result[name] = [
                    element for element in result[name] if not _contains(_as_list(value), element)
                ]
        elif value is None:
            result.pop(key, None)
        elif key != _RETAIN and not key.startswith(_ORDER):
            _merge_field(result, key, value, rules.child(key))
    for key, value in patch.items():
        name = key.removeprefix(_ORDER)
        if key.startswith(_ORDER) and isinstance(result.get(name), list):
            wanted = _as_list(value)
            result[name] = _ordered(result[name], wanted, target.get(name) or [], rules.child(name))
    return result


def _merge_field(result: Json, key: str, value: JsonValue, rules: Rules) -> None:
    """Put the patch's value for one key into a result that nobody else has seen yet."""
    present = result.get(key)
    if isinstance(present, dict) and isinstance(value, dict):
        result[key] = _merge_maps(present, value, rules)
    elif isinstance(present, list) and isinstance(value, list):
        result[key] = _merge_lists(present, value, rules)
    elif isinstance(value, dict) and _PATCH in value:
        result.pop(key, None)
    else:
        result[key] = _plain(value)


def _merge_lists(target: list[JsonValue], patch: list[JsonValue], rules: Rules) -> list[JsonValue]:
    if rules.merge_set:
        merged = [*target]
        merged += [value for value in patch if not _contains(target, value)]
        return _ordered(merged, patch, target, rules)
    if not rules.merge_key:
        return [_plain(value) for value in patch]
    for element in (*target, *patch):
        if not isinstance(element, dict) or not (
            rules.merge_key in element or element.get(_PATCH) == "replace"
        ):
            raise PatchInvalid(f"an element of the list lacks its key {rules.merge_key}", value=element)
    return _merge_keyed(target, patch, rules)


def _merge_keyed(target: list[Json], patch: list[Json], rules: Rules) -> list[JsonValue]:
    plain = [element for element in patch if _PATCH not in element]
    directed = [element for element in patch if _PATCH in element]
    if any(element[_PATCH] not in {"delete", "replace"} for element in directed):
        raise PatchInvalid("must be delete or replace", field=_PATCH)
    if any(element[_PATCH] == "replace" for element in directed):
        return [_plain(element) for element in plain]
    key = _key_of(rules)
    deleted = [key(element) for element in directed]
    merged = [element for element in target if not _contains(deleted, key(element))]
    for element in plain:
        for index, present in enumerate(merged):
            if json_equal(key(present), key(element)):
                merged[index] = _merge_maps(present, element, rules.element)
                break
        else:
            merged.append(_plain(element))
    return _ordered(merged, plain, target, rules)


def _ordered(
    merged: list[JsonValue], wanted: list[JsonValue], present: list[JsonValue], rules: Rules
) -> list[JsonValue]:
    """The merged list in the order that the patch wants; elements only the server has keep their places.

    "Keep their places" means: before those elements of the patch that they were before on the server.
    """
    key = _key_of(rules)
    order, server_order = [key(element) for element in wanted], [key(element) for element in present]
    patched = [element for element in merged if _contains(order, key(element))]
    patched.sort(key=lambda element: _position(order, key(element)))
    result: list[JsonValue] = []
    others = [element for element in merged if not _contains(order, key(element))]
    for element in patched:
        while others and -1 < _position(server_order, key(others[0])) < _position(server_order, key(element)):
            result.append(others.pop(0))
        result.append(element)
    return result + others


def _key_of(rules: Rules) -> Callable[[JsonValue], JsonValue]:
    """The function that gives the key of a list element: its merge key, or the whole element."""
    if not rules.merge_key:
        return lambda element: element
    return lambda element: element.get(rules.merge_key) if isinstance(element, dict) else element


def _directed(patch: Json) -> Json:
    """What a map becomes by its ``$patch`` directive."""
    if patch[_PATCH] == "replace":
        return without(patch, _PATCH)
    if patch[_PATCH] == "delete":
        return {}
    raise PatchInvalid("must be delete or replace", field=_PATCH, value=patch[_PATCH])


def _retained(target: Json, patch: Json) -> Json:
    """A copy of the target with only the keys that ``$retainKeys`` lists, if it is there."""
    if _RETAIN not in patch:
        return dict(target)
    kept = patch[_RETAIN]
    set_keys = [
        key
        for key, value in patch.items()
        if value is not None and key != _RETAIN and not key.startswith((_DELETE, _ORDER))
    ]
    if not isinstance(kept, list) or any(key not in kept for key in set_keys):
        raise PatchInvalid("must list every key that the patch sets", field=_RETAIN)
    return {key: value for key, value in target.items() if key in kept}


def _plain(value: JsonValue) -> JsonValue:
    """The value without directives and without the nulls that ask for removal."""
    if isinstance(value, list):
        return [_plain(element) for element in value if not (isinstance(element, dict) and _PATCH in element)]
    if not isinstance(value, dict):
        return value
    return {
        key: _plain(inner)
        for key, inner in value.items()
        if inner is not None
        and not key.startswith((_DELETE, _ORDER, _RETAIN))
        and not (isinstance(inner, dict) and _PATCH in inner)
    }


def _as_list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise PatchInvalid("must be a list", value=value)
    return value


def _contains(values: list[JsonValue], value: JsonValue) -> bool:
    return _position(values, value) >= 0


def _position(values: list[JsonValue], value: JsonValue) -> int:
    """Where the value is in the list, or -1."""
    return next((index for index, other in enumerate(values) if json_equal(value, other)), -1)
