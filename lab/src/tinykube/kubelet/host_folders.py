"""Folders of the node that are elsewhere on this machine, so that several nodes can be on it.

Who speaks with the kubelet from a pod names files as they are on the node; the kubelet has to find them here.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath


class HostFolders:
    """Translates paths; ``folders`` has the places here of folders of the node."""

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        # What is inside another one counts more than it.
        self._folders = sorted(
            ((PurePosixPath(name), place) for name, place in (folders or {}).items()),
            key=lambda pair: len(pair[0].parts),
            reverse=True,
        )

    def here(self, path: str) -> Path:
        """Where a path of the node is on this machine."""
        for folder, place in self._folders:
            if PurePosixPath(path).is_relative_to(folder):
                return place / PurePosixPath(path).relative_to(folder)
        return Path(path)

    def there(self, path: Path) -> str:
        """What the node calls a path of this machine."""
        for folder, place in self._folders:
            if path.is_relative_to(place):
                return str(folder / path.relative_to(place))
        return str(path)
