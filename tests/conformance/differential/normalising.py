"""Answers without values that differ on every server: UIDs, times, versions and random names."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.conformance.differential.player import Answer, Json

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?P<fraction>\.\d+)?Z")
_AGE = re.compile(r"(\d+(ms|[smhd]))+|<unknown>")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# The one prefix that stories let names be generated from.
_GENERATED = re.compile(r"([Mm]ade-)[bcdfghjklmnpqrstvwxz2456789]{5}\b")


class Normaliser:
    """Normalizes the answers of a story, in order.

    The first UID of a story becomes ``<uid 1>`` everywhere, the next one ``<uid 2>``. The versions of each
    object are numbered in the same way. So UIDs that differ by mistake, and unexpected changes of a version,
    are found. The versions of lists and bookmarks also change with other requests, so they are ignored.
    """

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def answer(self, answer: Answer) -> Answer:
        """The normalized answer."""
        return replace(answer, body=self._value(answer.body))

    def _value(self, value: Any) -> Any:
        match value:
            case dict():
                return self._object(value)
            case list():
                return [self._value(item) for item in value]
            case str():
                return self._text(value)
            case _:
                return value

    def _object(self, found: Json) -> Json:
        if isinstance(found.get("metadata"), dict):
            found = {**found, "metadata": self._metadata(found)}
        if str(version := found.get("resourceVersion")).isdigit():
            found = {**found, "resourceVersion": self._versions.get(str(version), "<version>")}
        if isinstance(found.get("cells"), list):
            found = {**found, "cells": [_without_age(cell) for cell in found["cells"]]}
        return {self._text(key): self._value(found[key]) for key in sorted(found)}

    def _metadata(self, found: Json) -> Json:
        metadata = dict(found["metadata"])
        if version := metadata.get("resourceVersion"):
            of_one = "uid" in metadata
            metadata["resourceVersion"] = self._version(version, metadata["uid"]) if of_one else "<version>"
        if metadata.get("continue"):
            metadata["continue"] = "<continue>"
        if managed := metadata.get("managedFields"):
            metadata["managedFields"] = sorted(managed, key=_in_any_second)
        return metadata

    def _version(self, version: str, uid: str) -> str:
        if version not in self._versions:
            self._counts[uid] += 1
            self._versions[version] = f"<version {self._counts[uid]}>"
        return self._versions[version]

    def _text(self, text: str) -> str:
        if found := _TIME.fullmatch(text):
            return "<time>" if found["fraction"] is None else "<time with a fraction>"
        text = _GENERATED.sub(r"\1<random>", text)
        return _UID.sub(self._uid, text)

    def _uid(self, found: re.Match[str]) -> str:
        return self._uids.setdefault(found[0], f"<uid {len(self._uids) + 1}>")


def normalised(answers: Iterable[Answer]) -> list[Answer]:
    """The normalized answers to a story."""
    normaliser = Normaliser()
    return [normaliser.answer(answer) for answer in answers]


def _without_age(cell: Any) -> Any:
    return "<age>" if isinstance(cell, str) and _AGE.fullmatch(cell) else cell


def _in_any_second(entry: Json) -> list[str]:
    """Kubernetes sorts by time before the manager's name, and servers can differ by a second."""
    return [str(entry.get(key, "")) for key in ("operation", "manager", "apiVersion", "subresource")]
