"""Which volumes can be measured, and in which order."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kube_efs.kube.quantities import parse_quantity
from kube_efs.model.claims import Claim
from kube_efs.model.usage import MeasuredDirectory, VolumeUsage
from kube_efs.model.volumes import ClaimReference, Location, Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurable:
    """A volume of a claim, where its data lies, and how many bytes were asked for."""

    name: str
    claim: ClaimReference
    location: Location
    requested_bytes: int

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Those of its metrics."""
        return self.name, self.claim.namespace, self.claim.name, self.location.file_system_id


def measurable(
    volumes: Mapping[str, Volume], locations: Mapping[str, Location], claims: Collection[Claim]
) -> Sequence[Measurable]:
    """The volumes that have a claim and a known place; without a request their capacity counts."""
    requests = {(one.namespace, one.name): one.requested_storage for one in claims}
    return [
        Measurable(
            name=name,
            claim=volume.claim,
            location=locations[name],
            requested_bytes=int(
                parse_quantity(requests.get((volume.claim.namespace, volume.claim.name)))
                or parse_quantity(volume.capacity)
                or 0
            ),
        )
        for name, volume in volumes.items()
        if volume.claim is not None and name in locations
    ]


def in_order(volumes: Collection[Measurable], known: Mapping[str, VolumeUsage]) -> Sequence[Measurable]:
    """First those that were never measured, then the others by age."""

    def age(one: Measurable) -> tuple[bool, float, str]:
        usage = known.get(one.name)
        return usage is not None, usage.measured_at.timestamp() if usage else 0.0, one.name

    return sorted(volumes, key=age)


def matched(
    volumes: Collection[Measurable], measured: Collection[MeasuredDirectory]
) -> Iterator[tuple[Measurable, MeasuredDirectory]]:
    """The volumes whose directories were measured, each with what was found."""
    by_directory = {one.directory: one for one in measured}
    for one in volumes:
        if one.location.directory in by_directory:
            yield one, by_directory[one.location.directory]
