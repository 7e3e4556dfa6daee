"""What this node's kernel reports: its log, its mounts, SELinux. Reads files at once: call it in a thread."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kube_efs.doctor.node_facts import LoopbackMount
from kube_efs.model.errors import PlatformError
from kube_efs.model.volumes import LOOPBACK
from kube_efs.mounts.mountinfo import MountEntry

KMSG: Final = Path("/dev/kmsg")
SELINUX: Final = Path("/sys/fs/selinux")
BOOLEANS: Final = ("virt_use_nfs", "virt_sandbox_use_nfs")

_RECORD_BYTES: Final = 8192  # no record of the kernel's is longer
_MOST_RECORDS: Final = 100_000


def read_kernel_log(path: Path = KMSG) -> tuple[str, ...]:
    """The texts of all records, oldest first; raises PlatformError when they may not be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        return parse_records(_records(file))
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(file)


def _records(file: int) -> Iterable[str]:
    for _ in range(_MOST_RECORDS):
        try:
            chunk = os.read(file, _RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:  # records were overwritten; the next read continues after them
            continue
        if not chunk:
            return
        yield chunk.decode(errors="replace")


def parse_records(records: Iterable[str]) -> tuple[str, ...]:
    """The texts of records ``PRIORITY,NUMBER,TIME,FLAGS;TEXT`` (Documentation/ABI/testing/dev-kmsg)."""
    return tuple(
        line.partition(";")[2]
        for record in records
        for line in record.splitlines()
        if ";" in line and not line.startswith(" ")
    )


def _unreadable(path: Path, error: OSError) -> PlatformError:
    remedy = "run the doctor as root on the node, or check dmesg there"
    return PlatformError(f"cannot be read ({error.strerror})", field="kernel", value=str(path), remedy=remedy)


def read_booleans(folder: Path = SELINUX) -> Mapping[str, bool]:
    """The booleans that NFS needs, by name; empty where SELinux does not enforce. Raises PlatformError."""
    found: dict[str, bool] = {}
    try:
        with suppress(FileNotFoundError):
            if (folder / "enforce").read_text(encoding="ascii").strip() != "1":
                return MappingProxyType({})
        for name in BOOLEANS:
            with suppress(FileNotFoundError):
                # The current value and the one that is about to be committed.
                current = (folder / "booleans" / name).read_text(encoding="ascii").split()[0]
                found[name] = current == "1"
    except (OSError, IndexError) as error:
        problem = f"cannot be read ({error})"
        remedy = "run the doctor as root on the node"
        raise PlatformError(problem, field="SELinux", value=str(folder), remedy=remedy) from error
    return MappingProxyType(found)


def loopback_mounts(entries: Iterable[MountEntry]) -> tuple[LoopbackMount, ...]:
    """The mounts through a tunnel of this node."""
    found = []
    for entry in entries:
        options = dict(option.partition("=")[::2] for option in entry.super_options)
        if entry.file_system_type in {"nfs", "nfs4"} and entry.source.startswith(f"{LOOPBACK}:"):
            with suppress(ValueError):
                found.append(LoopbackMount(mount_point=entry.mount_point, port=int(options.get("port", ""))))
    return tuple(found)
