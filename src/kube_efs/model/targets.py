"""The tunnel targets of a cluster: the document that the controller writes and every node reads.

It is the value of the key ``efs-stunnel.yaml`` in the ConfigMap ``efs-stunnel`` and its format is that of
openshift-efs-stunnel (``README.md`` of that project). Ports are handed out here, once for the whole
cluster, because persistent volumes carry them.
"""

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

import yaml

from kube_efs.model.errors import InvalidValue, shown
from kube_efs.model.file_systems import Discovery, FileSystem
from kube_efs.model.ids import (
    FileSystemId,
    SubnetId,
    ZoneName,
    parse_file_system_id,
    parse_subnet_id,
    parse_zone_name,
)

CONFIG_MAP_NAME = "efs-stunnel"
CONFIG_MAP_KEY = "efs-stunnel.yaml"
ZONES_KEY = "zones.yaml"
COMPONENT_LABELS = MappingProxyType({"component": "efs-stunnel"})
LAST_PORT = 65535
_LOWEST_PORT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelTarget:
    """One file system as the nodes see it: its loopback port, and an address for each subnet."""

    file_system_id: FileSystemId
    port: int
    address_by_subnet: Mapping[SubnetId, str] = field(default_factory=lambda: MappingProxyType({}))
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An entry that was left out, and why; the others are not affected."""

    entry: str
    error: InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelTargets:
    """All targets by file system, and the zone of each subnet as far as it is known."""

    targets: Mapping[FileSystemId, TunnelTarget] = field(default_factory=lambda: MappingProxyType({}))
    zone_by_subnet: Mapping[SubnetId, ZoneName] = field(default_factory=lambda: MappingProxyType({}))

    def port_of(self, file_system_id: FileSystemId) -> int | None:
        """The loopback port of this file system on every node; None when it has none."""
        target = self.targets.get(file_system_id)
        return target.port if target else None

    def file_system_at(self, port: int) -> FileSystemId | None:
        """The file system behind this loopback port; None when there is none."""
        return next((target.file_system_id for target in self.targets.values() if target.port == port), None)

    def file_system_with(self, address: str) -> FileSystemId | None:
        """The file system of the mount target at this address; None when there is none."""
        return next(
            (fs for fs, one in self.targets.items() if address in one.address_by_subnet.values()), None
        )


def follow_discovery(
    current: TunnelTargets,
    discovery: Discovery,
    *,
    base_port: int,
    ports_in_use: Mapping[int, FileSystemId] = MappingProxyType({}),
) -> TunnelTargets:
    """The targets after a discovery.

    A known file system keeps its port, and while it is unclear all that was known of it. A new one gets
    the port that existing volumes already use for it (``ports_in_use``, from their mount options), else
    the lowest from ``base_port`` up that neither another target nor a volume of another file system has:
    a port given away under a mounted volume would lead its readers to somebody else's data.

    Raises InvalidValue when no port is left.
    """
    targets = {fs: target for fs, target in current.targets.items() if fs in discovery.unclear}
    usable = set(discovery.usable) - set(targets)
    kept = {fs for fs in usable if fs in current.targets}
    taken = {current.targets[fs].port for fs in kept} | {target.port for target in targets.values()}
    for file_system_id in sorted(kept) + sorted(usable - kept):
        system = discovery.file_systems[file_system_id]
        if file_system_id in kept:
            port = current.targets[file_system_id].port
        else:
            port = _port_for(file_system_id, base_port, taken, ports_in_use)
            taken.add(port)
        targets[file_system_id] = TunnelTarget(
            file_system_id=file_system_id,
            port=port,
            name=system.name,
            address_by_subnet=_addresses(system),
        )
    zones = {**_known_zones(current, targets.values()), **_zones(discovery, usable)}
    return TunnelTargets(targets=MappingProxyType(targets), zone_by_subnet=MappingProxyType(zones))


def _known_zones(current: TunnelTargets, targets: Iterable[TunnelTarget]) -> dict[SubnetId, ZoneName]:
    subnets = {subnet for target in targets for subnet in target.address_by_subnet}
    return {subnet: zone for subnet, zone in current.zone_by_subnet.items() if subnet in subnets}


def _addresses(system: FileSystem) -> Mapping[SubnetId, str]:
    return MappingProxyType({target.subnet_id: target.address for target in system.usable_mount_targets})


def _zones(discovery: Discovery, among: Collection[FileSystemId]) -> dict[SubnetId, ZoneName]:
    return {
        target.subnet_id: target.zone
        for file_system_id in among
        for target in discovery.file_systems[file_system_id].usable_mount_targets
        if target.zone
    }


def _port_for(
    file_system_id: FileSystemId,
    base_port: int,
    taken: Collection[int],
    ports_in_use: Mapping[int, FileSystemId],
) -> int:
    own = sorted(
        port
        for port, owner in ports_in_use.items()
        if owner == file_system_id and port not in taken and _LOWEST_PORT <= port <= LAST_PORT
    )
    if own:
        return own[0]
    for port in range(base_port, LAST_PORT + 1):
        if port not in taken and port not in ports_in_use:
            return port
    raise InvalidValue(
        "has no free port above it",
        field="BASE_STUNNEL_PORT",
        value=base_port,
        remedy="use a lower base port",
    )


def render_targets(targets: TunnelTargets, *, last_update: datetime) -> str:
    """The document for ``efs-stunnel.yaml``; ``last_update`` is written in UTC to the second."""
    entries = {
        str(fs): {
            **({"name": target.name} if target.name else {}),
            "stunnel_port": target.port,
            "mount_target_ip_by_subnet": dict(sorted(target.address_by_subnet.items())),
        }
        for fs, target in sorted(targets.targets.items())
    }
    stamp = last_update.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return yaml.safe_dump({"efs_stunnel_targets": entries, "last_update": stamp}, sort_keys=False)


def render_zones(targets: TunnelTargets) -> str:
    """The document for ``zones.yaml``: the zone of each subnet, which the older format has no place for."""
    return yaml.safe_dump({str(subnet): str(zone) for subnet, zone in sorted(targets.zone_by_subnet.items())})


def parse_targets(text: str, zones_text: str = "") -> tuple[TunnelTargets, tuple[Rejection, ...]]:
    """The targets of a document, and the entries that had to be left out.

    Raises InvalidValue when the document as a whole cannot be read. A bad entry is only left out, so
    that one file system never takes the others with it; of two entries with one port the second is out.
    """
    document = _mapping(_load(text, CONFIG_MAP_KEY), CONFIG_MAP_KEY)
    entries = _mapping(document.get("efs_stunnel_targets"), "efs_stunnel_targets")
    targets: dict[FileSystemId, TunnelTarget] = {}
    rejections: list[Rejection] = []
    for key, entry in entries.items():
        try:
            target = _parse_target(key, entry)
            if any(other.port == target.port for other in targets.values()):
                raise InvalidValue(
                    "is the port of another file system", field=f"{key}.stunnel_port", value=target.port
                )
        except InvalidValue as error:
            rejections.append(Rejection(entry=_key(key), error=error))
        else:
            targets[target.file_system_id] = target
    zones, bad_zones = _parse_zones(zones_text)
    found = TunnelTargets(targets=MappingProxyType(targets), zone_by_subnet=MappingProxyType(zones))
    return found, (*rejections, *bad_zones)


def _load(text: str, what: str) -> object:
    try:
        return yaml.safe_load(text)
    # ValueError: a date that is none; RecursionError: a thousand brackets. The library lets both through.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidValue(
            f"is not YAML ({error})", field=what, remedy="delete it, it is written anew"
        ) from error


def _mapping(value: object, what: str) -> Mapping[object, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidValue("is not a mapping", field=what, value=value, remedy="see docs/tunnels.md")
    return value


def _key(key: object) -> str:
    return key if isinstance(key, str) else shown(key)


def _parse_target(key: object, entry: object) -> TunnelTarget:
    file_system_id = parse_file_system_id(key)
    body = _mapping(entry, str(file_system_id))
    addresses = _mapping(body.get("mount_target_ip_by_subnet"), f"{key}.mount_target_ip_by_subnet")
    name = body.get("name")
    return TunnelTarget(
        file_system_id=file_system_id,
        port=_parse_port(body.get("stunnel_port"), f"{key}.stunnel_port"),
        name=name if isinstance(name, str) and name else None,
        address_by_subnet=MappingProxyType(
            {
                parse_subnet_id(subnet, field=f"{key}.mount_target_ip_by_subnet"): parse_address(
                    address, field=f"{key}.mount_target_ip_by_subnet.{_key(subnet)}"
                )
                for subnet, address in addresses.items()
            }
        ),
    )


def _parse_port(value: object, field_name: str) -> int:
    # bool is an int in Python, and `yes` a bool in YAML.
    if isinstance(value, bool) or not isinstance(value, int) or not _LOWEST_PORT <= value <= LAST_PORT:
        raise InvalidValue("is no port", field=field_name, value=value, remedy="use 1024 to 65535")
    return value


def parse_address(value: object, *, field: str = "address") -> str:
    """An IPv4 or IPv6 address in its shortest form; raises InvalidValue for names and anything else."""
    try:
        if not isinstance(value, str):
            raise TypeError(value)
        address = ipaddress.ip_address(value)
    except (ValueError, TypeError) as error:
        raise InvalidValue(
            "is no IP address", field=field, value=value, remedy="use an address, not a name"
        ) from error
    if getattr(address, "scope_id", None) is not None:
        raise InvalidValue("has a zone index", field=field, value=value, remedy="use a global address")
    if address.is_multicast or address.is_unspecified:
        raise InvalidValue(
            "is no address of a host", field=field, value=value, remedy="use a mount target's address"
        )
    return str(address)


def _parse_zones(text: str) -> tuple[dict[SubnetId, ZoneName], list[Rejection]]:
    zones: dict[SubnetId, ZoneName] = {}
    rejections: list[Rejection] = []
    try:
        entries = _mapping(_load(text, ZONES_KEY), ZONES_KEY)
    except InvalidValue as error:
        return {}, [Rejection(entry=ZONES_KEY, error=error)]
    for subnet, zone in entries.items():
        try:
            zones[parse_subnet_id(subnet)] = parse_zone_name(zone)
        except InvalidValue as error:
            rejections.append(Rejection(entry=f"{ZONES_KEY}: {_key(subnet)}", error=error))
    return zones, rejections
