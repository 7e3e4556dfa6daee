"""The fields of settings: each has an environment variable, and a reader of its text.

A reader returns the value of a text, or raises ValueError or InvalidValue with the problem.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import yaml

from kube_efs.model.efs.ids import SubnetId, parse_subnet_id

_Value = TypeVar("_Value")
_Choice = TypeVar("_Choice", bound=StrEnum)
Reader = Callable[[str], _Value]

# unix(7) has room for 107 bytes; a socket is first bound under a name that is one byte longer.
_LONGEST_SOCKET_BYTES: Final = 106
_DNS_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME_PATTERN: Final = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_WHOLE: Final = re.compile(r"([+-]?\d+)(\.0*)?")
_SWITCH: Final = {
    **dict.fromkeys(("true", "1", "yes", "on", "t", "y"), True),
    **dict.fromkeys(("false", "0", "no", "off", "f", "n"), False),
}
_VARIABLE: Final = "variable"


class InvalidItem(ValueError):
    """A part of a structure is not valid; ``path`` leads to it from the variable."""

    def __init__(self, problem: str, *path: str | int, value: object) -> None:
        super().__init__(problem)
        self.path = path
        self.value = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable(Generic[_Value]):
    """An environment variable.

    ``default`` gives the value without it, or raises like a reader. ``accepts`` describes the valid values,
    and is the remedy for an invalid one; ``shown`` describes the default. Both are Markdown.
    """

    name: str
    default: Callable[[], _Value]
    meaning: str
    read: Reader[_Value]
    accepts: str
    shown: str


def variables(kind: type[Any]) -> dict[str, Variable[Any]]:
    """The variables of a class of settings, by the names of their fields."""
    return {one.name: one.metadata[_VARIABLE] for one in fields(kind)}


def setting(
    name: str, default: _Value, meaning: str, *, read: Reader[_Value], accepts: str, shown: str = ""
) -> _Value:
    """A field that is read from the variable ``name``; the arguments are those of Variable."""
    variable = Variable(
        name=name,
        default=lambda: default,
        meaning=meaning,
        read=read,
        accepts=accepts,
        shown=shown or f"`{default}`",
    )
    return _field(variable)


def found(
    name: str, find: Callable[[], str], meaning: str, *, read: Reader[_Value], accepts: str, shown: str
) -> _Value:
    """A field whose default is a text of this machine, which may not be valid."""

    def default() -> _Value:
        text = find()
        try:
            return read(text)
        except ValueError as error:
            raise InvalidItem(str(error), value=text) from error

    return _field(
        Variable(name=name, default=default, meaning=meaning, read=read, accepts=accepts, shown=shown)
    )


def _field(variable: Variable[_Value]) -> _Value:
    return field(default_factory=variable.default, metadata={_VARIABLE: variable})


def switch(name: str, default: bool, meaning: str, *, read: Reader[bool] | None = None) -> bool:
    """Whether something is done."""
    shown = f"`{str(default).lower()}`"
    return setting(name, default, meaning, read=read or _read_switch, accepts="true or false", shown=shown)


def count(name: str, default: int, meaning: str, *, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``."""
    return setting(name, default, meaning, read=whole(least, most), accepts=f"{least} to {most}")


def seconds(
    name: str, default: float, meaning: str, *, least: float = 0.1, most: int = 86400, also: str = ""
) -> float:
    """A time in seconds from ``least`` to ``most``."""
    return setting(
        name,
        default,
        meaning,
        read=number(least, most),
        accepts=f"{least} to {most} seconds{also}",
        shown=f"`{default:g}`",
    )


def whole_seconds(name: str, default: int, meaning: str, *, most: int, also: str = "") -> int:
    """A time in seconds from 1 to ``most``."""
    return setting(name, default, meaning, read=whole(1, most), accepts=f"1 to {most} seconds, whole{also}")


def whole(least: int, most: int) -> Reader[int]:
    """Reads whole numbers in these limits."""

    def read(text: str) -> int:
        if not (digits := _WHOLE.fullmatch(text.strip())):
            raise ValueError("is not a valid integer")
        return _limited(int(digits[1]), least, most)

    return read


def number(least: float, most: float) -> Reader[float]:
    """Reads numbers in these limits."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("is not a valid number") from None
        return _limited(value, least, most)

    return read


_Number = TypeVar("_Number", int, float)


def _limited(value: _Number, least: float, most: float) -> _Number:
    if not least <= value <= most:  # false for "nan", too
        raise ValueError("is out of range")
    return value


def _read_switch(text: str) -> bool:
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise ValueError("is not true or false") from None


def read_true_or_false(text: str) -> bool:
    """Reads a switch that the AWS SDK reads, too: it takes every other text for false."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("is neither true nor false")
    return text.lower() == "true"


def one_of(kind: type[_Choice]) -> Reader[_Choice]:
    """Reads a value of the enumeration."""

    def read(text: str) -> _Choice:
        try:
            return kind(text)
        except ValueError:
            raise ValueError("is not a valid choice") from None

    return read


def matching(pattern: str, problem: str) -> Reader[str]:
    """Reads text that matches the whole pattern."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(problem)
        return text

    return read


def read_path(text: str) -> Path:
    """Reads a path."""
    return Path(text)


def read_socket(text: str) -> Path:
    """Reads the path of a socket."""
    path = Path(text)
    if not path.is_absolute() or len(bytes(path)) > _LONGEST_SOCKET_BYTES:
        raise ValueError("is not an absolute path that is short enough for a socket")
    return path


def read_yaml(text: str) -> object:
    """Reads YAML or JSON."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError("is not YAML") from error


def read_items(text: str) -> Sequence[str]:
    """The parts of a variable, which are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def read_subnets(text: str) -> tuple[SubnetId, ...]:
    """Reads IDs of subnets."""
    return tuple(parse_subnet_id(one) for one in read_items(text))


read_label = matching(_DNS_LABEL, "is not a name of letters, digits and dashes")
read_dns_name = matching(DNS_NAME_PATTERN, "is not a valid DNS name")
