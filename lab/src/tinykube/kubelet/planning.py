"""How a container of a pod is started: everything known put together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tinykube.errors import InvalidValue
from tinykube.kubelet.launch import Bind, Launch
from tinykube.kubelet.pods import Container, Pod
from tinykube.kubelet.volume_makers import Mounted


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPaths:
    """Where a container's own files are on this machine."""

    scratch: Path
    message: Path
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Where the kubelet's files are on this machine, which no container sees, and those of the image.

    ``shares_mounts`` tells whether a container may hand mounts to the node.
    """

    hidden: Path
    image: tuple[Bind, ...] = ()
    shares_mounts: bool = False


def plan_launch(
    pod: Pod,
    container: Container,
    *,
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    mounted: Mapping[str, Mounted],
    paths: ContainerPaths,
    node: NodePaths,
) -> Launch:
    """The launch; raises InvalidValue for mounts that cannot be."""
    binds = [_bind(container, mounted, index) for index in range(len(container.mounts))]
    if any(bind.shares_mounts for bind in binds) and not node.shares_mounts:
        field = f"container {container.name}, mountPropagation"
        raise InvalidValue("is not done on this node", field=field, value="Bidirectional")
    message = Bind(source=str(paths.message), target=container.message_path)
    identity, common = container.identity, pod.identity
    uid = identity.uid if identity.uid is not None else common.uid
    gid = identity.gid if identity.gid is not None else common.gid
    return Launch(
        argv=argv,
        env=environment,
        scratch=str(paths.scratch),
        uid=uid or 0,
        gid=gid or 0,
        groups=tuple(sorted({group for volume in mounted.values() for group in volume.groups})),
        read_only_root=container.read_only_root,
        # Outer paths first, so that none is mounted over another.
        binds=tuple(
            sorted((*node.image, message, *binds), key=lambda bind: len(PurePosixPath(bind.target).parts))
        ),
        hidden=(str(node.hidden),),
    )


def _bind(container: Container, mounted: Mapping[str, Mounted], index: int) -> Bind:
    mount = container.mounts[index]
    field = f"container {container.name}, volumeMounts[{index}]"
    if mount.volume not in mounted:
        raise InvalidValue("is no volume of the pod", field=f"{field}.name", value=mount.volume)
    if not mount.path.startswith("/"):
        raise InvalidValue("is not an absolute path", field=f"{field}.mountPath", value=mount.path)
    volume = mounted[mount.volume]
    return Bind(
        source=str(volume.path),
        target=mount.path,
        read_only=mount.read_only or volume.read_only,
        shares_mounts=mount.shares_mounts,
    )
