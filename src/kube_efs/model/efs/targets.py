"""The tunnel targets of a cluster: the document that the controller writes and every node reads.

It is the value of the key ``efs-stunnel.yaml`` in the ConfigMap ``Names.config_map``, and its format is that
of openshift-efs-stunnel (``README.md`` of that project). Ports are assigned here for the whole cluster,
because PersistentVolumes contain them.

A volume reaches the file system of its port. Therefore a port in a volume is assigned only to the file system
that has always had it. Three sources identify this file system: ``targets`` and, for deleted file systems,
``reserved`` in the ConfigMap, and the annotations of the volumes. If none of them does, the port belongs to
no file system, and stays unused until the volume is deleted or annotated.
"""

import ipaddress
import json
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

import yaml

from kube_efs.model.efs.file_systems import Discovery, FileSystem
from kube_efs.model.efs.ids import (
    FileSystemId,
    SubnetId,
    ZoneName,
    parse_file_system_id,
    parse_subnet_id,
    parse_zone_name,
)
from kube_efs.model.efs.target_entries import TARGETS_KEY, TargetEntries
from kube_efs.model.errors import InvalidValue, shown

CONFIG_MAP_KEY = "efs-stunnel.yaml"
ZONES_KEY = "zones.yaml"
RESERVED_KEY = "reserved-ports.yaml"
UNUSED_KEY = "unused-targets.yaml"
S3_FILES_KEY = "s3-files.yaml"
LAST_PORT = 65535
_LOWEST_PORT = 1024
# JSON's form of a character beyond U+FFFF. A backslash of the text itself is doubled, so it does not match.
_SURROGATES = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
# A half of this form, or text like it. YAML refuses halves, which can be neither written nor logged.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_PLAIN_LIST = re.compile(r"(- fs-[0-9a-z]+\n)+")
_CA_FILE = re.compile(r"(/[A-Za-z0-9_.-]*[A-Za-z0-9_-]){1,32}")  # no component is . or ..


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelTarget:
    """One file system as the nodes see it: its loopback port, and an address for each subnet."""

    file_system_id: FileSystemId
    port: int
    address_by_subnet: Mapping[SubnetId, str] = field(default_factory=lambda: MappingProxyType({}))
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An entry that is ignored, and the reason; the others are not affected."""

    entry: str
    error: InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class PortUse:
    """The use of a port by volumes: ``owners`` are the file systems in their annotations.

    ``unnamed``: volumes without a valid annotation use it too. ``root``: the root volume of a file system
    uses it.
    """

    owners: frozenset[FileSystemId] = frozenset()
    unnamed: bool = False
    root: bool = False

    @property
    def owner(self) -> FileSystemId | None:
        """The only owner; None without one, or with several."""
        return next(iter(self.owners)) if len(self.owners) == 1 else None

    def is_foreign_to(self, file_system_id: FileSystemId) -> bool:
        """Whether only volumes of other file systems use it."""
        return not self.unnamed and bool(self.owners) and file_system_id not in self.owners


@dataclass(frozen=True, slots=True, kw_only=True)
class S3FilesTargets:
    """What nodes need to know to reach file systems of S3 Files, which have no ports.

    ``addresses`` are those of the mount targets, by file system and the ID of their zone: there is one mount
    target in a zone. ``zone_ids`` are the IDs of zones by their names in this account.
    """

    addresses: Mapping[FileSystemId, Mapping[ZoneName, str]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    zone_ids: Mapping[ZoneName, ZoneName] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.addresses or self.zone_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelTargets:
    """All targets by file system, and the known zones of subnets.

    ``reserved`` are the ports of deleted file systems that volumes still use. No volume uses the ports of
    ``unused`` file systems. They keep their ports, but nodes do not open them.
    """

    targets: Mapping[FileSystemId, TunnelTarget] = field(default_factory=lambda: MappingProxyType({}))
    zone_by_subnet: Mapping[SubnetId, ZoneName] = field(default_factory=lambda: MappingProxyType({}))
    reserved: Mapping[FileSystemId, int] = field(default_factory=lambda: MappingProxyType({}))
    unused: frozenset[FileSystemId] = frozenset()
    s3_files: S3FilesTargets = field(default_factory=S3FilesTargets)

    def port_of(self, file_system_id: FileSystemId) -> int | None:
        """The loopback port of this file system on every node; None when it has none."""
        target = self.targets.get(file_system_id)
        return target.port if target else None

    def file_system_at(self, port: int) -> FileSystemId | None:
        """The file system with this port, even if it is deleted; None without one."""
        return next((fs for fs, own in self.ports.items() if own == port), None)

    @property
    def ports(self) -> Mapping[FileSystemId, int]:
        """The port of each file system, including deleted ones."""
        return {**self.reserved, **{fs: target.port for fs, target in self.targets.items()}}

    def file_system_with(self, address: str) -> FileSystemId | None:
        """The file system of the mount target at this address; None when there is none."""
        return next(
            (fs for fs, one in self.targets.items() if address in one.address_by_subnet.values()), None
        )


def joined(ours: TunnelTargets, theirs: TunnelTargets) -> TunnelTargets:
    """Ours, and the file systems of theirs whose ID and port ours do not have."""
    taken = set(ours.ports.values())
    new = {fs for fs, port in theirs.ports.items() if fs not in ours.ports and port not in taken}
    return TunnelTargets(
        targets=MappingProxyType(
            {**ours.targets, **{fs: one for fs, one in theirs.targets.items() if fs in new}}
        ),
        zone_by_subnet=MappingProxyType({**theirs.zone_by_subnet, **ours.zone_by_subnet}),
        reserved=MappingProxyType(
            {**ours.reserved, **{fs: port for fs, port in theirs.reserved.items() if fs in new}}
        ),
        s3_files=ours.s3_files or theirs.s3_files,
    )


def remaining(before: TunnelTargets, after: TunnelTargets) -> TunnelTargets:
    """The targets of ``before`` that keep their port in ``after``, and the reserved ports of ``after``."""
    targets = {fs: one for fs, one in before.targets.items() if after.port_of(fs) == one.port}
    return replace(before, targets=MappingProxyType(targets), reserved=after.reserved)


def unused_targets(targets: TunnelTargets, ports_in_use: Mapping[int, PortUse]) -> frozenset[FileSystemId]:
    """The file systems of the targets whose port no volume carries, and that no such volume names."""
    owners = {owner for use in ports_in_use.values() for owner in use.owners}
    return frozenset(
        fs for fs, target in targets.targets.items() if target.port not in ports_in_use and fs not in owners
    )


def follow_discovery(
    current: TunnelTargets,
    discovery: Discovery,
    *,
    base_port: int,
    ports_in_use: Mapping[int, PortUse] = MappingProxyType({}),
) -> TunnelTargets:
    """The targets after a discovery.

    A known file system keeps its port; if its state is unclear, it keeps its whole target. A deleted one is
    removed from the targets; its port stays ``reserved`` while volumes use it. A new or returning one gets
    the port that only its own volumes use, else the lowest port from ``base_port`` that no other file system
    and no volume uses. If the port of a volume were reassigned, its readers would get the data of another
    volume.

    Raises InvalidValue when no port is left.
    """
    present = {fs for fs, system in discovery.file_systems.items() if _is_present(system, current)}
    unclear = (current.targets.keys() & discovery.unclear) - present
    ports = _assign_ports(present | unclear, current.ports, base_port, ports_in_use)
    targets = {fs: replace(current.targets[fs], port=ports[fs]) for fs in unclear}
    zones = {**_known_zones(current, targets.values()), **_zones(discovery, present)}
    for file_system_id in present:
        system = discovery.file_systems[file_system_id]
        targets[file_system_id] = TunnelTarget(
            file_system_id=file_system_id,
            port=ports[file_system_id],
            name=system.name,
            address_by_subnet=MappingProxyType(
                {target.subnet_id: target.address for target in system.usable_mount_targets}
            ),
        )
    reserved = {
        fs: port
        for fs, port in current.ports.items()
        if fs not in targets and port in ports_in_use and not ports_in_use[port].is_foreign_to(fs)
    }
    return TunnelTargets(
        targets=MappingProxyType(dict(sorted(targets.items()))),
        zone_by_subnet=MappingProxyType(zones),
        reserved=MappingProxyType(reserved),
    )


def _is_present(system: FileSystem, current: TunnelTargets) -> bool:
    """Whether it has a tunnel: a new one when it is usable, a known one until its deletion starts."""
    known = system.file_system_id in current.targets
    return system.state.usable or (known and not system.state.ending)


def _assign_ports(
    wanted: Collection[FileSystemId],
    known: Mapping[FileSystemId, int],
    base_port: int,
    ports_in_use: Mapping[int, PortUse],
) -> dict[FileSystemId, int]:
    """A port for each file system: known ones first, then those of volumes, then free ones."""
    own = {fs: port for fs, port in known.items() if not ports_in_use.get(port, PortUse()).is_foreign_to(fs)}
    ports = {fs: port for fs, port in own.items() if fs in wanted}
    taken = {port for fs, port in own.items() if fs in wanted or port in ports_in_use}
    # The port of the root volume was published last. The others have no order of preference.
    carried = sorted(ports_in_use.items(), key=lambda item: (not item[1].root, item[0]))
    for port, use in carried:
        owner = use.owner
        is_open = port not in taken and _LOWEST_PORT <= port <= LAST_PORT
        if owner is not None and owner in wanted and owner not in ports and is_open:
            ports[owner] = port
            taken.add(port)
    free = (port for port in range(base_port, LAST_PORT + 1) if port not in taken | ports_in_use.keys())
    for file_system_id in sorted(set(wanted) - ports.keys()):
        ports[file_system_id] = next(free, 0)
    if 0 in ports.values():
        raise InvalidValue(
            "has no free port above it",
            field="BASE_STUNNEL_PORT",
            value=base_port,
            remedy="use a lower base port",
        )
    return ports


def _known_zones(current: TunnelTargets, targets: Iterable[TunnelTarget]) -> dict[SubnetId, ZoneName]:
    subnets = {subnet for target in targets for subnet in target.address_by_subnet}
    return {subnet: zone for subnet, zone in current.zone_by_subnet.items() if subnet in subnets}


def _zones(discovery: Discovery, among: Collection[FileSystemId]) -> dict[SubnetId, ZoneName]:
    return {
        target.subnet_id: target.zone
        for file_system_id in among
        for target in discovery.file_systems[file_system_id].usable_mount_targets
        if target.zone
    }


def render_targets(targets: TunnelTargets, *, last_update: datetime) -> str:
    """The document for ``efs-stunnel.yaml``; ``last_update`` is written in UTC to the second."""
    entries = {str(fs): _render_entry(target) for fs, target in sorted(targets.targets.items())}
    stamp = last_update.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _dump({TARGETS_KEY: entries, "last_update": stamp}, sort_keys=False)


def _render_entry(target: TunnelTarget) -> dict[str, object]:
    return {
        **({"name": target.name} if target.name else {}),
        "stunnel_port": target.port,
        "mount_target_ip_by_subnet": dict(sorted(target.address_by_subnet.items())),
    }


def render_json_entry(target: TunnelTarget) -> str:
    """The key and the value of its entry as JSON, which readers of YAML understand, too."""
    text = f"{json.dumps(target.file_system_id)}: {json.dumps(_render_entry(target))}"
    # YAML does not know this form, but the characters themselves.
    return _SURROGATES.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text)


def render_zones(targets: TunnelTargets) -> str:
    """The document for ``zones.yaml``: the zone of each subnet, which the older format does not contain."""
    return _dump({str(subnet): str(zone) for subnet, zone in sorted(targets.zone_by_subnet.items())})


def render_reserved(targets: TunnelTargets) -> str:
    """The document for ``reserved-ports.yaml``: the ports of deleted file systems."""
    return _dump({str(fs): port for fs, port in sorted(targets.reserved.items())})


def render_unused(targets: TunnelTargets) -> str:
    """The document for ``unused-targets.yaml``: the file systems whose ports nodes do not open."""
    # As YAML writes it, which would need 4 ms for a list of 500.
    return "".join(f"- {fs}\n" for fs in sorted(targets.unused)) or "[]\n"


def render_s3_files(targets: S3FilesTargets) -> str:
    """The document for ``s3-files.yaml``."""
    addresses = {str(fs): dict(sorted(one.items())) for fs, one in sorted(targets.addresses.items())}
    return _dump({"mount_targets": addresses, "zone_ids": dict(sorted(targets.zone_ids.items()))})


def _dump(value: object, *, sort_keys: bool = True) -> str:
    return yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=sort_keys)


def new_entries() -> TargetEntries[TunnelTarget | InvalidValue]:
    """The entries for ``parse_targets``, of a reader that gets one document after the other."""
    return TargetEntries(_load_entries, _parse_entry)


def parse_targets(
    text: str,
    zones_text: str = "",
    reserved_text: str = "",
    unused_text: str = "",
    s3_files_text: str = "",
    *,
    entries: TargetEntries[TunnelTarget | InvalidValue] | None = None,
) -> tuple[TunnelTargets, tuple[Rejection, ...]]:
    """The targets of a document, and the entries that are ignored.

    Raises InvalidValue if the document cannot be read. An invalid entry is ignored, so that it never affects
    other file systems. If two entries have the same port, the second is ignored. With the ``entries`` of the
    last call, only changed ones are parsed, and the others give the same targets.
    """
    targets: dict[FileSystemId, TunnelTarget] = {}
    rejections: list[Rejection] = []
    taken: set[int] = set()
    for key, target in (entries or new_entries()).read(text):
        if isinstance(target, InvalidValue):
            rejections.append(Rejection(entry=_key(key), error=target))
        elif target.port in taken:
            error = InvalidValue(
                "is the port of another file system", field=f"{key}.stunnel_port", value=target.port
            )
            rejections.append(Rejection(entry=_key(key), error=error))
        else:
            targets[target.file_system_id] = target
            taken.add(target.port)
    zones, bad_zones = _parse_zones(zones_text)
    reserved, bad_ports = _parse_reserved(reserved_text, targets)
    unused, bad_list = _parse_unused(unused_text, targets)
    s3_files, bad_addresses = _parse_s3_files(s3_files_text)
    found = TunnelTargets(
        targets=MappingProxyType(targets),
        zone_by_subnet=MappingProxyType(zones),
        reserved=MappingProxyType(reserved),
        unused=unused,
        s3_files=s3_files,
    )
    return found, (*rejections, *bad_zones, *bad_ports, *bad_list, *bad_addresses)


def _load_entries(text: str) -> Mapping[object, object]:
    document = _mapping(_load(text, CONFIG_MAP_KEY), CONFIG_MAP_KEY)
    return _mapping(document.get(TARGETS_KEY), TARGETS_KEY)


def _parse_entry(key: object, entry: object) -> TunnelTarget | InvalidValue:
    try:
        return _parse_target(key, entry)
    except InvalidValue as error:
        return error


def _load(text: str, what: str) -> object:
    # Nodes store JSON, which needs 1 ms of CPU time for 500 file systems.
    with suppress(ValueError, RecursionError):
        if text.startswith("{") and not _HALF.search(text):
            return json.loads(text)
    # With libyaml: 40 ms instead of 340 ms.
    try:
        return yaml.load(text, Loader=yaml.CSafeLoader)
    # ValueError: an invalid date; RecursionError: a thousand brackets. The library does not convert them.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidValue(
            f"is not YAML ({error})", field=what, remedy="delete it; it is written again"
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
        raise InvalidValue("is not a valid port", field=field_name, value=value, remedy="use 1024 to 65535")
    return value


def parse_address(value: object, *, field: str = "address") -> str:
    """An IPv4 or IPv6 address in its shortest form; raises InvalidValue for names and anything else."""
    try:
        if not isinstance(value, str):
            raise TypeError(value)
        address = ipaddress.ip_address(value)
    except (ValueError, TypeError) as error:
        raise InvalidValue(
            "is not an IP address", field=field, value=value, remedy="use an address, not a name"
        ) from error
    if getattr(address, "scope_id", None) is not None:
        raise InvalidValue("has a zone index", field=field, value=value, remedy="use a global address")
    if address.is_multicast or address.is_unspecified:
        raise InvalidValue(
            "is not the address of a host", field=field, value=value, remedy="use a mount target's address"
        )
    return str(address)


def parse_ca_file(value: object, *, field: str) -> str:
    """The path of a file of certificate authorities; raises InvalidValue unless it is absolute and plain.

    It has no component ``.`` or ``..``, and only characters that stunnel.conf can contain.
    """
    if not isinstance(value, str) or not _CA_FILE.fullmatch(value):
        raise InvalidValue(
            "is not a valid path",
            field=field,
            value=value,
            remedy="use an absolute path without .., of letters, digits and _.-",
        )
    return value


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


def _parse_reserved(
    text: str, targets: Mapping[FileSystemId, TunnelTarget]
) -> tuple[dict[FileSystemId, int], list[Rejection]]:
    reserved: dict[FileSystemId, int] = {}
    rejections: list[Rejection] = []
    try:
        entries = _mapping(_load(text, RESERVED_KEY), RESERVED_KEY)
    except InvalidValue as error:
        return {}, [Rejection(entry=RESERVED_KEY, error=error)]
    taken = {target.port for target in targets.values()}
    for key, value in entries.items():
        try:
            file_system_id, port = (
                parse_file_system_id(key),
                _parse_port(value, f"{RESERVED_KEY}: {_key(key)}"),
            )
            if file_system_id in targets or port in taken:
                raise InvalidValue(
                    "is a port or file system of the targets", field=RESERVED_KEY, value=_key(key)
                )
        except InvalidValue as error:
            rejections.append(Rejection(entry=f"{RESERVED_KEY}: {_key(key)}", error=error))
        else:
            reserved[file_system_id] = port
            taken.add(port)
    return reserved, rejections


def _parse_unused(
    text: str, targets: Mapping[FileSystemId, TunnelTarget]
) -> tuple[frozenset[FileSystemId], list[Rejection]]:
    """The unused file systems; none if the list is invalid, because a needed port must be open."""
    try:
        # YAML needs 4 ms for the list of 500 that the controller writes.
        entries = re.findall(r"fs-.*", text) if _PLAIN_LIST.fullmatch(text) else _load(text, UNUSED_KEY)
        if not isinstance(entries, list | None):
            raise InvalidValue("is not a list", field=UNUSED_KEY, value=entries)
        return frozenset(map(parse_file_system_id, entries or ())) & targets.keys(), []
    except InvalidValue as error:
        return frozenset(), [Rejection(entry=UNUSED_KEY, error=error)]


def _parse_s3_files(text: str) -> tuple[S3FilesTargets, list[Rejection]]:
    """What is known of S3 Files; nothing if the document is invalid, because DNS knows the rest."""
    try:
        document = _mapping(_load(text, S3_FILES_KEY), S3_FILES_KEY)
        addresses = {
            parse_file_system_id(key): MappingProxyType(
                {
                    parse_zone_name(zone): parse_address(address)
                    for zone, address in _mapping(entry, _key(key)).items()
                }
            )
            for key, entry in _mapping(document.get("mount_targets"), "mount_targets").items()
        }
        zones = _mapping(document.get("zone_ids"), "zone_ids")
        zone_ids = {parse_zone_name(name): parse_zone_name(zone_id) for name, zone_id in zones.items()}
    except InvalidValue as error:
        return S3FilesTargets(), [Rejection(entry=S3_FILES_KEY, error=error)]
    return S3FilesTargets(addresses=MappingProxyType(addresses), zone_ids=MappingProxyType(zone_ids)), []
