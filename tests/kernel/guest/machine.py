"""The environment of scenarios in a guest: an EFS, a Kubernetes API, and a new node for each."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Event, Namespace
from tests.kernel.guest.efs import GuestEfs
from tests.kernel.guest.node import Node

from fake_efs.file_systems import Kind
from kube_efs.kube.client import connect, load_config
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import (
    CONFIG_MAP_KEY,
    S3_FILES_KEY,
    ZONES_KEY,
    render_s3_files,
    render_targets,
    render_zones,
)
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.tunnels.data_plane import DataPlaneName
from tinykube.api import ApiServer


@dataclass(slots=True, kw_only=True)
class Machine:
    """``folder`` is in memory, ``logs`` on the host; each scenario has its own.

    ``data_plane`` is that of its nodes.
    """

    efs: GuestEfs
    client: AsyncClient
    kubeconfig: Path
    folder: Path
    logs: Path
    data_plane: DataPlaneName
    figures: dict[str, float] = field(default_factory=dict)

    def tell(self, **figures: float) -> None:
        """Print a measurement on the host."""
        self.figures.update(figures)

    async def create_file_system(self, kind: Kind = Kind.EFS) -> FileSystemId:
        """Create a file system, and publish it to the nodes."""
        fs = await self.efs.create_file_system(kind)
        targets = self.efs.targets()
        data = {
            CONFIG_MAP_KEY: render_targets(targets, last_update=datetime.now(UTC)),
            ZONES_KEY: render_zones(targets),
            S3_FILES_KEY: render_s3_files(targets.s3_files),
        }
        metadata = ObjectMeta(
            name=OPENSHIFT_EFS_STUNNEL.config_map, namespace=OPENSHIFT_EFS_STUNNEL.namespace
        )
        await self.client.apply(ConfigMap(metadata=metadata, data=data), field_manager="scenario", force=True)
        return fs

    async def node_events(self, about: str) -> list[tuple[str | None, str | None]]:
        """Type and reason of the nodes' events with this text."""
        found = self.client.list(Event, namespace="default")
        return [(one.type, one.reason) async for one in found if about in (one.message or "")]

    @asynccontextmanager
    async def node(self, **settings: str) -> AsyncIterator[Node]:
        """A node while the context is open; ``settings`` override those of its processes."""
        settings = {"KUBE_EFS_DATA_PLANE": self.data_plane, **settings}
        async with Node(self.folder, self.logs, self.efs, self.kubeconfig, settings) as node:
            yield node


@asynccontextmanager
async def machine(folder: Path, data_plane: DataPlaneName) -> AsyncIterator[Machine]:
    """The parts that the scenarios of a guest share."""
    async with AsyncExitStack() as stack:
        efs = await stack.enter_async_context(GuestEfs(folder / "efs"))
        api = await stack.enter_async_context(ApiServer())
        kubeconfig = folder / "kubeconfig"
        api.write_kubeconfig(kubeconfig)
        client = await stack.enter_async_context(connect(load_config(kubeconfig)))
        await client.create(Namespace(metadata=ObjectMeta(name=OPENSHIFT_EFS_STUNNEL.namespace)))
        yield Machine(
            efs=efs,
            client=client,
            kubeconfig=kubeconfig,
            folder=folder,
            logs=folder,
            data_plane=data_plane,
        )


def for_scenario(machine: Machine, name: str, out: Path) -> Machine:
    """The same machine with directories for a scenario; the first has a short name for sockets."""
    folder, logs = Path("/tmp") / name, out / name
    folder.mkdir()
    logs.mkdir()
    return replace(machine, folder=folder, logs=logs, figures={})
