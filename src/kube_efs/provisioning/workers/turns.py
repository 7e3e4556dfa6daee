"""Turns of tenants: one who asks for much does not keep the others waiting."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What waits for its turn: tenants take turns, and of each tenant the first that came is next."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, tenant: str, one: T) -> None:
        """Let it wait behind everything of its tenant, and a new tenant behind the others."""
        self._waiting.setdefault(tenant, deque()).append(one)

    def take(self) -> tuple[str, T]:
        """The next one, with its tenant, who then waits behind the others."""
        tenant = next(iter(self._waiting))
        waiting = self._waiting.pop(tenant)
        one = waiting.popleft()
        if waiting:
            self._waiting[tenant] = waiting
        return tenant, one
