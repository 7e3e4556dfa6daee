"""What the kubelet says to plugins on sockets of this machine, and what they answer.

Who starts a kubelet gives it the calls: tinykube has no copy of the protocol of CSI.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """What a plugin says of itself; ``endpoint`` is the socket that it serves at."""

    kind: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a CSI driver says of this node; ``most_volumes`` zero sets no limit."""

    node_id: str
    most_volumes: int
    topology: Mapping[str, str]
    knows_single_writers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """A volume and where to mount it; ``access_mode`` is the protocol's name of it."""

    handle: str
    target: str
    access_mode: str
    fs_type: str
    options: tuple[str, ...]
    context: Mapping[str, str]
    read_only: bool


class PluginCalls(Protocol):
    """The calls of the plugin registration and of the CSI node service; each raises NotYet when it fails."""

    async def plugin_info(self, socket: Path) -> PluginInfo:
        """Ask a plugin what it is."""
        ...

    async def notify_registration(self, socket: Path, *, error: str = "") -> None:
        """Tell a plugin that it is registered, or why not."""

    async def node_info(self, socket: Path) -> NodeInfo:
        """Ask a CSI driver for this node's id and for what the driver can do."""
        ...

    async def publish(self, socket: Path, request: PublishRequest) -> None:
        """Have a volume mounted."""

    async def unpublish(self, socket: Path, handle: str, target: str) -> None:
        """Have a volume unmounted."""
