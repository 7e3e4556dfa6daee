"""What a claim may choose with annotations: the owner and the mode of its directory.

Users write claims, and administrators write classes. The owner of a directory is also the identity of all
clients of its access point. So each choice is refused unless a parameter of the class allows its value, also
if the class has no such parameter at all. Nothing is adapted to the next allowed value: a user would notice
that only when the data cannot be read.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.parameter_texts import parse_id, parse_mode
from kube_efs.model.gids import GidRange

ALLOWED_UIDS, ALLOWED_GIDS, ALLOWED_MODES = "allowedUids", "allowedGids", "allowedDirectoryPerms"

# The annotation has the name of the parameter that it replaces.
_UID, _GID, _MODE = (f"efs.csi.aws.com/{name}" for name in ("uid", "gid", "directoryPerms"))
_RANGE = re.compile(r"([^-]+)(?:-([^-]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedChoices:
    """The values that a class allows its claims to choose."""

    uids: tuple[GidRange, ...] = ()
    gids: tuple[GidRange, ...] = ()
    modes: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.uids or self.gids or self.modes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The values that a claim has chosen; None for those of its class."""

    uid: int | None
    gid: int | None
    mode: int | None


def parse_allowed(parameters: Mapping[str, str]) -> AllowedChoices:
    """The choices that these parameters of a class allow; raises InvalidArgument."""
    return AllowedChoices(
        uids=_parse_ranges(parameters, ALLOWED_UIDS),
        gids=_parse_ranges(parameters, ALLOWED_GIDS),
        modes=tuple(
            parse_mode(text.strip(), field=ALLOWED_MODES) for text in _items(parameters, ALLOWED_MODES)
        ),
    )


def check_apart(allowed: AllowedChoices, allocated: GidRange) -> None:
    """Raises InvalidArgument if a claim could choose a number that is allocated to another one."""
    for field, ranges in ((ALLOWED_UIDS, allowed.uids), (ALLOWED_GIDS, allowed.gids)):
        for one in ranges:
            if one.minimum <= allocated.maximum and allocated.minimum <= one.maximum:
                raise InvalidArgument(
                    f"overlaps the range of allocated numbers, {allocated}",
                    field=field,
                    value=str(one),
                    remedy="set gidRangeStart and gidRangeEnd to another range, or set uid and gid",
                )


def parse_choice(annotations: Mapping[str, str], allowed: AllowedChoices) -> Choice:
    """The choice of the claim with these annotations.

    Raises InvalidArgument for a value that is not valid, or that the class does not allow.
    """
    return Choice(
        uid=_chosen_id(annotations, _UID, allowed.uids, ALLOWED_UIDS),
        gid=_chosen_id(annotations, _GID, allowed.gids, ALLOWED_GIDS),
        mode=_chosen_mode(annotations, allowed.modes),
    )


def _items(parameters: Mapping[str, str], name: str) -> list[str]:
    return parameters[name].split(",") if name in parameters else []


def _parse_ranges(parameters: Mapping[str, str], name: str) -> tuple[GidRange, ...]:
    return tuple(_parse_range(text.strip(), name) for text in _items(parameters, name))


def _parse_range(text: str, field: str) -> GidRange:
    match = _RANGE.fullmatch(text)
    if match is None:
        remedy = "use numbers and ranges such as 1000-1999, separated by commas"
        raise InvalidArgument("is not a range of IDs", field=field, value=text, remedy=remedy)
    minimum = parse_id(match[1], field=field)
    maximum = minimum if match[2] is None else parse_id(match[2], field=field)
    if maximum < minimum:
        raise InvalidArgument(
            "ends below its start", field=field, value=text, remedy="write the lower number first"
        )
    return GidRange(minimum=minimum, maximum=maximum)


def _chosen_id(
    annotations: Mapping[str, str], name: str, ranges: tuple[GidRange, ...], parameter: str
) -> int | None:
    text = annotations.get(name)
    if text is None:
        return None
    _check_any_allowed(name, text, ranges, parameter)
    number = parse_id(text, field=_field(name))
    if not any(number in one for one in ranges):
        raise _not_allowed(name, text, ", ".join(map(str, ranges)))
    return number


def _chosen_mode(annotations: Mapping[str, str], modes: tuple[int, ...]) -> int | None:
    text = annotations.get(_MODE)
    if text is None:
        return None
    _check_any_allowed(_MODE, text, modes, ALLOWED_MODES)
    mode = parse_mode(text, field=_field(_MODE))
    if mode not in modes:
        raise _not_allowed(_MODE, text, ", ".join(f"{one:03o}" for one in modes))
    return mode


def _check_any_allowed(name: str, text: str, allowed: Container[object], parameter: str) -> None:
    if not allowed:
        raise InvalidArgument(
            f"is not allowed by the class, which has no {parameter}",
            field=_field(name),
            value=text,
            remedy="remove the annotation, or use another class",
        )


def _not_allowed(name: str, text: str, allowed: str) -> InvalidArgument:
    return InvalidArgument(
        "is not allowed by the class", field=_field(name), value=text, remedy=f"the class allows {allowed}"
    )


def _field(name: str) -> str:
    return f"metadata.annotations[{name}]"
