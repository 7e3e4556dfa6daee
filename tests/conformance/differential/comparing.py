"""The differences between two answers.

Of a refusal, the code, the reason and the names of fields are compared, not the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from tests.conformance.differential.player import Answer, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value of one answer; ``path`` is like ``body.metadata.labels`` or ``body.items[0]``."""

    exchange: str
    path: str
    real: Any
    embedded: Any

    def __str__(self) -> str:
        return f"{self.exchange}\n  {self.path}\n    real:     {self.real}\n    embedded: {self.embedded}"


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()


def differences(real: Sequence[Answer], embedded: Sequence[Answer]) -> list[Difference]:
    """The differences between the answers of both servers to a story."""
    return [
        Difference(exchange=one.exchange, path=path, real=left, embedded=right)
        for one, other in zip(real, embedded, strict=True)
        for path, left, right in _between_answers(one, other)
    ]


def _between_answers(real: Answer, embedded: Answer) -> Iterator[tuple[str, Any, Any]]:
    """The differences; for an object and a refusal, only the status."""
    if real.status == embedded.status:
        yield from _between("", *(asdict(replace(one, body=_compared(one.body))) for one in (real, embedded)))
    else:
        yield "status", (real.status, _message(real)), (embedded.status, _message(embedded))


def _compared(value: Any) -> Any:
    """The value, with each refusal reduced to its compared parts."""
    if isinstance(value, list):
        return [_compared(item) for item in value]
    if not isinstance(value, dict):
        return value
    if (value.get("kind"), value.get("status")) == ("Status", "Failure"):
        return _refusal(value)
    return {key: _compared(inner) for key, inner in value.items()}


def _refusal(status: Json) -> Json:
    causes = (status.get("details") or {}).get("causes") or ()
    # For an object as a whole, Kubernetes names "<nil>".
    fields = {cause["field"] for cause in causes if cause.get("field") not in {None, "", "<nil>"}}
    return {"code": status["code"], "reason": status.get("reason", ""), "fields": sorted(fields)}


def _message(answer: Answer) -> Any:
    return answer.body.get("message", "") if isinstance(answer.body, dict) else answer.body


def _between(path: str, real: Any, embedded: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(real, dict) and isinstance(embedded, dict):
        for key in sorted({*real, *embedded}):
            here = f"{path}.{key}" if path else key
            yield from _between(here, real.get(key, MISSING), embedded.get(key, MISSING))
    elif isinstance(real, list) and isinstance(embedded, list):
        for index, (left, right) in enumerate(zip_longest(real, embedded, fillvalue=MISSING)):
            yield from _between(f"{path}[{index}]", left, right)
    elif type(real) is not type(embedded) or real != embedded:
        yield path, real, embedded
