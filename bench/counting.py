"""Counting what the controller asks of the API server, in the proxy before it."""

from collections import Counter
from typing import Final

from tests.scenarios.faulty_api import Call, Fault

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Not of any claim: what people read, and what a leader writes whatever there is to do.
_APART: Final = frozenset({"events", "leases"})


class Writes:
    """Counts every request that changes something, by its method and resource."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def note(self, call: Call) -> Fault | None:
        """Note a request, which is passed on as it is."""
        if call.method not in _READS and call.resource not in _APART:
            self.counted[f"{call.method} {call.resource}"] += 1
        return None
