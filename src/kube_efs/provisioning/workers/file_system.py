"""Creates and removes directories of a mounted file system, without any effect outside them.

Every step uses directory file descriptors and refuses symbolic links. So neither a link from a user of the
file system nor a concurrent rename can redirect a step. A removal renames the directory into a trash
directory, which takes the same short time for any contents. Even if it is interrupted, the directory is
either complete in its place or completely removed. The trash is emptied separately, which blocks no request.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kube_efs.model.copies import COPIES, SNAPSHOTS, Copied, CopyProgress, CopyTerms
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, Relation
from kube_efs.model.errors import PlatformError, RemovalRefused, WorkerFailed, WorkerRefused
from kube_efs.model.trash import TrashReport
from kube_efs.provisioning.workers import copying, gid_marks, trash
from kube_efs.provisioning.workers.gid_marks import MARKS
from kube_efs.provisioning.workers.opening import NO_DIRECTORY, OPEN_DIRECTORY, opened
from kube_efs.provisioning.workers.trash import TRASH, opened_trash

_PARENT_MODE = 0o755
_UNFINISHED_MODE = 0o700
_CORRECT_PATH = "correct the path of its volume"
_AS_ROOT = "run the provisioner as root (securityContext.runAsUser: 0)"
_ROOT_ACCESS = "the file system's policy must allow root access (elasticfilesystem:ClientRootAccess)"


def make_directory(root: Path, directory: Directory, permissions: Permissions) -> bool:
    """Create the directory with those permissions, and parents with 0755; returns whether it is new.

    An existing directory keeps its contents. It also keeps its mode and owners unless ``permissions`` are
    enforced; the root always keeps them. If they are enforced without owners, it still keeps setuid and
    setgid unless they are exact. A new directory with owners is inaccessible to others until the owners are
    set. After an interruption, only an enforced attempt completes it. If the server does not apply the
    permissions, a new directory is removed again. Raises WorkerRefused when a link or file is in the way,
    GidTaken when another directory has the group of ``permissions``, and WorkerFailed.
    """
    with _failing("could not be created", directory), _opened_root(root) as descriptor:
        return not directory.is_root and _make_below(descriptor, directory, permissions)


def list_children(root: Path, directory: Directory) -> list[FoundDirectory]:
    """The plain directories in this one except those of kube-efs itself; none when it does not exist.

    Raises WorkerRefused when the directory is or is below a link or file, and WorkerFailed.
    """
    with (
        _failing("could not be listed", directory, in_the_way=WorkerRefused),
        _opened_root(root) as descriptor,
    ):
        try:
            with opened(descriptor, directory.parts) as folder:
                return sorted(_children(folder), key=lambda child: child.name)
        except FileNotFoundError:
            return []


def move_to_trash(root: Path, directory: Directory, *, base: Directory, tenant: str = "") -> bool:
    """Rename the directory into the trash, for that tenant; returns whether it existed.

    Raises RemovalRefused, without any change, unless it is strictly inside ``base``, outside the trash,
    reached without a link, and on the same file system as ``root``; WorkerFailed when the server fails.
    """
    refuse_outside(directory, base)
    with _failing("could not be removed", directory), _opened_root(root) as descriptor:
        return _move_to_trash(descriptor, directory, tenant)


def copy_directory(
    root: Path, target: Directory, terms: CopyTerms, report: Callable[[CopyProgress], None]
) -> Copied:
    """Copy a directory, or continue an interrupted copy; see ``copying.copy_tree``.

    Raises WorkerRefused when the target has contents or the source cannot be used, and WorkerFailed.
    """
    with (
        _failing("could not be copied", target, in_the_way=WorkerRefused),
        _opened_root(root) as descriptor,
    ):
        return copying.copy_tree(descriptor, target, terms, report)


def empty_trash(root: Path, may_go_on: Callable[[], bool]) -> TrashReport:
    """Empty the trash while ``may_go_on`` allows it; see ``trash.empty``.

    Abandoned copies get into the trash first. Raises RemovalRefused when the trash is not a directory, and
    WorkerFailed when it cannot be read.
    """
    with _failing("could not be emptied", Directory((TRASH,))), _opened_root(root) as descriptor:
        copying.discard_abandoned(descriptor)
        try:
            with opened_trash(descriptor, make=False) as folder:
                return trash.empty(folder, may_go_on)
        except FileNotFoundError:
            return TrashReport()


# --- creating


def _make_below(root: int, directory: Directory, permissions: Permissions) -> bool:
    parent = os.dup(root)
    try:
        for name in directory.parts[:-1]:
            child, _ = _open_or_make(parent, name, _PARENT_MODE, directory)
            os.close(parent)
            parent = child
        return _make_leaf(root, parent, directory, permissions)
    finally:
        os.close(parent)


def _make_leaf(root: int, parent: int, directory: Directory, permissions: Permissions) -> bool:
    name = directory.parts[-1]
    has_owners = permissions.uid is not None or permissions.gid is not None
    # No other user may enter while it belongs to the wrong group. Without owners, mkdir sets the mode: if a
    # chmod followed, a crash in between would lose the mode.
    mode = _UNFINISHED_MODE if has_owners else permissions.mode
    leaf, is_new = _open_or_make(parent, name, mode, directory)
    try:
        if permissions.enforced or (is_new and has_owners):
            if permissions.own_group and permissions.gid is not None:
                _claim_group(root, parent, directory, permissions.gid, leaf)
            if not (is_new or has_owners or permissions.exact):
                # As with chmod(1), users keep these bits on their directories.
                kept = os.fstat(leaf).st_mode & (stat.S_ISUID | stat.S_ISGID)
                permissions = replace(permissions, mode=permissions.mode | kept)
            _give(leaf, directory, permissions)
    except (OSError, WorkerFailed):
        if is_new:
            _take_back(parent, name, leaf)
        raise
    finally:
        os.close(leaf)
    return is_new


def _claim_group(root: int, parent: int, directory: Directory, gid: int, leaf: int) -> None:
    """Raise GidTaken unless only this directory has the group ID."""
    places = [gid_marks.Place(folder=parent, path=directory.parts[-1])]
    if len(directory.parts) > 1:
        places.append(gid_marks.Place(folder=root, path="/".join(directory.parts)))
    gid_marks.claim(gid, places, has_group=os.fstat(leaf).st_gid == gid)


def _open_or_make(parent: int, name: str, mode: int, directory: Directory) -> tuple[int, bool]:
    """A descriptor of the next directory on the path, and whether it is new."""
    try:
        os.mkdir(name, mode, dir_fd=parent)
        is_new = True
    except FileExistsError:
        is_new = False
    with _failing("could not be created", directory, in_the_way=WorkerRefused):
        child = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    try:
        # mkdir omits the bits of the umask, which all threads share, and setgid.
        if is_new and mode & ~(found := stat.S_IMODE(os.fstat(child).st_mode)):
            os.fchmod(child, found | mode)
    except OSError:
        os.close(child)
        raise
    return child, is_new


def _give(leaf: int, directory: Directory, permissions: Permissions) -> None:
    """Set owners and mode, in this order: a change of owners may remove setgid."""
    if _has(leaf, permissions):
        return  # Without root access or write access, even a change to the same values would fail.
    uid = -1 if permissions.uid is None else permissions.uid
    gid = -1 if permissions.gid is None else permissions.gid
    if (uid, gid) != (-1, -1):
        os.fchown(leaf, uid, gid)
    os.fchmod(leaf, permissions.mode)
    if not _has(leaf, permissions):
        found = os.fstat(leaf)
        mode = stat.S_IMODE(found.st_mode)
        raise WorkerFailed(
            f"has mode {mode:04o} and owners {found.st_uid}:{found.st_gid}, because the server did not apply "
            f"mode {permissions.mode:04o} and owners {_shown(permissions.uid)}:{_shown(permissions.gid)}",
            field="directory",
            value=str(directory),
            remedy=_ROOT_ACCESS,
        )


def _has(leaf: int, permissions: Permissions) -> bool:
    found = os.fstat(leaf)
    return (
        stat.S_IMODE(found.st_mode) == permissions.mode
        and permissions.uid in {None, found.st_uid}
        and permissions.gid in {None, found.st_gid}
    )


def _shown(owner: int | None) -> str:
    return "any" if owner is None else str(owner)


def _take_back(parent: int, name: str, leaf: int) -> None:
    """Remove a directory that was just created, unless it is no longer empty or was replaced."""
    # The caller raises the error that has led here.
    with suppress(OSError):
        if os.path.samestat(os.fstat(leaf), os.stat(name, dir_fd=parent, follow_symlinks=False)):
            os.rmdir(name, dir_fd=parent)


# --- listing


def _children(folder: int) -> Iterator[FoundDirectory]:
    with os.scandir(folder) as listing:
        for entry in listing:
            with suppress(FileNotFoundError):  # Removed concurrently.
                if entry.name not in copying.OURS and entry.is_dir(follow_symlinks=False):
                    yield FoundDirectory(name=entry.name, gid=entry.stat(follow_symlinks=False).st_gid)


# --- removing


def refuse_outside(directory: Directory, base: Directory) -> None:
    """Raise RemovalRefused unless the directory is strictly inside the base and outside the trash."""
    if directory.relation_to(base) is not Relation.BELOW:
        raise RemovalRefused(
            "is not strictly inside the base directory",
            field="directory",
            value=str(directory),
            remedy=f"only directories below {base} are removed",
        )
    if directory.parts in {(COPIES,), (SNAPSHOTS,)}:
        raise RemovalRefused(
            "is the directory of copies", field="directory", value=str(directory), remedy=_CORRECT_PATH
        )
    if directory.parts[0] == TRASH:
        raise RemovalRefused(
            "is the trash directory", field="directory", value=str(directory), remedy=_CORRECT_PATH
        )
    if MARKS in directory.parts:
        raise RemovalRefused(
            "is the directory of group IDs", field="directory", value=str(directory), remedy=_CORRECT_PATH
        )


def _move_to_trash(root: int, directory: Directory, tenant: str) -> bool:
    """Rename the directory into the trash; returns whether it existed."""
    name = directory.parts[-1]
    try:
        with _links_refused(directory), opened(root, directory.parts[:-1]) as parent:
            before = _checked_leaf(root, parent, name, directory)
            # If something else is renamed, its inode differs from the one in this name. So it is not removed
            # even if this process ends here.
            kept_as = trash.entry_name(tenant, before[1])
            with opened_trash(root) as folder:
                os.rename(name, kept_as, src_dir_fd=parent, dst_dir_fd=folder)
                after = os.stat(kept_as, dir_fd=folder, follow_symlinks=False)
                if (after.st_dev, after.st_ino) != before:
                    os.rename(kept_as, name, src_dir_fd=folder, dst_dir_fd=parent)
                    raise RemovalRefused(
                        "was replaced in the meantime",
                        field="directory",
                        value=str(directory),
                        remedy="check which process renames directories there",
                    )
    except FileNotFoundError as error:
        # Perhaps people have removed the trash at this moment. Then the volume must not count as removed.
        with suppress(FileNotFoundError), opened(root, directory.parts):
            raise WorkerFailed(
                "could not be removed (the trash has vanished)",
                field="directory",
                value=str(directory),
                remedy="it is retried",
            ) from error
        return False
    return True


def _checked_leaf(root: int, parent: int, name: str, directory: Directory) -> tuple[int, int]:
    """Device and inode of the directory to remove; raises RemovalRefused on another file system."""
    with opened(parent, (name,)) as leaf:
        found = os.fstat(leaf)
    if found.st_dev != os.fstat(root).st_dev:
        raise RemovalRefused(
            "is another file system",
            field="directory",
            value=str(directory),
            remedy="unmount what is mounted there",
        )
    return found.st_dev, found.st_ino


@contextmanager
def _links_refused(directory: Directory) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        raise RemovalRefused(
            f"is or is below a link or file ({error.filename})",
            field="directory",
            value=str(directory),
            remedy="check it; a volume's directory is never a link",
        ) from error


# --- opening


@contextmanager
def _opened_root(root: Path) -> Iterator[int]:
    try:
        descriptor = os.open(root, OPEN_DIRECTORY)
    except OSError as error:
        raise PlatformError(
            f"cannot be opened ({error.strerror})",
            field="root",
            value=str(root),
            remedy="mount the file system there",
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _failing(
    problem: str, directory: Directory, *, in_the_way: type[WorkerFailed] = WorkerFailed
) -> Iterator[None]:
    """Raise WorkerFailed for errors of the operating system, or ``in_the_way`` for a link or file."""
    try:
        yield
    except OSError as error:
        kind = in_the_way if error.errno in NO_DIRECTORY else WorkerFailed
        raise kind(
            f"{problem} ({error.strerror})", field="directory", value=str(directory), remedy=_hint(error)
        ) from error


def _hint(error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return _ROOT_ACCESS if os.geteuid() == 0 else _AS_ROOT
    if error.errno in NO_DIRECTORY:
        return "a link or file is in the way; move it"
    if error.errno == errno.EROFS:
        return "the file system's policy must allow writing (elasticfilesystem:ClientWrite)"
    return "it is retried"
