"""Writes the objects of the assets as YAML with Go templates, which Helm reads.

An object contains strings with ``{placeholders}``, the ``$if`` of the assets, and the nodes below. The
templates insert each value as JSON, which is also YAML, so no value can change the structure.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_STEP = "  "


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that the template inserts; with ``when``, its entry exists only on that condition."""

    text: str
    when: str | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a template that write items of a list."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """An expression that replaces the usual value of an entry on a condition.

    A ``{placeholder}`` in the expression is the value, not its text.
    """

    text: str
    when: str
    usual: Any


@dataclass(frozen=True, slots=True)
class Context:
    """The values of placeholders, constant or an expression, and the condition that surrounds them."""

    known: Mapping[str, Expression | str]
    given: str | None = None

    def text_of(self, name: str) -> str:
        """The expression for a placeholder or a condition."""
        found = self.known[name]
        return found.text if isinstance(found, Expression) else json.dumps(found)

    def fixed(self, text: str) -> str:
        """The text with the constant values of its placeholders."""
        return _PLACEHOLDER.sub(self._fixed, text)

    def _fixed(self, found: re.Match[str]) -> str:
        constant = self.known[found[1]]
        return constant if isinstance(constant, str) else found[0]


def optional(text: str) -> Expression:
    """An entry that exists if its value is set."""
    return Expression(text, when=text)


def write_object(node: Any, context: Context) -> str:  # noqa: ANN401 - any JSON
    """The template of one object."""
    return "".join(f"{line}\n" for line in _mapping(node, context))


def conditional(condition: str | None, text: str) -> str:
    """The text on a condition; None: always."""
    return text if condition is None else f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _mapping(node: Mapping[str, Any], context: Context) -> Iterator[str]:
    for condition, entries in _grouped(node.items(), context):
        inside = replace(context, given=condition or context.given)
        lines = (line for key, value in entries for line in _entry(key, _bare(value), inside))
        yield from _wrapped(condition, lines)


def _items(node: Iterable[Any], context: Context) -> Iterator[str]:
    for condition, items in _grouped(((None, item) for item in node), context):
        inside = replace(context, given=condition or context.given)
        lines = (line for _, value in items for line in _item(_bare(value), inside))
        yield from _wrapped(condition, lines)


def _grouped(
    entries: Iterable[tuple[Any, Any]], context: Context
) -> Iterator[tuple[str | None, Iterator[tuple[Any, Any]]]]:
    """Groups of adjacent entries with the same condition; the surrounding condition counts as none."""

    def condition(entry: tuple[Any, Any]) -> str | None:
        found = _condition(entry[1], context)
        return None if found == context.given else found

    return groupby(entries, condition)


def _entry(key: str, value: Any, context: Context) -> Iterator[str]:  # noqa: ANN401 - any JSON
    match value:
        case Override(text, when, usual):
            yield f"{{{{- if {when} }}}}"
            expression = _PLACEHOLDER.sub(lambda found: f"({context.text_of(found[1])})", text)
            yield f"{key}: {_inserted(expression)}"
            yield "{{- else }}"
            yield from _mapping({key: usual}, context)
            yield "{{- end }}"
        case Mapping() if value:
            yield f"{key}:"
            yield from (_STEP + line for line in _mapping(value, context))
        case [_, *_]:
            yield f"{key}:"
            yield from _items(value, context)
        case _:
            yield f"{key}: {_scalar(value, context)}"


def _item(value: Any, context: Context) -> Iterator[str]:  # noqa: ANN401 - any JSON
    match value:
        case Lines(lines):
            yield from lines
        case Mapping() if value:
            first, *others = _mapping(value, context)
            yield f"- {first}"
            yield from (_STEP + line for line in others)
        case _:
            yield f"- {_scalar(value, context)}"


def _wrapped(condition: str | None, lines: Iterator[str]) -> Iterator[str]:
    if condition is None:
        yield from lines
        return
    yield f"{{{{- if {condition} }}}}"
    yield from lines
    yield "{{- end }}"


def _bare(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """The value without its condition, which is written around it."""
    match value:
        case {"$if": _, **rest}:
            return rest
        case _:
            return value


def _condition(value: Any, context: Context) -> str | None:  # noqa: ANN401 - any JSON
    """The condition of the whole value; a list exists if any of its items does."""
    match value:
        case {"$if": name}:
            return context.text_of(name)
        case Expression(_, when):
            return when
        case str() if whole := _PLACEHOLDER.fullmatch(value):
            found = context.known[whole[1]]
            return found.when if isinstance(found, Expression) else None
        case [_, *_]:
            return _any_of([_condition(item, context) for item in value])
        case _:
            return None


def _any_of(conditions: list[str | None]) -> str | None:
    distinct = [one for one in dict.fromkeys(conditions) if one is not None]
    if None in conditions:
        return None
    return distinct[0] if len(distinct) == 1 else f"or {' '.join(f'({one})' for one in distinct)}"


def _scalar(value: Any, context: Context) -> str:  # noqa: ANN401 - any JSON
    match value:
        case Expression(text):
            return _inserted(text)
        case str():
            return _text(context.fixed(value), context)
        case _:
            return json.dumps(value)


def _text(text: str, context: Context) -> str:
    if whole := _PLACEHOLDER.fullmatch(text):
        return _inserted(context.text_of(whole[1]))
    if names := _PLACEHOLDER.findall(text):
        frame = json.dumps(_PLACEHOLDER.sub("%v", text.replace("%", "%%")))
        return _inserted(f"printf {frame} {' '.join(f'({context.text_of(name)})' for name in names)}")
    # Helm would read these braces as a template.
    return json.dumps(text, ensure_ascii=False).replace("{{", '{{ "{{" }}')


def _inserted(expression: str) -> str:
    return expression if expression.isdigit() else f"{{{{ {expression} | toJson }}}}"
