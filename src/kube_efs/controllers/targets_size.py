"""How much of its ConfigMap the tunnel targets need: reported before they no longer fit.

The API server refuses a ConfigMap with more than 1 MiB of data. A file system needs about 230 bytes, with a
long name and many mount targets up to 500. When the targets no longer fit, the last document stays: ports and
mount targets of known file systems work, but no change reaches the nodes.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final

from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.errors import InvalidValue
from kube_efs.telemetry.metrics import ControllerMetrics

# https://kubernetes.io/docs/concepts/configuration/configmap/: of all values together.
LIMIT_BYTES: Final = 1024 * 1024
# About a thousand file systems before the limit.
_WARNING_BYTES: Final = LIMIT_BYTES * 3 // 4
_REMEDY: Final = (
    "delete file systems that nobody needs, shorten their names, or use only CSI volumes"
    " (KUBE_EFS_BACKENDS=csi), which need no ConfigMap"
)


class _Level(IntEnum):
    ORDINARY = auto()
    LARGE = auto()
    TOO_LARGE = auto()


# The reason and the beginning of the message of the event.
_EVENTS: Final = {
    _Level.LARGE: ("TargetsNearLimit", "Some hundred more file systems do not fit"),
    _Level.TOO_LARGE: ("TargetsTooLarge", "Nodes get no new file systems and no changed mount targets"),
}


class TargetsSize:
    """Measures each document before it is written, and reports each change of its level once."""

    def __init__(self, recorder: EventRecorder, metrics: ControllerMetrics, *, namespace: str) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._namespace = namespace
        self._level = _Level.ORDINARY

    def check(self, name: str, uid: str, data: Mapping[str, str]) -> None:
        """Raise InvalidValue if the data of that ConfigMap do not fit."""
        size = sum(len(value.encode()) for value in data.values())
        self._metrics.targets_bytes.set(size)
        before, self._level = self._level, _level_of(size)
        error = InvalidValue(
            f"needs {size} bytes, and {LIMIT_BYTES} fit", field="ConfigMap", value=name, remedy=_REMEDY
        )
        if self._level > before:
            subject = Subject(
                api_version="v1", kind="ConfigMap", namespace=self._namespace, name=name, uid=uid
            )
            reason, effect = _EVENTS[self._level]
            self._recorder.publish(subject, EventType.WARNING, reason, f"{effect}: {error}")
        if self._level is _Level.TOO_LARGE:
            raise error


def _level_of(size: int) -> _Level:
    if size > LIMIT_BYTES:
        return _Level.TOO_LARGE
    return _Level.LARGE if size > _WARNING_BYTES else _Level.ORDINARY
