"""Files of certificate authorities that mounts name with ``cafile``.

A person who writes a PersistentVolume chooses the file, and stunnel reads it with the permissions of the
agent. The administrator therefore names the directory. Every component below it is opened through the one
above and must not be a link: a link could lead out of the directory, and could be changed after the check.
"""

import errno
import os
import ssl
import stat
from pathlib import Path
from typing import Final

from kube_efs.model.efs.targets import parse_ca_file
from kube_efs.model.errors import InvalidValue

FIELD: Final = "cafile"
# The bundle of all public authorities has 200 KiB.
_MOST_BYTES: Final = 4 * 1024 * 1024


def check_ca_file(text: str, directory: Path | None) -> None:
    """Raise InvalidValue unless the file is allowed, and contains certificate authorities.

    ``directory`` None allows no file.
    """
    path = Path(parse_ca_file(text, field=FIELD))
    if directory is None:
        raise InvalidValue(
            "would change the authorities that the tunnel trusts",
            field=FIELD,
            value=text,
            remedy="leave it out, or set KUBE_EFS_CA_DIRECTORY of kube-efs tunnel",
        )
    if directory not in path.parents:
        raise _refused(text, "is not in the directory that the administrator allows", f"use {directory}/NAME")
    try:
        content = _read(directory, path.relative_to(directory))
    except OSError as error:
        reason = "it is or contains a link" if error.errno == errno.ELOOP else error.strerror
        remedy = "use a readable file without links"
        raise _refused(text, f"cannot be read ({reason})", remedy) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content)
    except (ssl.SSLError, ValueError) as error:
        raise _refused(text, "contains no certificate authorities", "use a file in PEM form") from error


def _read(directory: Path, path: Path) -> str:
    """The text of a regular file below the directory; raises OSError, also for a link."""
    # Without O_NONBLOCK, a named pipe would block this call indefinitely.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    opened = os.open(directory, flags | os.O_DIRECTORY)
    try:
        for part in path.parts:
            below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = below
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = os.read(opened, _MOST_BYTES)
    finally:
        os.close(opened)
    return content.decode("ascii", errors="ignore")  # comments may have other characters


def _refused(text: str, problem: str, remedy: str) -> InvalidValue:
    return InvalidValue(problem, field=FIELD, value=text, remedy=remedy)
