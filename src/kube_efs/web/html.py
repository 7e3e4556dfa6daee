"""Builds HTML from values, and escapes everything except HTML that it built."""

import html
from collections.abc import Iterable

_VOID = frozenset({"link", "meta"})


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None


def escaped(text: str) -> Html:
    """The text as HTML."""
    return text if isinstance(text, Html) else Html(html.escape(text))


def joined(parts: Iterable[Child]) -> Html:
    """The parts one after the other; None is ignored."""
    return Html("".join(escaped(part) for part in parts if part is not None))


def element(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element.

    In the name of an attribute, a trailing underscore is removed, and others become dashes (``class_``,
    ``aria_label``). An attribute that is False or None is omitted; one that is True has no value.
    """
    start = f"<{name}{_attributes(attributes)}>"
    return Html(start if name in _VOID else f"{start}{joined(children)}</{name}>")


def _attributes(attributes: dict[str, Attribute]) -> str:
    written = []
    for key, value in attributes.items():
        name = key.removesuffix("_").replace("_", "-")
        if value is True:
            written.append(f" {name}")
        elif value is not None and value is not False:
            written.append(f' {name}="{html.escape(str(value))}"')
    return "".join(written)
