"""Target paths: where the kubelet wants a volume.

Paths are compared without links in them, but what may be a mount is never looked at itself: a look at one
whose server is gone does not return.
"""

import os
import re
import stat
from pathlib import Path

import structlog

from kube_efs.model.csi_errors import InvalidArgument
from kube_efs.model.errors import MountFailed

log = structlog.get_logger()

_LONGEST = 4095  # bytes: PATH_MAX without the zero at the end
_MODE = 0o755
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def parse_target(text: str, *, field: str) -> Path:
    """The path; raises InvalidArgument unless it is absolute, without ``..``, and fit for a line of text."""
    remedy = "give an absolute path"
    if not text:
        raise InvalidArgument("is missing", field=field, remedy=remedy)
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "":
        raise InvalidArgument("is no absolute path below /", field=field, value=text, remedy=remedy)
    if _UNFIT.search(text) or len(text.encode()) > _LONGEST:
        raise InvalidArgument("is too long or has control characters", field=field, value=text, remedy=remedy)
    return Path(text)


def resolve_target(path: Path) -> Path:
    """The path with the links in its parents followed, whether or not they exist."""
    parent = os.path.realpath(path.parent)  # looks at the parents only, as Path.resolve of the path would not
    return Path(parent) / path.name


def make_target(target: Path) -> None:
    """Make the folder unless it is there; raises MountFailed. Nothing must be mounted there."""
    try:
        target.mkdir(mode=_MODE, parents=True, exist_ok=True)
        is_folder = stat.S_ISDIR(target.lstat().st_mode)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise MountFailed(problem, field="target_path", value=str(target)) from error
    if not is_folder:
        raise MountFailed("is no folder", field="target_path", value=str(target), remedy="remove it")


def remove_target(target: Path) -> None:
    """Remove the folder, unless something is in it or mounted on it: that is somebody's data."""
    try:
        target.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("target-not-removed", target=str(target), reason=error.strerror)
