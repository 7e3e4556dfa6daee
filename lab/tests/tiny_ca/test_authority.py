"""The laptop's certificate authority: what a client that trusts it accepts."""

import ssl
import tempfile
from contextlib import suppress

import pytest
from cryptography import x509

from fake_efs.file_systems import server_names
from kube_efs.model.efs.ids import FileSystemId, Region
from tiny_ca.authority import Authority, ServerCertificate, trusting

NAME = "fs-0123456789abcdef0.efs.eu-west-1.amazonaws.com"
NAMES = server_names(FileSystemId("fs-0123456789abcdef0"), Region("eu-west-1"))


def verify(authority: Authority, served: ServerCertificate, name: str) -> None:
    """Check chain, validity and name as a client does; raises SSLCertVerificationError."""
    settings = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(served.secret_pem())
        file.flush()
        settings.load_cert_chain(file.name)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(authority.pem).wrap_bio(to_client, to_server, server_hostname=name)
    server = settings.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert client.version()


@pytest.mark.parametrize("name", [NAME, f"eu-west-1a.{NAME}"], ids=["file system", "mount target of a zone"])
def test_names_of_the_file_system_are_accepted(name: str) -> None:
    authority = Authority.create()
    verify(authority, authority.issue(NAMES), name)


def test_another_file_systems_name_is_not_accepted() -> None:
    authority = Authority.create()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        verify(authority, authority.issue(NAMES), "fs-99999999.efs.eu-west-1.amazonaws.com")


def test_another_authority_of_the_same_name_is_not_accepted() -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="signature failure"):
        verify(Authority.create(), Authority.create().issue(NAMES), NAME)


def test_a_name_too_long_for_a_common_name_is_still_issued() -> None:
    authority = Authority.create()
    long_name = f"fs-{'a' * 40}.efs.ap-southeast-4.amazonaws.com"
    verify(authority, authority.issue([long_name]), long_name)


def test_keys_are_not_shown() -> None:
    authority = Authority.create()
    assert "private_key" not in repr(authority)
    assert "private_key" not in repr(authority.issue(NAMES))


def test_pem_is_the_root_certificate() -> None:
    authority = Authority.create()
    assert x509.load_pem_x509_certificate(authority.pem.encode()) == authority.certificate
