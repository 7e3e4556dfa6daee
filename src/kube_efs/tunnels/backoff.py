"""The back-off before a process that has ended is restarted."""

from dataclasses import dataclass

_SHORT_LIFE_SECONDS = 2.0
_FIRST_DELAY_SECONDS = 0.2
_LONGEST_DELAY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """The delay before the next start: zero after a long run, doubled after each short one."""

    seconds: float = 0.0

    def after_life_of(self, lived_seconds: float) -> "RestartBackoff":
        """The delay after one more end."""
        if lived_seconds >= _SHORT_LIFE_SECONDS:
            return RestartBackoff()
        return RestartBackoff(min(max(self.seconds * 2, _FIRST_DELAY_SECONDS), _LONGEST_DELAY_SECONDS))
