"""What the engine asks of each kind of volume."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.ids import FileSystemId
from kube_efs.model.usage import MeasuredDirectory
from kube_efs.model.volumes import Location, Volume
from kube_efs.provisioning.guards import Order, Removal
from kube_efs.provisioning.workers.orders import MeasuringTerms

Confirm: TypeAlias = Callable[[], Awaitable[None]]


class Directories(Protocol):
    """Somebody who makes and removes directories of file systems."""

    async def make(self, location: Location, permissions: Permissions) -> None:
        """Make the directory unless it is there; raises GidTaken and KubeEfsError."""

    async def remove(
        self, location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        """Remove the directory with all that is in it, if it is there.

        ``confirm`` is called directly before the step that others see, after every queue and wait; nothing is
        removed when it raises. What was the directory's is emptied later, fairly between tenants. Raises
        RemovalRefused unless it is strictly inside ``base``, what ``confirm`` raises, and KubeEfsError.
        """

    async def settled(self, location: Location) -> None:
        """Return when no earlier order of another process can change the directory any more.

        Raises WorkerFailed while one may, and KubeError.
        """

    async def children(self, location: Location) -> Sequence[FoundDirectory]:
        """The directories in this one, links and the trash left out; none when it is not there.

        Raises KubeEfsError.
        """


class Meter(Protocol):
    """Somebody who finds out how much is in directories of file systems."""

    async def measure(
        self, file_system_id: FileSystemId, directories: Sequence[Directory], terms: MeasuringTerms
    ) -> Sequence[MeasuredDirectory]:
        """How much is in each, as far as the terms allow; raises KubeEfsError."""


class Plan(Protocol):
    """Everything that is needed to make one volume for one claim."""

    @property
    def claim(self) -> Claim:
        """The claim that is served."""

    async def locations(self) -> Sequence[Location]:
        """Every place where its data may come to lie; raises KubeEfsError."""

    @property
    def place(self) -> str:
        """The same in words."""

    @property
    def oddities(self) -> Sequence[str]:
        """What in the claim or its class has no effect, for the person who wrote it."""

    async def make(self) -> None:
        """Make what the volume stands on; doing it again does no harm. Raises KubeEfsError."""

    def volume(self, attempt: int) -> Volume:
        """The volume; ``attempt`` counts names that turned out to belong to other claims."""

    async def adopt(self, found: Volume) -> None:
        """Make what was made agree with the volume that the claim had got before; raises KubeEfsError."""


class Backend(Protocol):
    """One kind of volume."""

    @property
    def provisioner(self) -> str:
        """The provisioner that its classes name."""

    @property
    def marks_refused_claims(self) -> bool:
        """Whether refused claims are annotated, so that each is told of once whatever restarts."""

    @property
    def shares_directories(self) -> bool:
        """Whether a claim may get a directory that another volume has, or had."""

    def plan(self, claim: Claim, storage_class: StorageClass) -> Plan | None:
        """How the claim would be served; None for a claim that is none of its business.

        Raises ClaimRefused when it cannot be, NotYet when something is not there yet.
        """

    def owns(self, volume: Volume) -> bool:
        """Whether a volume with this provisioner's name is its own, and not that of a namesake elsewhere."""

    async def removal(self, volume: Volume) -> Removal:
        """What would go with the volume; raises RemovalRefused, NotYet, AwsError."""

    async def settled(self, volume: Volume) -> None:
        """Return when no earlier order to remove what the volume stands on can be carried out any more.

        Raises KubeEfsError while one may: the volume object must stay for as long.
        """

    async def remove(self, removal: Removal, order: Order) -> None:
        """Remove what the volume stands on, if it is there, once the order is confirmed.

        Returns only when it is known to be gone. Raises KubeEfsError, DataKept when the directory stays.
        """


async def remove_directory(directories: Directories, removal: Removal, order: Order) -> None:
    """Have the directory of a removal removed, if it has one and the order is confirmed for it."""
    if removal.location is not None and removal.with_directory:
        await directories.remove(
            removal.location, removal.base, order.confirm_directory, tenant=removal.tenant
        )
