"""What has changed in a mapping, so that of a thousand tunnels only the changed ones cause work."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Generic, TypeVar

Key = TypeVar("Key")
Name = TypeVar("Name", bound=str)
Value = TypeVar("Value")
Result = TypeVar("Result")


def changed_keys(before: Mapping[Key, object], now: Mapping[Key, object]) -> set[Key]:
    """The keys with another object than before, and those that are gone.

    Values must be immutable. They are not compared: an equal one that was made again counts as changed.
    """
    if before is now:
        return set()
    changed = {key for key, value in now.items() if before.get(key) is not value}
    return changed.union(before.keys() - now.keys())


class Incremental(Generic[Value, Result]):
    """Computes a result for each value of a mapping, and again only for other objects than the last time.

    Values must be immutable.
    """

    def __init__(self, compute: Callable[[Value], Result]) -> None:
        self._compute = compute
        self._known: Mapping[str, tuple[Value, Result]] = {}

    def results(self, values: Mapping[Name, Value]) -> list[Result]:
        """The results in the order of the names."""
        before = self._known
        self._known = {
            name: known
            if (known := before.get(name)) and known[0] is value
            else (value, self._compute(value))
            for name, value in sorted(values.items(), key=itemgetter(0))
        }
        return [result for _, result in self._known.values()]
