"""A value of the chart, and the parts of its schema."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kube_efs.operator.manifests import ACCEPTED, load_asset

Schema: TypeAlias = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
SWITCH: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
OBJECT: Schema = {"type": "object"}
OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value: where it is, its default, its valid values, and its effect."""

    path: str
    default: Any
    meaning: str
    schema: Schema = field(default_factory=lambda: TEXT)


def pattern(name: str, *, may_be_empty: bool = False) -> Schema:
    """The pattern that ``kube-efs render`` accepts."""
    expression = f"^({ACCEPTED[name][0]})$"
    return {"type": "string", "pattern": f"^$|{expression}" if may_be_empty else expression}


def one_of(*texts: str) -> Schema:
    """Text that is one of these."""
    return {"type": "string", "enum": list(texts)}


def first_object(asset: str) -> Any:  # noqa: ANN401 - any JSON
    """The first object of an asset."""
    return next(load_asset(asset))
