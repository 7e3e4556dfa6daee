"""Where an embedded cluster of a command keeps its files."""

import os


def parent_directory() -> str:
    """TMPDIR, or else /var/tmp: Debian 13 has /tmp in memory, which its NFS-Ganesha cannot export."""
    return os.environ.get("TMPDIR") or "/var/tmp"  # noqa: S108 - the parent of directories of mkdtemp
