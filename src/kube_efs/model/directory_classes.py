"""The StorageClass parameters of efs-provisioner: who may write to the volumes, and how they are mounted.

Source: the README and the behavior of that project; ``tls`` is new. A class cannot be changed: to correct
it, delete it and create it again.
"""

from dataclasses import dataclass

from kube_efs.model.claims import StorageClass
from kube_efs.model.errors import ClaimRefused, InvalidValue
from kube_efs.model.gids import GID_MAX, GidRange
from kube_efs.model.go_texts import read_boolean, read_integer

GID_MIN = 2000  # the lowest that is assigned: lower ones belong to the system and its users

_GID_ALLOCATE, _GID_MIN, _GID_MAX, _TLS = "gidAllocate", "gidMin", "gidMax", "tls"
_KNOWN = {name.lower() for name in (_GID_ALLOCATE, _GID_MIN, _GID_MAX, _TLS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryClass:
    """The parameters of a storage class; ``gids`` is None when every user can access its volumes."""

    gids: GidRange | None
    tls: bool


def parse_class(storage_class: StorageClass) -> DirectoryClass:
    """The parameters of the class; raises ClaimRefused. The case of their names does not matter.

    If ``gidAllocate`` is false, ``gidMin`` and ``gidMax`` are not parsed. Unknown parameters have no effect.
    """
    _refuse_repeated(storage_class)
    allocates = _parse_bool(storage_class, _GID_ALLOCATE, default=True)
    return DirectoryClass(
        gids=_parse_range(storage_class) if allocates else None,
        tls=_parse_bool(storage_class, _TLS, default=False),
    )


def class_warnings(storage_class: StorageClass) -> tuple[InvalidValue, ...]:
    """The warnings about a class that is served; raises ClaimRefused for a class that is not."""
    found = [
        InvalidValue(
            "has no effect, the parameter is not known",
            field=_field(storage_class, name),
            value=value,
            remedy="known are gidMin, gidMax, gidAllocate and tls",
        )
        for name, value in storage_class.parameters.items()
        if name.lower() not in _KNOWN
    ]
    if parse_class(storage_class).gids is None:
        try:
            _parse_range(storage_class)
        except ClaimRefused as error:
            problem = f"{error.problem}, but has no effect while gidAllocate is false"
            found.append(InvalidValue(problem, field=error.field, value=error.value, remedy="leave it out"))
    return tuple(found)


def _refuse_repeated(storage_class: StorageClass) -> None:
    spellings: dict[str, str] = {}
    for name in storage_class.parameters:
        first = spellings.setdefault(name.lower(), name)
        if first != name:
            raise ClaimRefused(
                f"is the same parameter as {first!r}",
                field=f"StorageClass {storage_class.name} parameters",
                value=name,
                remedy="create the class again with one of them",
            )


def _parse_range(storage_class: StorageClass) -> GidRange:
    minimum = _parse_gid(storage_class, _GID_MIN, default=GID_MIN)
    maximum = _parse_gid(storage_class, _GID_MAX, default=GID_MAX)
    if maximum < minimum:
        raise ClaimRefused(
            f"is below gidMin, '{minimum}'",
            field=_field(storage_class, _GID_MAX),
            value=str(maximum),
            remedy="create the class again with gidMin at most gidMax",
        )
    return GidRange(minimum=minimum, maximum=maximum)


def _parse_gid(storage_class: StorageClass, name: str, *, default: int) -> int:
    text = _parameter(storage_class, name)
    if text is None:
        return default
    gid = read_integer(text)
    if gid is None or not GID_MIN <= gid <= GID_MAX:
        raise ClaimRefused(
            "is not a valid group ID",
            field=_field(storage_class, name),
            value=text,
            remedy=f"create the class again with a whole number from {GID_MIN} to {GID_MAX}",
        )
    return gid


def _parse_bool(storage_class: StorageClass, name: str, *, default: bool) -> bool:
    text = _parameter(storage_class, name)
    if text is None:
        return default
    value = read_boolean(text)
    if value is None:
        raise ClaimRefused(
            "is neither true nor false",
            field=_field(storage_class, name),
            value=text,
            remedy="create the class again with true or false",
        )
    return value


def _parameter(storage_class: StorageClass, name: str) -> str | None:
    values = (value for key, value in storage_class.parameters.items() if key.lower() == name.lower())
    return next(values, None)


def _field(storage_class: StorageClass, parameter: str) -> str:
    return f"StorageClass {storage_class.name} parameters.{parameter}"
