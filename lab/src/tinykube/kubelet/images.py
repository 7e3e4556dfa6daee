"""What stands for an image: images are not pulled, so their programs are those of this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tinykube.kubelet.launch import Bind


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A program of this machine in the place of an image.

    ``files`` are what it consists of, to be seen whatever is mounted over the directory that they happen
    to be in. ``environment`` is what an image brings. ``port_variable`` is the one by which the program is
    told where to serve its health: pods share the machine's network, so each container gets a port of its
    own there, and what asks for its health asks at that.
    """

    command: tuple[str, ...]
    files: tuple[Bind, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    port_variable: str = ""


def find_image(images: Mapping[str, Image], name: str) -> Image | None:
    """What stands for the image of that name, or for every version of it; None when nothing does."""
    return images.get(name) or images.get(repository(name))


def repository(name: str) -> str:
    """An image's name without its version; a colon before a slash belongs to a port."""
    plain = name.partition("@")[0]
    folder, slash, last = plain.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"
