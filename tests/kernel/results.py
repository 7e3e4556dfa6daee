"""What a guest says of a scenario."""

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a scenario has ended; ``error`` is a traceback, empty where all was as it should be.

    ``figures`` are what was measured there, for people.
    """

    scenario: str
    seconds: float
    error: str
    figures: dict[str, float] = field(default_factory=dict)


def read_results(file: Path) -> dict[str, Result]:
    """The results by scenario; none without a file."""
    if not file.exists():
        return {}
    found = (Result(**json.loads(line)) for line in file.read_text().splitlines())
    return {result.scenario: result for result in found}
