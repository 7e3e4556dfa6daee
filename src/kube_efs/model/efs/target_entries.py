"""The entries of the document of tunnel targets, read by their texts.

A document can have a thousand entries, and the next one usually has one other entry. So a reader that gets
one document after the other keeps the entries of the last one, and parses only those with another text.

The texts of entries are found by the layout in which the controller writes them. YAML allows more, for
example a text over several lines that looks like entries, or an anchor that another entry uses. New entries
therefore only count if YAML finds exactly their keys in the same order. Any other document is read as a
whole.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from kube_efs.model.errors import InvalidValue

TARGETS_KEY: Final = "efs_stunnel_targets"
Entry = TypeVar("Entry")

# The excluded characters end a line in YAML, too.
_ENTRY: Final = r"  fs-[0-9a-z]+:\n(?:    [^\n\r\x85\u2028\u2029]*\n)+"
_ENTRIES: Final = re.compile(_ENTRY)
_DOCUMENT: Final = re.compile(rf"{TARGETS_KEY}:\n((?:{_ENTRY})+)last_update: '[0-9TZ:-]+'\n")


class TargetEntries(Generic[Entry]):
    """Reads documents; ``load`` gives the entries of a whole one, and ``parse`` makes a value of an entry.

    ``load`` raises InvalidValue for an unreadable document, ``parse`` raises nothing.
    """

    def __init__(
        self,
        load: Callable[[str], Mapping[object, object]],
        parse: Callable[[object, object], Entry],
    ) -> None:
        self._load = load
        self._parse = parse
        self._known: Mapping[str, Entry] = {}

    def read(self, text: str) -> list[tuple[object, Entry]]:
        """The entries of the document in their order; raises InvalidValue if it cannot be read."""
        texts = _split(text)
        new = {key: entry for key, entry in texts.items() if entry not in self._known}
        found = self._parse_new(new) if texts else None
        if found is None:
            self._known = {}
            return [(key, self._parse(key, entry)) for key, entry in self._load(text).items()]
        values = [(key, found[key] if key in found else self._known[entry]) for key, entry in texts.items()]
        self._known = {
            entry: value
            for entry, (_, value) in zip(texts.values(), values, strict=True)
            if _is_closed(entry)
        }
        return list[tuple[object, Entry]](values)

    def _parse_new(self, texts: Mapping[str, str]) -> Mapping[str, Entry] | None:
        """The values of these entries; None if they are not what their texts look like."""
        if not texts:
            return {}
        try:
            found = self._load(f"{TARGETS_KEY}:\n{''.join(texts.values())}")
        except InvalidValue:
            return None
        if list(found) != list(texts):
            return None
        return {key: self._parse(key, found[key]) for key in texts}


def _split(text: str) -> Mapping[str, str]:
    """The text of each entry by its key; empty if the document is in another layout."""
    document = _DOCUMENT.fullmatch(text)
    entries: Iterable[str] = _ENTRIES.findall(document[1]) if document else ()
    found = {entry[2 : entry.index(":")]: entry for entry in entries}
    # Of a key that is there twice, YAML has the last entry at the place of the first one.
    return found if document and sum(map(len, found.values())) == len(document[1]) else {}


def _is_closed(entry: str) -> bool:
    """Whether it certainly has no anchor that another entry uses, and uses none."""
    return "&" not in entry and "*" not in entry
