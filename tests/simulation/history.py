"""What happened in a run, a line for each event; written out only when somebody wants to read it."""

from collections.abc import Callable


class Violation(Exception):
    """Something that must always hold does not."""


class History:
    """The events so far, with their moments."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: list[tuple[float, str, tuple[object, ...]]] = []

    def note(self, text: str, *values: object) -> None:
        """Remember it; ``text`` has a ``{}`` for each value."""
        self._events.append((self._clock(), text, values))

    def lines(self) -> list[str]:
        """All of them as text."""
        return [f"{moment:9.3f}  {text.format(*values)}" for moment, text, values in self._events]
