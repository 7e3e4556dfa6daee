"""Files: atomic writes, after which a file has its old or its new content; previous files; sizes of logs."""

import glob
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace the file at ``path``; afterwards it has mode 0600.

    If ``durable``, it also waits until the disk has the file, which then survives a power failure. Raises
    OSError when the directory does not exist or is not writable.
    """
    # mkstemp creates the file with mode 0600 and follows no link, which is important in a directory such as
    # /tmp.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if not durable:
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def previous_path(path: Path) -> Path:
    """The second file of a state, with its content before the last change."""
    return path.with_name(f"{path.name}.previous")


def keep_previous(path: Path) -> None:
    """Give the current file a second name before it is replaced; raises OSError.

    A link, so that the current file keeps its own name until the new one replaces it: after a crash at any
    moment, one of the two can be read. The caller does not call this for an unreadable file, which would
    replace a good previous one.
    """
    previous = previous_path(path)
    spare = previous.with_name(f"{previous.name}.new")
    spare.unlink(missing_ok=True)
    os.link(path, spare)
    spare.replace(previous)


def limit_log(path: Path, most_bytes: int) -> bool:
    """Move a log that is longer to a second file, if the disk permits it; returns whether it is empty now.

    The process holds its log open as its standard error, and has no command to open another one. So the file
    is copied and emptied; a line that is written in the meantime is lost.
    """
    second = path.with_name(f"{path.name}.1")
    with suppress(OSError):
        if path.stat().st_size > most_bytes:
            try:
                shutil.copyfile(path, second)
            except OSError:
                # A full disk. The older lines are lost: stunnel needs the room, because it says only in its
                # log that it has loaded a tunnel.
                second.unlink(missing_ok=True)
            os.truncate(path, 0)
            return True
    return False


def remove_temporary_files(path: Path) -> None:
    """Remove the temporary files of killed processes for this file; no process must be writing it."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(OSError):
            unfinished.unlink()
