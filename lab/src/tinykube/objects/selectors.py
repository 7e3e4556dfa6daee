"""Label selectors, as text in a query and as the structured ``LabelSelector`` of an object.

The grammar and the wording of refusals are those of Kubernetes (``k8s.io/apimachinery/pkg/labels``), because
users read them in kubectl's output.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tinykube.errors import InvalidValue
from tinykube.objects.json_types import Json
from tinykube.objects.label_syntax import label_key_problem, label_value_problem

_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|[=!(),<>])|(?P<word>[^=!(),<>\s]+)|$)")
_INTEGER = re.compile(r"[+-]?\d+")


class SelectorInvalid(InvalidValue):
    """A selector cannot be understood; ``problem`` is Kubernetes' own sentence (answered with 400)."""


class Operator(StrEnum):
    """How a label must relate to the values of a requirement; ``=``, ``==`` and ``!=`` are special cases."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    GREATER_THAN = "gt"
    LESS_THAN = "lt"


_STRUCTURED_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}
_TEXT_OPERATORS = {
    "=": Operator.IN,
    "==": Operator.IN,
    "in": Operator.IN,
    "!=": Operator.NOT_IN,
    "notin": Operator.NOT_IN,
    ">": Operator.GREATER_THAN,
    "<": Operator.LESS_THAN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels fulfil it; ``notin`` holds for a missing label too, as in Kubernetes."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GREATER_THAN:
                return _is_integer(value) and all(int(value or "") > int(bound) for bound in self.values)
            case Operator.LESS_THAN:
                return _is_integer(value) and all(int(value or "") < int(bound) for bound in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """Requirements that must all hold; none at all selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """The selector that a ``labelSelector`` query parameter means.

    Raises:
        SelectorInvalid: the text does not follow the grammar, or a key or value cannot be a label's.
    """
    return LabelSelector(requirements=tuple(_Parser(text).requirements()))


def structured_label_selector(selector: Json) -> LabelSelector:
    """The selector that a ``LabelSelector`` object (``matchLabels``, ``matchExpressions``) means.

    An empty object selects everything. What a missing one means differs from place to place (everything
    for a claim's volumes, nothing elsewhere), so that is the caller's to say.

    Raises:
        SelectorInvalid: an operator is unknown, or its number of values is wrong.
    """
    labels = (selector.get("matchLabels") or {}).items()
    requirements = [_requirement(key, Operator.IN, [value]) for key, value in labels]
    for expression in selector.get("matchExpressions") or []:
        operator = _STRUCTURED_OPERATORS.get(expression.get("operator", ""))
        if operator is None:
            raise SelectorInvalid(
                f'"{expression.get("operator", "")}" is not a valid label selector operator'
            )
        requirements.append(_requirement(expression.get("key", ""), operator, expression.get("values") or []))
    return LabelSelector(requirements=tuple(requirements))


def _requirement(key: str, operator: Operator, values: list[str]) -> Requirement:
    """A requirement whose parts have been checked."""
    problem = label_key_problem(key)
    if problem:
        raise SelectorInvalid(f'key: Invalid value: "{key}": {problem}')
    if operator in {Operator.IN, Operator.NOT_IN} and not values:
        raise SelectorInvalid(
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
        )
    if operator in {Operator.EXISTS, Operator.DOES_NOT_EXIST} and values:
        raise SelectorInvalid("values: Invalid value: values set must be empty for exists and does not exist")
    for index, value in enumerate(values):
        if operator in {Operator.GREATER_THAN, Operator.LESS_THAN} and not _is_integer(value):
            raise SelectorInvalid(
                f'values[{index}]: Invalid value: "{value}": '
                "for 'Gt', 'Lt' operators, the value must be an integer"
            )
        problem = label_value_problem(value)
        if problem:
            raise SelectorInvalid(f'values[{index}][{key}]: Invalid value: "{value}": {problem}')
    return Requirement(key=key, operator=operator, values=frozenset(values))


class _Parser:
    """A recursive descent over the tokens of one label selector; the last token is the empty string."""

    def __init__(self, text: str) -> None:
        self._tokens = [match.group(match.lastgroup or 0).strip() for match in _TOKEN.finditer(text)]
        self._position = 0

    def requirements(self) -> Iterator[Requirement]:
        """Every requirement, left to right."""
        if self._peek() not in {"", "!"} and not _is_word(self._peek()):
            raise SelectorInvalid(f"found '{self._peek()}', expected: !, identifier, or 'end of string'")
        while self._peek():
            try:
                yield self._one()
            except SelectorInvalid as refusal:
                raise SelectorInvalid(f"unable to parse requirement: {refusal.problem}") from None
            found = self._take()
            if found not in {"", ","}:
                raise SelectorInvalid(f"found '{found}', expected: ',' or 'end of string'")
            if found == "," and self._peek() != "!" and not _is_word(self._peek()):
                raise SelectorInvalid(f"found '{self._peek()}', expected: identifier after ','")

    def _one(self) -> Requirement:
        negated = self._peek() == "!" and bool(self._take())
        key = self._word()
        problem = label_key_problem(key)
        if problem:
            raise SelectorInvalid(f'<nil>: Invalid value: "{key}": {problem}')
        if negated or self._peek() in {"", ","}:
            return Requirement(key=key, operator=Operator.DOES_NOT_EXIST if negated else Operator.EXISTS)
        found = self._take()
        if found not in _TEXT_OPERATORS:
            raise SelectorInvalid(f"found '{found}', expected: in, notin, =, ==, !=, gt, lt")
        return _requirement(
            key, _TEXT_OPERATORS[found], self._list() if found in {"in", "notin"} else [self._exact()]
        )

    def _exact(self) -> str:
        return "" if self._peek() in {"", ","} else self._word()

    def _list(self) -> list[str]:
        """The words between parentheses; nothing between two commas is the empty value."""
        if (found := self._take()) != "(":
            raise SelectorInvalid(f"found '{found}' expected: '('")
        values = []
        while True:
            values.append(self._take() if _is_word(self._peek()) else "")
            found = self._take()
            if found == ")":
                return values
            if found != ",":
                raise SelectorInvalid(f"found '{found}', expected: ',' or ')'")

    def _word(self) -> str:
        found = self._take()
        if not _is_word(found):
            raise SelectorInvalid(f"found '{found}', expected: identifier")
        return found

    def _peek(self) -> str:
        return self._tokens[self._position]

    def _take(self) -> str:
        found = self._peek()
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return found


def _is_word(token: str) -> bool:
    return bool(token) and token[0] not in "=!(),<>"


def _is_integer(value: str | None) -> bool:
    return value is not None and _INTEGER.fullmatch(value) is not None
