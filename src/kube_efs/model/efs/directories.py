"""Directories of a file system, and their relations.

Paths are compared by components, never as text: ``/data2`` is not inside ``/data``.
"""

import posixpath
from dataclasses import dataclass
from enum import Enum, auto

from kube_efs.model.errors import InvalidValue

NAME_MAX_BYTES = 255  # NFS and every Linux file system
_PATH_MAX_BYTES = 4095


class Relation(Enum):
    """The position of one directory relative to another."""

    SAME = auto()
    ABOVE = auto()
    BELOW = auto()
    APART = auto()


@dataclass(frozen=True, slots=True, order=True)
class Directory:
    """An absolute directory of a file system, as its components; no components is the root."""

    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/" + "/".join(self.parts)

    def __truediv__(self, name: str) -> "Directory":
        """The child of that name; raises InvalidValue when the name could lead elsewhere."""
        return Directory((*self.parts, _checked_component(name, name)))

    @property
    def is_root(self) -> bool:
        """Whether this is the root of the file system."""
        return not self.parts

    @property
    def is_plain(self) -> bool:
        """Whether ``parse_directory`` accepts it, so that worker pods can be given its path."""
        try:
            return parse_directory(str(self)) == self
        except InvalidValue:
            return False

    @property
    def ancestors(self) -> tuple["Directory", ...]:
        """Every directory above this one, the root first."""
        return tuple(Directory(self.parts[:depth]) for depth in range(len(self.parts)))

    def relation_to(self, other: "Directory") -> Relation:
        """The position of this directory relative to the other."""
        if self.parts == other.parts:
            return Relation.SAME
        if other.parts[: len(self.parts)] == self.parts:
            return Relation.ABOVE
        if self.parts[: len(other.parts)] == other.parts:
            return Relation.BELOW
        return Relation.APART


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Mode and owners of a new directory; an owner of None is the user that creates it.

    With ``enforced``, an existing directory gets them too; otherwise it is not changed. If it gets no new
    owners, it keeps setuid and setgid, as with chmod(1), unless ``exact`` is true. With ``own_group``, no
    other directory may have the same group.
    """

    mode: int = 0o777
    uid: int | None = None
    gid: int | None = None
    enforced: bool = False
    exact: bool = False
    own_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDirectory:
    """An existing child of a directory."""

    name: str
    gid: int


def read_directory(path: str) -> Directory:
    """The directory that the server finds for a path that others have chosen, for comparisons only.

    Any names are accepted, because a directory that is not known would not prevent the removal of one above
    it. Nothing is created or removed there.
    """
    resolved = posixpath.normpath(f"/{path.lstrip('/')}")
    return Directory(tuple(part for part in resolved.split("/") if part))


def parse_directory(text: object, *, field: str = "path") -> Directory:
    """The directory that an absolute path names; raises InvalidValue.

    Refuses paths that may be mistakes: relative paths, ``.`` and ``..``, empty components (except for one
    trailing slash), control characters, and names that are too long for a file system. Nothing is normalized,
    because such a path may mean another directory to the server.
    """
    if not isinstance(text, str) or not text.startswith("/"):
        raise InvalidValue("is not an absolute path", field=field, value=text, remedy="begin it with /")
    if _size(text) > _PATH_MAX_BYTES:
        raise InvalidValue("is too long", field=field, value=text, remedy="use at most 4095 bytes")
    trimmed = text[1:].removesuffix("/")
    if not trimmed:
        if text == "/":
            return Directory()
        raise InvalidValue("has an empty component", field=field, value=text, remedy="use single slashes")
    return Directory(tuple(_checked_component(part, text, field) for part in trimmed.split("/")))


def _checked_component(name: str, shown: str, field: str = "path") -> str:
    if not name:
        raise InvalidValue("has an empty component", field=field, value=shown, remedy="use single slashes")
    if name in {".", ".."}:
        raise InvalidValue(
            "has a . or .. component", field=field, value=shown, remedy="name the directory itself"
        )
    if "/" in name or not name.isprintable():
        raise InvalidValue(
            "has a control character or slash", field=field, value=shown, remedy="use plain names"
        )
    if _size(name) > NAME_MAX_BYTES:
        raise InvalidValue(
            "has a name that is too long", field=field, value=shown, remedy="use at most 255 bytes a name"
        )
    return name


def _size(text: str) -> int:
    # Bytes of an argument that are not UTF-8 are surrogates in Python, which only this error handler encodes.
    return len(text.encode(errors="surrogatepass"))
