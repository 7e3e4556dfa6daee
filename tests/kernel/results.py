"""The results of scenarios."""

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a scenario; ``error`` is a traceback, empty for a success.

    ``figures`` are measurements for users.
    """

    scenario: str
    seconds: float
    error: str
    figures: dict[str, float] = field(default_factory=dict)


def read_results(file: Path) -> dict[str, Result]:
    """The results by scenario; empty without a file."""
    if not file.exists():
        return {}
    found = (Result(**json.loads(line)) for line in file.read_text().splitlines())
    return {result.scenario: result for result in found}
