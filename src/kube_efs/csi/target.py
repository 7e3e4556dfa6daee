"""The target directory of a volume: its path is checked, and the directory is created and removed."""

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.errors import MountFailed

log = structlog.get_logger()

_LONGEST_PATH: Final = 4095  # bytes: PATH_MAX without the zero at the end
_LONGEST_NAME: Final = 255  # bytes: NAME_MAX
_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MODE: Final = 0o755
_LINK: Final = ("is a link", "remove the link")
# Only the image of the driver is read-only, so the path is in none of the node's directories.
_NOT_OF_THE_NODE: Final = (
    "install the driver with the --root-dir of the kubelets: --kubelet-dir of kube-efs render,"
    " csi.kubeletDirectory of the chart, or KUBE_EFS_KUBELET_FOLDER of the operator"
)
# Errors for which the caller must use another path: the problem and the remedy.
_PATH_ERRORS: Final = MappingProxyType(
    {
        errno.ENAMETOOLONG: ("is too long", "give a shorter path"),
        errno.ENOTDIR: ("is below a file", "remove the file"),
        errno.ELOOP: ("is below a link that leads back to itself", "remove the link"),
    }
)


def parse_target(text: str, *, field: str) -> Path:
    """The path; raises InvalidArgument unless it is absolute and has no ``..`` and no control characters."""
    remedy = "give an absolute path"
    if not text:
        raise InvalidArgument("is missing", field=field, remedy=remedy)
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "":
        raise InvalidArgument("is not an absolute path below /", field=field, value=text, remedy=remedy)
    if _CONTROL_CHARACTERS.search(text):
        remedy = "give a path of printable characters"
        raise InvalidArgument("has control characters", field=field, value=text, remedy=remedy)
    if len(text.encode()) > _LONGEST_PATH:
        problem = f"is longer than {_LONGEST_PATH} bytes"
        raise InvalidArgument(problem, field=field, value=text, remedy="give a shorter path")
    if any(len(name.encode()) > _LONGEST_NAME for name in text.split("/")):
        problem = f"has a name longer than {_LONGEST_NAME} bytes"
        raise InvalidArgument(problem, field=field, value=text, remedy="give shorter names")
    return Path(text)


def resolve_target(path: Path) -> Path:
    """The path without links in its parents, whether or not they exist."""
    # Not Path.resolve of the whole path: it would access the mounted file system, whose server may hang.
    parent = os.path.realpath(path.parent)
    return Path(parent) / path.name


def make_target(target: Path) -> None:
    """Create the directory unless it exists. Nothing must be mounted there.

    Raises InvalidArgument for a path at which no directory can be, MountFailed for every other obstacle.
    """
    try:
        with suppress(FileExistsError):  # the type of what exists is checked below
            target.mkdir(mode=_MODE, parents=True)
        mode = target.lstat().st_mode
    except OSError as error:
        if fault := _PATH_ERRORS.get(error.errno or 0):
            raise _refused(target, *fault) from error
        problem = f"cannot be created ({error.strerror})"
        remedy = _NOT_OF_THE_NODE if error.errno == errno.EROFS else ""
        raise MountFailed(problem, field="target_path", value=str(target), remedy=remedy) from error
    if stat.S_ISLNK(mode):  # mount(8) would follow it
        raise _refused(target, *_LINK)
    if not stat.S_ISDIR(mode):
        raise _refused(target, "is a file", "remove it")


def remove_target(target: Path) -> bool:
    """Remove the directory, unless it contains anything: that is user data. A file stays, too.

    Returns False if the directory is a mount point. rmdir(2) checks this first, and does not access the
    mounted file system. Raises InvalidArgument for a path at which no directory can be.
    """
    try:
        target.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        fault = _PATH_ERRORS.get(error.errno or 0)
        if fault and not os.path.lexists(target):
            raise _refused(target, *fault) from error
        if target.is_symlink():
            raise _refused(target, *_LINK) from error
        log.warning("target-not-removed", target=str(target), reason=error.strerror)
    return True


def _refused(target: Path, problem: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(problem, field="target_path", value=str(target), remedy=remedy)
