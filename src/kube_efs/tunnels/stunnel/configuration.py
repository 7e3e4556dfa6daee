"""stunnel.conf, from values that are checked once more where they enter the file.

Keys and values are those of openshift-efs-stunnel; a comment gives the reason for each difference. A line
break in a value could add a service to this file, or disable verification. The values are therefore checked
a second time here, whatever their source.
"""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kube_efs.model.efs.ids import parse_file_system_id
from kube_efs.model.efs.targets import LAST_PORT, parse_address
from kube_efs.model.errors import InvalidValue
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.mount_targets import NFS_PORT

_FIRST_PORT = 1024
_SECTION = re.compile(r"fs-[0-9a-z-]{1,60}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")
_PATH = re.compile(r"/[\w./+@:=-]*")

_GLOBAL = """\
# Written by kube-efs; changes are overwritten.
foreground = yes
fips = {fips}
syslog = no
; The agent finds its stunnel by command line, which cannot be stale as a file can.
pid =
; From this level on the log names services' bound ports, TLS version and cipher.
debug = info
socket = l:SO_REUSEADDR=yes
; A mount target that vanished sends nothing at all: without keepalive its connections,
; and the mounts on them, would hang. Detected after 10 + 3 * 5 s.
socket = r:SO_KEEPALIVE=yes
socket = r:TCP_KEEPIDLE=10
socket = r:TCP_KEEPINTVL=5
socket = r:TCP_KEEPCNT=3
"""

# delay = no where "connect" holds addresses only, so there is no name to look up later; "yes" would resolve
# the whole list for each connection and hide an unusable entry until the first mount. The order of failover
# is the same with both (tried with 5.68). A name needs "yes": looked up at each reload, one that is slow to
# resolve would stop every tunnel of the node, and a mount target with a new address would not be found.
# sni: left out, stunnel would send the address of the first "connect", which RFC 6066 (3) forbids.
# sessionResume: stunnel 5.68 keeps a session for each service and never frees it at a reload. It grows by
# 16 KiB a service and reload until its limit of memory ends it and cuts every mount. New in 5.60.
# CAfile or CApath: the older system has CAfile; ``authorities`` has the reason for CApath.
# TIMEOUTidle: keepalive does not find a vanished mount target while data is on its way there; TCP tries for a
# quarter of an hour. A client of NFS 4.1 renews its lease each minute, and it reconnects when it is wrong.
# TIMEOUTconnect: the default of 10 s for each dead mount target is longer than mount(8) should wait.
_SERVICE = """\

[{name}]
client = yes
accept = 127.0.0.1:{port}
{connect}
failover = prio
delay = {delay}
TIMEOUTconnect = {connect_timeout}
TIMEOUTbusy = 20
TIMEOUTclose = 0
TIMEOUTidle = 70
{authorities}
{certificate}verifyChain = yes
checkHost = {check_host}
sni = {check_host}
sslVersionMin = TLSv1.2
renegotiation = no
sessionResume = no
libwrap = no
OCSPaia = {ocsp}
"""

# The comment makes a renewed certificate a changed configuration, which stunnel then reloads.
_CERTIFICATE = """\
; number {serial:x}, valid until {not_after}
cert = {path}
"""


def render_configuration(
    services: Iterable[TunnelService], *, connect_timeout_seconds: float, fips: bool = False
) -> str:
    """The whole file, services by name; raises InvalidValue for a value that the file must not contain."""
    timeout = max(1, math.ceil(connect_timeout_seconds))
    ordered = sorted(services, key=lambda service: service.name)
    return _GLOBAL.format(fips="yes" if fips else "no") + "".join(
        _render_service(service, timeout) for service in ordered
    )


def read_configuration(path: Path) -> str:
    """The text of the file; empty if there is none, or if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def parse_configuration(text: str) -> Iterator[TunnelService]:
    """The services without a client certificate of a file that ``render_configuration`` gave; no others."""
    for section in text.split("\n[")[1:]:
        name, _, rest = section.partition("]\n")
        lines = [line.split(" = ", 1) for line in rest.splitlines() if " = " in line]
        values = dict(lines)
        with suppress(KeyError, ValueError, InvalidValue):
            if "cert" in values:
                continue
            service = TunnelService(
                name=name,
                file_system_id=parse_file_system_id(values["checkHost"].partition(".")[0]),
                port=int(values["accept"].rpartition(":")[2]),
                addresses=tuple(value.rpartition(":")[0] for key, value in lines if key == "connect"),
                check_host=values["checkHost"],
                ca_file=Path(values.get("CAfile") or values["CApath"]),
            )
            check_service(service)
            yield service


def _render_service(service: TunnelService, timeout: int) -> str:
    check_service(service)
    hashed = service.hashed_ca_directory
    # stunnel splits at the last colon and cannot resolve an IPv6 address in brackets (tried with 5.68).
    connect = "\n".join(f"connect = {address}:{NFS_PORT}" for address in service.addresses)
    return _SERVICE.format(
        name=service.name,
        port=service.port,
        connect=connect,
        connect_timeout=timeout,
        authorities=f"CApath = {hashed}" if hashed else f"CAfile = {service.ca_file}",
        check_host=service.check_host,
        certificate=_render_certificate(service.certificate) if service.certificate else "",
        delay="yes" if any(_is_own_name(service, address) for address in service.addresses) else "no",
        ocsp="yes" if service.checks_revocation else "no",
    )


def _render_certificate(certificate: CertificateFile) -> str:
    path = check_path(certificate.path, field="certificate")
    not_after = f"{certificate.not_after:%Y-%m-%dT%H:%M:%SZ}"
    return _CERTIFICATE.format(path=path, serial=certificate.serial, not_after=not_after)


def _is_own_name(service: TunnelService, address: str) -> bool:
    """Whether it is the file system's name, or that of its mount target in a zone."""
    return address == service.check_host or address.endswith(f".{service.check_host}")


def check_service(service: TunnelService) -> None:
    """Raise InvalidValue if the file must not contain a value of the service."""
    parse_file_system_id(service.file_system_id)
    _check(_SECTION, service.name, field="section name", remedy="use fs-, digits, letters and dashes")
    # bool is an int in Python.
    if type(service.port) is not int or not _FIRST_PORT <= service.port <= LAST_PORT:
        raise InvalidValue(
            "is not a valid port",
            field=f"{service.name}.port",
            value=service.port,
            remedy="use 1024 to 65535",
        )
    if not service.addresses:
        raise InvalidValue(
            "has no mount target", field=service.name, remedy="create a mount target for the file system"
        )
    for address in service.addresses:
        _check_connect(service, address)
    check_path(service.ca_file, field=f"{service.name}.CAfile")
    if service.hashed_ca_directory:
        check_path(service.hashed_ca_directory, field=f"{service.name}.CApath")
    _check(
        _HOST,
        service.check_host,
        field=f"{service.name}.checkHost",
        remedy="use a DNS name; check the region and the DNS suffix",
    )


def _check_connect(service: TunnelService, address: str) -> None:
    if _is_own_name(service, address):
        _check(_HOST, address, field=f"{service.name}.connect", remedy="use the file system's name")
    else:
        parse_address(address, field=f"{service.name}.connect")


def check_path(path: Path, *, field: str) -> Path:
    """The path; raises InvalidValue if it has spaces, line breaks or other special characters."""
    _check(_PATH, str(path), field=field, remedy="use an absolute path of letters, digits and ./+@:=_-")
    return path


def _check(pattern: re.Pattern[str], text: str, *, field: str, remedy: str) -> None:
    if not pattern.fullmatch(text):
        raise InvalidValue("must not enter stunnel.conf", field=field, value=text, remedy=remedy)


def section_at(configuration: str, line_number: int) -> str | None:
    """The section that a line (counted from 1) belongs to; None in the global part or outside the file."""
    section = None
    for number, line in enumerate(configuration.splitlines(), start=1):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        if number == line_number:
            return section
    return None
