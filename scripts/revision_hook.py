"""Puts the revision of the sources into the wheel, where ``kube-efs --version`` reads it."""

import os
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_UNKNOWN = "unknown"


class RevisionHook(BuildHookInterface[Any]):
    """Called by hatchling; an editable installation has the sources themselves, and needs no file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file ``kube_efs/REVISION`` unless the revision is unknown."""
        revision = os.environ.get("KUBE_EFS_REVISION") or _of_git(Path(self.root))
        if version == "editable" or revision == _UNKNOWN:
            return
        file = Path(self.directory) / "REVISION"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{revision}\n", encoding="utf-8")
        build_data["force_include"][str(file)] = "kube_efs/REVISION"


def _of_git(root: Path) -> str:
    """The commit, for a tree without changes in the sources."""
    if not (root / ".git").exists():
        return _UNKNOWN
    command = ["git", "-C", str(root)]
    try:
        changed = subprocess.run(
            [*command, "status", "--porcelain", "--", "src", "pyproject.toml"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        commit = subprocess.run(
            [*command, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return _UNKNOWN
    return commit.stdout.strip() + ("+changed" if changed.stdout else "")
