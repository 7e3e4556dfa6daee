"""What has changed in a mapping, so that of a thousand tunnels only the changed ones cause work."""

from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")


def changed_keys(before: Mapping[Key, object], now: Mapping[Key, object]) -> set[Key]:
    """The keys with another object than before, and those that are gone.

    Values must be immutable. They are not compared: an equal one that was made again counts as changed.
    """
    if before is now:
        return set()
    changed = {key for key, value in now.items() if before.get(key) is not value}
    return changed.union(before.keys() - now.keys())
