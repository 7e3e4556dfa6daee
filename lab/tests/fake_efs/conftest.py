"""Client certificates with EFS extensions, as efs-utils makes them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fake_efs.client_certificate import ACCESS_POINT_OID, FILE_SYSTEM_OID, IAM_OID

CertificateAndKey = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


@pytest.fixture
def make_client_certificate() -> Callable[..., CertificateAndKey]:
    """Make a self-signed certificate with these values (in DER) of the extensions."""

    def make(
        *, file_system: bytes | None = None, access_point: bytes | None = None, iam: bytes | None = None
    ) -> CertificateAndKey:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(minutes=15))
            .not_valid_after(now + timedelta(hours=3))
        )
        for oid, value in ((ACCESS_POINT_OID, access_point), (IAM_OID, iam), (FILE_SYSTEM_OID, file_system)):
            if value is not None:
                builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), critical=False)
        return builder.sign(key, hashes.SHA256()), key

    return make
