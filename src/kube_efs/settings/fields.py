"""The fields of settings: each has an environment variable and validates its text."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from kube_efs.model.efs.ids import SubnetId, parse_subnet_id
from kube_efs.model.errors import InvalidValue

# unix(7) has room for 107 bytes; a socket is first bound under a name that is one byte longer.
_LONGEST_SOCKET_BYTES = 106
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME_PATTERN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"


def setting(name: str, default: object, meaning: str, *, accepts: str, shown: str = "", **limits: Any) -> Any:
    """A field that is read from the variable ``name``.

    ``accepts`` describes the valid values, and is the remedy for an invalid one; ``shown`` describes a
    default that depends on the machine. Both are Markdown.
    """
    source = {"default_factory": default} if callable(default) else {"default": default}
    return Field(
        validation_alias=name,
        description=meaning,
        json_schema_extra={"accepts": accepts, "shown": shown or f"`{default}`"},
        **source,
        **limits,
    )


def count(name: str, default: int, meaning: str, *, least: int, most: int) -> Any:
    """A whole number from ``least`` to ``most``."""
    return setting(name, default, meaning, accepts=f"{least} to {most}", ge=least, le=most)


def seconds(
    name: str, default: float, meaning: str, *, least: float = 0.1, most: int = 86400, also: str = ""
) -> Any:
    """A time in seconds from ``least`` to ``most``."""
    accepts = f"{least} to {most} seconds{also}"
    return setting(name, default, meaning, accepts=accepts, shown=f"`{default:g}`", ge=least, le=most)


def matching(pattern: str, problem: str) -> AfterValidator:
    """Accepts text that matches the whole pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(problem)
        return text

    return AfterValidator(check)


def parsed(parse: Callable[[object], object]) -> AfterValidator:
    """Applies a parser of the model; its error becomes one that pydantic collects."""

    def check(text: str) -> object:
        try:
            return parse(text)
        except InvalidValue as error:
            raise ValueError(error.problem) from error

    return AfterValidator(check)


def read_yaml(value: object) -> object:
    """The value of a variable in YAML or JSON."""
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise ValueError("is not YAML") from error


def read_items(value: object) -> object:
    """The parts of a variable, which are separated by commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _socket(path: Path) -> Path:
    if not path.is_absolute() or len(bytes(path)) > _LONGEST_SOCKET_BYTES:
        raise ValueError("is not an absolute path that is short enough for a socket")
    return path


def _read_true_or_false(value: object) -> object:
    if isinstance(value, str) and value.lower() not in {"true", "false"}:
        raise ValueError("is neither true nor false")
    return value


# For variables that the AWS SDK also reads: it takes every other text for false.
TrueOrFalse = Annotated[bool, BeforeValidator(_read_true_or_false)]
SocketPath = Annotated[Path, AfterValidator(_socket)]
LabelName = Annotated[str, matching(_DNS_LABEL, "is not a name of letters, digits and dashes")]
DnsName = Annotated[str, matching(DNS_NAME_PATTERN, "is not a valid DNS name")]
CommaList = Annotated[
    tuple[Annotated[SubnetId, parsed(parse_subnet_id)], ...], NoDecode, BeforeValidator(read_items)
]
