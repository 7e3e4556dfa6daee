"""How an applied configuration is merged into the live object.

Maps are merged, keyed lists element by element, sets united; everything else is replaced.
"""

from collections.abc import Collection

from tinykube.objects.json_types import JsonValue
from tinykube.patch.field_sets import Path, element_of, path_text
from tinykube.patch.merge_rules import ListType, Rules
from tinykube.patch.patches import PatchInvalid


def lay_over(live: JsonValue, config: JsonValue, rules: Rules, path: Path = ()) -> JsonValue:
    """The live value with the configuration laid over it.

    Raises:
        PatchInvalid: an element of a keyed list lacks a key, or two have the same.
    """
    if isinstance(config, dict) and not rules.atomic:
        below = live if isinstance(live, dict) else {}
        laid = {
            key: lay_over(below.get(key), part, rules.child(key), (*path, f"f:{key}"))
            for key, part in config.items()
        }
        return {**below, **laid}
    if isinstance(config, list) and rules.list_type is not ListType.ATOMIC:
        return _lay_list_over(live if isinstance(live, list) else [], config, rules, path)
    return config


def _lay_list_over(
    live: list[JsonValue], config: list[JsonValue], rules: Rules, path: Path
) -> list[JsonValue]:
    """Elements in the order of the configuration; those that only the live list has keep their places."""
    wanted = {element_of(part, rules): part for part in config}
    _check_unambiguous(config, wanted, rules, path)
    rest = [(element_of(part, rules), part) for part in live]
    present = dict(reversed(rest))
    shared = [element for element in wanted if element in present]
    result: list[JsonValue] = []
    for element, part in wanted.items():
        while rest and rest[0][0] != element and not (shared and rest[0][0] == shared[0]):
            passed, passed_part = rest.pop(0)
            if passed not in wanted:
                result.append(passed_part)
        if element in present:
            shared.remove(element)
        if rest and rest[0][0] == element:
            rest.pop(0)
        result.append(lay_over(present.get(element), part, rules.element, (*path, element)))
    return result + [part for element, part in rest if element not in wanted]


def _check_unambiguous(config: list[JsonValue], wanted: Collection[str], rules: Rules, path: Path) -> None:
    for part in config if rules.list_type is ListType.MAP else ():
        for key in rules.keys:
            if not isinstance(part, dict) or (key not in part and key not in rules.key_defaults):
                raise PatchInvalid(f"an element lacks its key {key}", field=path_text(path), value=part)
    if len(config) != len(wanted):
        raise PatchInvalid("two elements have the same key", field=path_text(path))
