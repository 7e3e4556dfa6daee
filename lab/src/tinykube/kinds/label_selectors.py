"""What is wrong with a ``LabelSelector``, after apimachinery's ``ValidateLabelSelector``."""

from collections.abc import Iterator

from tinykube.objects.json_types import Json
from tinykube.objects.label_syntax import label_key_problem
from tinykube.objects.metadata import label_problems
from tinykube.objects.statuses import Cause, forbidden_field, invalid, required

_WITH_VALUES = frozenset({"In", "NotIn"})
_WITHOUT_VALUES = frozenset({"Exists", "DoesNotExist"})


def selector_problems(field: str, selector: Json) -> Iterator[Cause]:
    """What is wrong with the selector at this path."""
    yield from label_problems(selector.get("matchLabels") or {}, f"{field}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or ()):
        yield from _expression_problems(f"{field}.matchExpressions[{index}]", expression)


def _expression_problems(field: str, expression: Json) -> Iterator[Cause]:
    operator, values = expression.get("operator", ""), expression.get("values")
    if operator in _WITH_VALUES:
        if not values:
            yield required(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in _WITHOUT_VALUES:
        if values:
            yield forbidden_field(
                f"{field}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
    else:
        yield invalid(f"{field}.operator", operator, "not a valid selector operator")
    if problem := label_key_problem(expression.get("key", "")):
        yield invalid(f"{field}.key", expression.get("key", ""), problem)
