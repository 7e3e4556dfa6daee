"""The events of a run, one line each; formatted only on request."""

from collections.abc import Callable


class Violation(Exception):
    """An invariant is violated."""


class History:
    """The events so far, with their times."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: list[tuple[float, str, tuple[object, ...]]] = []

    def note(self, text: str, *values: object) -> None:
        """Record an event; ``text`` has a ``{}`` for each value."""
        self._events.append((self._clock(), text, values))

    def lines(self) -> list[str]:
        """All events as text."""
        return [f"{moment:9.3f}  {text.format(*values)}" for moment, text, values in self._events]
