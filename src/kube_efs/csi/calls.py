"""Which calls are at work on this node: one a target, and not too many that mount."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kube_efs.model.csi_errors import VolumePending


class Calls:
    """``most_mounting`` is the most publishing calls at a time; None sets no limit."""

    def __init__(self, most_mounting: int | None = None) -> None:
        self._most_mounting = most_mounting
        self._mounting = 0
        self._targets: set[Path] = set()

    @contextmanager
    def mounting(self) -> Iterator[None]:
        """While a call mounts; raises VolumePending when there are too many, and the caller tries again."""
        if self._most_mounting is not None and self._mounting >= self._most_mounting:
            raise VolumePending(
                "are at work, which is the limit",
                field="mounts of this node",
                value=self._mounting,
                remedy="this is tried again; KUBE_EFS_MAX_INFLIGHT_MOUNTS has the limit",
            )
        self._mounting += 1
        try:
            yield
        finally:
            self._mounting -= 1

    @contextmanager
    def alone(self, target: Path) -> Iterator[None]:
        """While a call works on the target; raises VolumePending when another does."""
        if target in self._targets:
            raise VolumePending(
                "is being worked on by an earlier call", field="target_path", value=str(target)
            )
        self._targets.add(target)
        try:
            yield
        finally:
            self._targets.discard(target)
