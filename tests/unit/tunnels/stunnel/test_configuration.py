"""stunnel.conf: the complete file, and values that it must never contain."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import InvalidValue
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.stunnel.configuration import (
    check_path,
    check_service,
    parse_configuration,
    render_configuration,
    section_at,
)

CA = Path("/etc/amazon/efs/efs-utils.crt")
SERVICE = TunnelService(
    name="fs-1",
    file_system_id=FileSystemId("fs-1"),
    port=20490,
    addresses=("10.0.1.1", "10.0.2.1", "fd00::1"),
    check_host="fs-1.efs.us-east-1.amazonaws.com",
    ca_file=CA,
)
OTHER = replace(
    SERVICE,
    name="fs-0abc",
    file_system_id=FileSystemId("fs-0abc"),
    port=20491,
    addresses=("10.0.9.1",),
    check_host="fs-0abc.efs.us-east-1.amazonaws.com",
)

CERTIFICATE = CertificateFile(path=Path("/a.pem"), serial=1, not_after=datetime(2026, 1, 1, tzinfo=UTC))
EXPECTED = """\
# Written by kube-efs; changes are overwritten.
foreground = yes
fips = no
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

[fs-0abc]
client = yes
accept = 127.0.0.1:20491
connect = 10.0.9.1:2049
failover = prio
delay = no
TIMEOUTconnect = 2
TIMEOUTbusy = 20
TIMEOUTclose = 0
TIMEOUTidle = 70
CAfile = /etc/amazon/efs/efs-utils.crt
verifyChain = yes
checkHost = fs-0abc.efs.us-east-1.amazonaws.com
sni = fs-0abc.efs.us-east-1.amazonaws.com
sslVersionMin = TLSv1.2
renegotiation = no
sessionResume = no
libwrap = no
OCSPaia = no

[fs-1]
client = yes
accept = 127.0.0.1:20490
connect = 10.0.1.1:2049
connect = 10.0.2.1:2049
connect = fd00::1:2049
failover = prio
delay = no
TIMEOUTconnect = 2
TIMEOUTbusy = 20
TIMEOUTclose = 0
TIMEOUTidle = 70
CAfile = /etc/amazon/efs/efs-utils.crt
verifyChain = yes
checkHost = fs-1.efs.us-east-1.amazonaws.com
sni = fs-1.efs.us-east-1.amazonaws.com
sslVersionMin = TLSv1.2
renegotiation = no
sessionResume = no
libwrap = no
OCSPaia = no
"""


ON_DEMAND = TunnelService(
    name="fs-1-6c2c8d8b7b3417ff",
    file_system_id=FileSystemId("fs-1"),
    port=22049,
    addresses=("us-east-1a.fs-1.efs.us-east-1.amazonaws.com",),
    check_host="fs-1.efs.us-east-1.amazonaws.com",
    ca_file=CA,
    certificate=CertificateFile(
        path=Path("/state/stunnel.certificates/fs-1-6c2c8d8b7b3417ff.pem"),
        serial=0xABC,
        not_after=datetime(2026, 11, 21, 14, tzinfo=UTC),
    ),
    checks_revocation=True,
)
EXPECTED_ON_DEMAND = """\

[fs-1-6c2c8d8b7b3417ff]
client = yes
accept = 127.0.0.1:22049
connect = us-east-1a.fs-1.efs.us-east-1.amazonaws.com:2049
failover = prio
delay = yes
TIMEOUTconnect = 2
TIMEOUTbusy = 20
TIMEOUTclose = 0
TIMEOUTidle = 70
CAfile = /etc/amazon/efs/efs-utils.crt
; number abc, valid until 2026-11-21T14:00:00Z
cert = /state/stunnel.certificates/fs-1-6c2c8d8b7b3417ff.pem
verifyChain = yes
checkHost = fs-1.efs.us-east-1.amazonaws.com
sni = fs-1.efs.us-east-1.amazonaws.com
sslVersionMin = TLSv1.2
renegotiation = no
sessionResume = no
libwrap = no
OCSPaia = yes
"""


def render(*services: TunnelService, seconds: float = 2.0) -> str:
    return render_configuration(services, connect_timeout_seconds=seconds)


def test_complete_file_is_rendered() -> None:
    assert render(SERVICE, OTHER) == EXPECTED


def test_fips_mode_is_a_global_option() -> None:
    text = render_configuration([SERVICE, OTHER], connect_timeout_seconds=2.0, fips=True)
    assert text == EXPECTED.replace("fips = no", "fips = yes")


def test_tunnel_on_demand_has_a_certificate_and_may_have_a_name() -> None:
    assert render(SERVICE, OTHER, ON_DEMAND) == EXPECTED + EXPECTED_ON_DEMAND


def test_renewed_certificate_is_a_changed_configuration() -> None:
    assert ON_DEMAND.certificate
    renewed = replace(ON_DEMAND, certificate=replace(ON_DEMAND.certificate, serial=0xABD))
    assert render(renewed) != render(ON_DEMAND)


def test_path_of_a_certificate_is_checked() -> None:
    assert ON_DEMAND.certificate
    forged = replace(ON_DEMAND.certificate, path=Path("/a.pem\nverifyChain = no"))
    with pytest.raises(InvalidValue, match=r"certificate: .* must not enter stunnel.conf"):
        render(replace(ON_DEMAND, certificate=forged))


def test_directory_of_authorities_replaces_their_file() -> None:
    text = render(replace(SERVICE, hashed_ca_directory=Path("/ca.d")))
    assert text == render(SERVICE).replace("CAfile = /etc/amazon/efs/efs-utils.crt", "CApath = /ca.d")


def test_order_of_services_does_not_matter() -> None:
    assert render(OTHER, SERVICE) == render(SERVICE, OTHER)


@pytest.mark.parametrize(("seconds", "line"), [(0.2, "TIMEOUTconnect = 1"), (1.5, "TIMEOUTconnect = 2")])
def test_fractions_of_a_second_are_rounded_up_for_stunnel(seconds: float, line: str) -> None:
    assert line in render(SERVICE, seconds=seconds).splitlines()


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        pytest.param({"name": "fs-1]\n[evil"}, "section name", id="name with a forged section"),
        pytest.param({"name": "evil"}, "section name", id="name that is not a file system ID"),
        pytest.param({"file_system_id": "fs-1\n"}, "file system ID", id="line break in the id"),
        pytest.param({"port": 1023}, "fs-1.port", id="privileged port"),
        pytest.param({"port": 65536}, "fs-1.port", id="no port"),
        pytest.param({"port": True}, "fs-1.port", id="boolean"),
        pytest.param({"port": "20490\nverifyChain = no"}, "fs-1.port", id="text instead of a port"),
        pytest.param({"addresses": ()}, "fs-1", id="no address"),
        pytest.param({"addresses": ("10.0.0.1", "evil.example.com")}, "fs-1.connect", id="name"),
        pytest.param(
            {"addresses": ("a b.fs-1.efs.us-east-1.amazonaws.com",)}, "fs-1.connect", id="name with a space"
        ),
        pytest.param(
            {"addresses": ("fs-2.efs.us-east-1.amazonaws.com",)},
            "fs-1.connect",
            id="name of another file system",
        ),
        pytest.param({"addresses": ("10.0.0.1\nverifyChain = no",)}, "fs-1.connect", id="forged line"),
        pytest.param({"addresses": ("0.0.0.0",)}, "fs-1.connect", id="unspecified address"),
        pytest.param({"addresses": ("fe80::1%eth0",)}, "fs-1.connect", id="address with an interface"),
        pytest.param({"check_host": "a.b\nverifyChain = no"}, "fs-1.checkHost", id="invalid host"),
        pytest.param(
            {"hashed_ca_directory": Path("/ca.d\nverifyChain = no")}, "fs-1.CApath", id="forged directory"
        ),
        pytest.param({"check_host": "*"}, "fs-1.checkHost", id="wildcard host"),
        pytest.param({"check_host": ""}, "fs-1.checkHost", id="no host"),
    ],
)
def test_invalid_values_are_refused(bad: dict[str, object], field: str) -> None:
    service = replace(SERVICE, **bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue) as refused:
        check_service(service)
    assert refused.value.field == field
    assert refused.value.problem
    with pytest.raises(InvalidValue):
        render(service)


@pytest.mark.parametrize("path", ["relative", "/a b", "/a\nb", "/a;b", "/a#b", ""])
def test_paths_with_special_characters_are_refused(path: str) -> None:
    with pytest.raises(InvalidValue, match=r"CA file: .*must not enter stunnel.conf; use an absolute path"):
        check_path(Path(path), field="CA file")


@given(name=st.text(), address=st.text(), host=st.text(), port=st.integers())
def test_no_text_can_add_a_line(name: str, address: str, host: str, port: int) -> None:
    service = replace(SERVICE, name=name, addresses=(address,), check_host=host, port=port)
    try:
        rendered = render(service)
    except InvalidValue:
        return
    assert len(rendered.splitlines()) == len(render(OTHER).splitlines())
    assert rendered.isascii()


@pytest.mark.parametrize(
    ("line", "section"),
    [(1, None), (15, None), (17, "fs-0abc"), (20, "fs-0abc"), (37, "fs-1"), (999, None), (0, None)],
)
def test_section_is_found_by_its_line_number(line: int, section: str | None) -> None:
    assert section_at(EXPECTED, line) == section


def test_services_without_a_certificate_are_read_from_the_file() -> None:
    leaving = replace(SERVICE, name="fs-1-20492", port=20492)
    of_mount = replace(SERVICE, name="fs-1-0123456789abcdef", port=20493, certificate=CERTIFICATE)
    text = render_configuration([SERVICE, leaving, of_mount, OTHER], connect_timeout_seconds=2.0)
    assert list(parse_configuration(text)) == [OTHER, SERVICE, leaving]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        pytest.param("accept = 127.0.0.1:20490", "accept = all", id="no port"),
        pytest.param("checkHost = fs-1.efs.us-east-1.amazonaws.com\n", "", id="no file system"),
        pytest.param("connect = 10.0.1.1:2049", "connect = elsewhere:2049", id="a name as address"),
        pytest.param("[fs-1]", "[x]", id="another name"),
    ],
)
def test_service_that_cannot_be_read_affects_no_other(good: str, bad: str) -> None:
    text = render_configuration([SERVICE, OTHER], connect_timeout_seconds=2.0)
    assert good in text
    assert list(parse_configuration(text.replace(good, bad))) == [OTHER]


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert list(parse_configuration(f"\n[{text}")) == []
