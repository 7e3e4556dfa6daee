"""HTML out of values: everything is escaped but what was made here."""

import html
from collections.abc import Iterable

_VOID = frozenset({"link", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None


def escaped(text: str) -> Html:
    """The text as HTML."""
    return text if isinstance(text, Html) else Html(html.escape(text))


def joined(parts: Iterable[Child]) -> Html:
    """The parts after each other; None is nothing."""
    return Html("".join(escaped(part) for part in parts if part is not None))


def element(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element.

    A trailing underscore of an attribute's name is left out, others become dashes (``class_``,
    ``aria_label``). An attribute that is False or None is not there, one that is True has no value.
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
