"""A replica of the controller: its real parts in one process, as in ``kube_efs.controllers.process``."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from lightkube import AsyncClient
from prometheus_client import CollectorRegistry
from tests.simulation.aws import Connection, SimulatedGateway
from tests.simulation.containers import Container, World
from tests.simulation.efs import REGION
from tests.simulation.network import Network
from tests.simulation.virtual import Process, settle

from kube_efs.aws.catalogue import Catalogue
from kube_efs.aws.connection import AwsOptions
from kube_efs.controllers.csi import Aws
from kube_efs.controllers.csi_socket import open_controller
from kube_efs.controllers.directory_backends import DirectoryService
from kube_efs.controllers.leading import LeaderContext, lead
from kube_efs.controllers.process import _lease_terms, _while_leading
from kube_efs.controllers.sole_leader import SoleLeader
from kube_efs.csi.controller import ControllerService
from kube_efs.kube.events import CONTROLLER, EventRecorder
from kube_efs.kube.leases import Leadership
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.directory_volumes import DirectoryProvisioner
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.efs.ids import FileSystemId, Region, VpcId
from kube_efs.provisioning.guards import Permit, Removal
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName, WorkerMounts
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import (
    AwsMetrics,
    ControllerMetrics,
    SharedVolumeMetrics,
    UsageMetrics,
)

NAMESPACE = "efs"
DIRECTORY_PROVISIONER = "example.com/aws-efs"
FIRST, SECOND, THIRD = "fs-0000000a", "fs-0000000b", "fs-0000000c"
# A file system of S3 Files, in some themes.
BUCKET = "fs-0000000d"
BASE = "/dirs"


class Replica(Container):
    """The controller of one pod of the Deployment."""

    def __init__(self, world: World, name: str, settings: ControllerSettings, *, quota: int) -> None:
        super().__init__(world, name)
        self.lists_nothing = 0
        self._settings = replace(settings, identity=name)
        self._quota = quota
        self.is_leading = False
        # The CSI service when it is available, and its running calls.
        self.driver: ControllerService | None = None
        self.calls: list[asyncio.Future[Any]] = []
        self.clock_offset = 0.0

    def start(self) -> None:
        """Start a process in the pod, unless one runs."""
        super().start()
        self.process.clock_offset = self.clock_offset

    def step_clock(self, seconds: float) -> None:
        """Set the clock of its machine."""
        self._world.history.note("the clock of {} is set by {:+g} s", self.name, seconds)
        self.clock_offset += seconds
        self.process.clock_offset = self.clock_offset

    def _end(self) -> None:
        super()._end()
        self.is_leading, self.driver = False, None
        for answer in self.calls:
            settle(answer, ConnectionResetError("the driver has ended"))
        self.calls.clear()

    async def _main(self, process: Process) -> None:
        settings = self._settings
        async with AsyncExitStack() as stack:
            registry = CollectorRegistry()
            client = await stack.enter_async_context(self._client(process))
            lease_client = await stack.enter_async_context(self._client(process))
            gateway = SimulatedGateway(self._connection(process))
            metrics = AwsMetrics(registry)
            clock = self._world.loop.time
            catalogue = Catalogue(gateway, settings.polling_interval_seconds, metrics=metrics, clock=clock)
            aws = Aws(gateway=gateway, options=AwsOptions(region=Region(REGION)), metrics=metrics)
            controller_metrics = ControllerMetrics(registry)
            duties = _Duties(process.name, registry, self._world)
            if settings.csi_endpoint is not None:
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                tasks.create_task(self._serve_csi(client, aws, controller_metrics, duties))
            terms = _lease_terms(settings)
            leadership = Leadership(lease_client, terms, clock)
            recorder = EventRecorder(lease_client, component=CONTROLLER, host=settings.identity)
            await stack.enter_async_context(recorder)
            await SoleLeader(lease_client, leadership, terms, recorder, clock).acquire()
            stack.push_async_callback(leadership.release)
            self.is_leading, self._world.efs.leader = True, process.name
            self._world.history.note("{} leads", process.name)
            context = LeaderContext(
                settings=settings,
                client=client,
                aws=aws,
                catalogue=catalogue,
                directories=(_directories(),) if BackendName.DIRECTORY in settings.backends else (),
                metrics=controller_metrics,
                shared_volume_metrics=SharedVolumeMetrics(registry),
                usage_metrics=UsageMetrics(registry),
                duties=duties,
                leadership=leadership,
                loaded=lambda: None,
                own_vpcs=_no_vpcs(),
            )
            await _while_leading(leadership, lead(context), settings.lease_name)

    async def _serve_csi(
        self, client: AsyncClient, aws: Aws, metrics: ControllerMetrics, duties: Duties
    ) -> None:
        """Serve the calls of the CSI service, without gRPC."""
        async with AsyncExitStack() as stack:
            driver = await open_controller(stack, self._settings, client, aws, metrics, duties)
            note_confirmations(driver, self._world)
            self.driver = driver
            await asyncio.Event().wait()

    def _client(self, process: Process) -> AsyncClient:
        world = self._world
        return Network(world.loop, process, world.server, world.request_faults, world.history).client()

    def _connection(self, process: Process) -> Connection:
        world = self._world
        connection = Connection(
            world.loop, process, world.efs, world.request_faults, world.history, quota=self._quota
        )
        connection.lists_nothing = self._lists_nothing
        return connection

    def _lists_nothing(self) -> bool:
        if self.lists_nothing:
            self.lists_nothing -= 1
            return True
        return False


async def _no_vpcs() -> frozenset[VpcId]:
    return frozenset()


class _Duties(Duties):
    """The product restarts a duty after an unexpected error; here such an error is a violation."""

    def __init__(self, process: str, registry: CollectorRegistry, world: World) -> None:
        super().__init__(registry, clock=world.loop.time)
        self._process = process
        self._crashed = world.invariants.fail

    def note(self, name: str, error: Exception, *, retry_seconds: float, **fields: str) -> None:
        """Report the error as a violation."""
        self._crashed(f"{self._process}: {name} has failed: {error!r} {fields}")
        super().note(name, error, retry_seconds=retry_seconds, **fields)


def note_confirmations(driver: ControllerService, world: World) -> None:
    """Record the last check of a removal: without our finalizer, no object marks this commit point."""
    guards = driver._volumes._guards
    check = guards.check_handle

    async def noting(removal: Removal, handle: VolumeHandle, asked_for: frozenset[str]) -> Permit:
        began = world.server.version
        permit = await check(removal, handle, asked_for)
        world.invariants.confirmed(str(handle), began)
        return permit

    guards.check_handle = noting  # type: ignore[method-assign]


def _directories() -> DirectoryService:
    file_system_id = FileSystemId(FIRST)
    return DirectoryService(
        provisioner=DirectoryProvisioner(
            name=DIRECTORY_PROVISIONER,
            file_system_id=file_system_id,
            server=dns_name(file_system_id, Region(REGION)),
            base=parse_directory(BASE),
        ),
        mounted=None,
    )


def settings_for(
    backends: tuple[BackendName, ...],
    *,
    removes_roots: bool,
    quota: int,
    has_socket: bool,
    worker_mounts: WorkerMounts,
) -> ControllerSettings:
    """The settings of a run; intervals are shorter than the defaults, so that more happens in minutes."""
    return ControllerSettings(
        namespace=NAMESPACE,
        region=Region(REGION),
        backends=backends,
        directory_provisioner_name=DIRECTORY_PROVISIONER,
        directory_file_system_id=FileSystemId(FIRST),
        directory_path=BASE,
        worker_image="kube-efs",
        worker_mounts=worker_mounts,
        polling_interval_seconds=30.0,
        provision_backoff_seconds=10.0,
        worker_timeout_seconds=60.0,
        lease_retry_seconds=3.0,
        delete_access_point_root_dir=removes_roots,
        access_point_quota=quota,
        access_point_refresh_seconds=900.0,
        csi_endpoint="unix:///csi/csi.sock" if has_socket else None,
        usage_interval_seconds=0,
        shared_volumes=False,
    )
