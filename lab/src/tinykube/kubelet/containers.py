"""What a container of a pod runs and sees: its program, environment, user and mounts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from lightkube import AsyncClient
from lightkube.models.core_v1 import (
    Container,
    EnvVar,
    PodSecurityContext,
    SecurityContext,
    VolumeMount,
)

from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.launch import Bind, Launch
from tinykube.kubelet.pods import Pod, field_of, read_config_map, read_secret
from tinykube.kubelet.volumes import Mounted

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A program of this machine instead of an image: images are not pulled.

    ``files`` are what it consists of, to be seen whatever is mounted over the directory that they happen
    to be in. ``environment`` is what an image brings. ``port_variable`` sets the port at which the program
    serves its health: pods share the machine's network, so each container gets a port of its
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


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """Where a container's own files are, in a directory below that of the kubelet, which none sees."""

    kubelet: Path
    directory: Path

    @property
    def scratch(self) -> Path:
        """Where its root is made."""
        return self.directory / "scratch"

    @property
    def message(self) -> Path:
        """Where it writes its last words."""
        return self.directory / "termination-message"

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.directory / "log"

    def make(self) -> None:
        """Make them for a start; the log continues."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.message.write_bytes(b"")
        self.message.chmod(0o666)  # whatever user the container runs as


async def resolve_environment(
    client: AsyncClient, pod: Pod, container: Container, everywhere: Mapping[str, str]
) -> dict[str, str]:
    """Every variable with its value, by the rules of pkg/kubelet/kubelet_pods.go.

    The container's own win over ``everywhere``. Raises NotYet for a ConfigMap, Secret or key that is not
    there, InvalidValue for a field of the pod that no variable can have.
    """
    found = {"PATH": STANDARD_PATH, "HOME": "/root", "HOSTNAME": pod.name, **everywhere}
    for variable in container.env or ():
        value = await _value(client, pod, variable, found)
        if value is not None:
            found[variable.name] = value
    return found


async def _value(client: AsyncClient, pod: Pod, variable: EnvVar, before: Mapping[str, str]) -> str | None:
    source = variable.valueFrom
    if source is None:
        return expand(variable.value or "", before)
    if source.fieldRef is not None:
        return field_of(pod, source.fieldRef.fieldPath)
    key = source.configMapKeyRef or source.secretKeyRef
    if key is None:
        return None
    read = read_config_map if source.configMapKeyRef else read_secret
    value = (await read(client, pod.namespace, key.name or "")).get(key.key)
    if value is None and not key.optional:
        kind = "ConfigMap" if source.configMapKeyRef else "Secret"
        raise NotYet(f"couldn't find key {key.key} in {kind} {pod.namespace}/{key.name}")
    return value


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with each ``$(NAME)`` that has a value replaced by it, and ``$$`` by ``$``."""

    def replaced(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values.get(match[2], match[0])

    return _REFERENCE.sub(replaced, text)


def resolve_command(
    container: Container, environment: Mapping[str, str], image: Image | None
) -> tuple[str, ...]:
    """The program and its arguments; none when only an image could say, which is not pulled here."""
    command = container.command or (image.command if image else ())
    if not command:
        return ()
    return tuple(expand(word, environment) for word in (*command, *(container.args or ())))


def placeholder(image: str) -> tuple[tuple[str, ...], str]:
    """A program that runs until it is stopped, and its first line of output, which explains it."""
    text = f"image {image} is not pulled here; nothing runs in its place"
    return ("/bin/sh", "-c", 'echo "$0"; exec sleep infinity', text), text


def plan_launch(
    pod: Pod,
    container: Container,
    files: ContainerFiles,
    *,
    argv: tuple[str, ...],
    environment: dict[str, str],
    mounted: Mapping[str, Mounted],
    image: Image | None,
) -> Launch:
    """Everything known put together; raises InvalidValue for a mount of a volume that the pod has not."""
    binds = [
        *(image.files if image else ()),
        Bind(source=str(files.message), target=container.terminationMessagePath or "/dev/termination-log"),
        *(_bind(container, mount, mounted) for mount in container.volumeMounts or ()),
    ]
    own = container.securityContext or SecurityContext()
    common = pod.spec.securityContext or PodSecurityContext()
    uid = common.runAsUser if own.runAsUser is None else own.runAsUser
    gid = common.runAsGroup if own.runAsGroup is None else own.runAsGroup
    return Launch(
        argv=argv,
        env=environment,
        scratch=str(files.scratch),
        hidden=str(files.kubelet),
        uid=uid or 0,
        gid=gid or 0,
        groups=tuple(sorted({group for volume in mounted.values() for group in volume.groups})),
        read_only_root=bool(own.readOnlyRootFilesystem),
        # Outer paths first, so that none is mounted over another.
        binds=tuple(sorted(binds, key=lambda bind: len(PurePosixPath(bind.target).parts))),
    )


def _bind(container: Container, mount: VolumeMount, mounted: Mapping[str, Mounted]) -> Bind:
    if mount.name not in mounted:
        field = f"container {container.name}, volumeMounts"
        raise InvalidValue("is not a volume of the pod", field=field, value=mount.name)
    volume = mounted[mount.name]
    return Bind(
        source=str(volume.path),
        target=mount.mountPath,
        read_only=bool(mount.readOnly) or volume.read_only,
        shares_mounts=mount.mountPropagation == "Bidirectional",
    )
