"""What a volume is once it is there, and what those who make volumes have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tinykube.errors import InvalidValue
from tinykube.kubelet.cluster import BoundVolume, DriverTerms
from tinykube.kubelet.pods import AccountToken, Pod, Store, Unsupported, VolumeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """Where a volume's data is on this machine, and which groups its users get."""

    path: Path
    read_only: bool = False
    groups: tuple[int, ...] = ()


class PodObjects(Protocol):
    """What volumes are made of, in the API (see ``Cluster``)."""

    async def contents(self, namespace: str, store: Store, name: str) -> Mapping[str, bytes] | None:
        """The keys of a ConfigMap or Secret, None when there is none of that name."""

    async def token(self, pod: Pod, wanted: AccountToken) -> str:
        """A token of the pod's service account."""

    async def bound_volume(self, namespace: str, claim_name: str) -> BoundVolume:
        """What a claim is bound to; raises NotYet."""

    async def driver_terms(self, driver: str) -> DriverTerms:
        """What a CSI driver asks of kubelets."""


class VolumeMaker(Protocol):
    """Makes volumes of one kind of source."""

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """Make the volume available, in ``directory``, which is there and the volume's own, or elsewhere.

        Called again after NotYet, which it raises for what may come right by itself; InvalidValue otherwise.
        """

    async def tear_down(self, directory: Path) -> None:
        """Undo it, whether or not it was set up; the directory is removed afterwards."""


def wrong_source(source: VolumeSource) -> InvalidValue:
    """The refusal of a kind of volume that nobody here makes."""
    kind = source.kind if isinstance(source, Unsupported) else type(source).__name__
    return InvalidValue("is no kind of volume that this node has", field="volume", value=kind)
