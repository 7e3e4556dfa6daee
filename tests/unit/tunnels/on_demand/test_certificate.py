"""Client certificates: all vectors of efs-utils, and the improvements."""

import base64
import json
import re
import ssl
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from fake_efs.client_certificate import ClientCertificate as Seen
from fake_efs.client_certificate import read_client_certificate
from kube_efs.aws.connection import AwsCredentials
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.tunnels.on_demand import certificate as certificates
from kube_efs.tunnels.on_demand.certificate import (
    IAM_OID,
    CertificateSubject,
    ClientCertificate,
    ClientKey,
    make_certificate,
)
from kube_efs.tunnels.on_demand.signature import ConnectRequest, canonical_request, sign, string_to_sign
from kube_efs.tunnels.options import ClientInfo

_VECTORS = [
    {**vector, "kind": kind}
    for name, kind in (("efs", FileSystemKind.EFS), ("s3-files", FileSystemKind.S3_FILES))
    for vector in json.loads(
        (Path(__file__).parent / f"vectors/{name}-client-certificate.json").read_text(encoding="utf-8")
    )["vectors"]
]
_each = pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["id"]) for vector in _VECTORS])
_each_signed = pytest.mark.parametrize(
    "vector",
    [pytest.param(vector, id=vector["id"]) for vector in _VECTORS if vector["expected"]["signature"]],
)

Vector = dict[str, Any]
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SUBJECT = CertificateSubject(
    node="node-1", file_system_id=FileSystemId("fs-01234567"), region=Region("eu-west-1")
)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture(scope="module")
def key() -> ClientKey:
    pem = _VECTORS[0]["inputs"]["private_key_pem"].encode()
    private_key = serialization.load_pem_private_key(pem, password=None)
    assert isinstance(private_key, rsa.RSAPrivateKey)
    return ClientKey(private_key)


def _subject(vector: Vector) -> CertificateSubject:
    inputs = vector["inputs"]
    info = inputs["client_info"]
    return CertificateSubject(
        node=inputs["common_name"],
        file_system_id=FileSystemId(inputs["file_system_id"]),
        kind=vector["kind"],
        region=Region(inputs["region"]),
        access_point_id=inputs["access_point_id"],
        client_info=info and ClientInfo.of(info["source"], info["efs_utils_version"]),
    )


def _credentials(vector: Vector) -> AwsCredentials | None:
    inputs = vector["inputs"]
    if inputs["access_key_id"] is None:
        return None
    return AwsCredentials(
        access_key_id=inputs["access_key_id"],
        secret_access_key=inputs["secret_access_key"],
        session_token=inputs["session_token"],
    )


def _request(vector: Vector) -> ConnectRequest:
    inputs = vector["inputs"]
    return ConnectRequest(
        file_system_id=FileSystemId(inputs["file_system_id"]),
        kind=vector["kind"],
        region=Region(inputs["region"]),
        public_key_hash=vector["expected"]["public_key_hash"],
        access_key_id=inputs["access_key_id"],
        session_token=inputs["session_token"],
        signed_at=_time(inputs["date"]),
    )


def _made(vector: Vector, key: ClientKey) -> ClientCertificate:
    return make_certificate(
        _subject(vector), key, now=_time(vector["inputs"]["date"]), credentials=_credentials(vector)
    )


def _x509(made: ClientCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.secret_pem)


def _values(certificate: x509.Certificate) -> dict[str, str]:
    return {
        extension.oid.dotted_string: extension.value.public_bytes().hex()
        for extension in certificate.extensions
    }


def test_all_vectors_exist() -> None:
    signed = [vector for vector in _VECTORS if vector["expected"]["signature"]]
    for kind, number, with_signature in ((FileSystemKind.EFS, 8, 6), (FileSystemKind.S3_FILES, 3, 3)):
        assert sum(vector["kind"] is kind for vector in _VECTORS) == number
        assert sum(vector["kind"] is kind for vector in signed) == with_signature


@_each
def test_key_hash_matches_the_vector(vector: Vector, key: ClientKey) -> None:
    assert key.public_key_hash == vector["expected"]["public_key_hash"]
    assert key.secret_pem().decode() == vector["inputs"]["private_key_pem"]


@_each_signed
def test_signature_and_its_steps_match_the_vector(vector: Vector) -> None:
    expected, request = vector["expected"], _request(vector)
    assert canonical_request(request) == expected["canonical_request"]
    assert string_to_sign(request) == expected["string_to_sign"]
    assert sign(request, vector["inputs"]["secret_access_key"]) == expected["signature"]


@_each
def test_extensions_and_their_order_match_the_vector(vector: Vector, key: ClientKey) -> None:
    expected = vector["expected"]
    values = _values(_x509(_made(vector, key)))
    assert list(values) == expected["extension_order"]
    assert values.pop("2.5.29.14") == "0414" + expected["public_key_hash"]
    assert values == {oid: der for oid, der in expected["extensions"].items() if der}


@_each
def test_subject_and_validity_match_the_vector(vector: Vector, key: ClientKey) -> None:
    expected = vector["expected"]
    made = _made(vector, key)
    certificate = _x509(made)
    assert certificate.subject.rfc4514_string() == f"CN={expected['common_name']}"
    assert certificate.issuer == certificate.subject
    assert certificate.not_valid_before_utc == _time(expected["not_before"])
    assert certificate.not_valid_after_utc == made.not_after == _time(expected["not_after"])


@_each
def test_signed_content_except_the_serial_number_matches_the_vector(vector: Vector, key: ClientKey) -> None:
    certificate = _x509(_made(vector, key))
    behind_serial = _behind_serial(certificate.tbs_certificate_bytes)
    # The golden certificates have the serial number 0, which libraries will soon refuse to read.
    golden = _behind_serial(_golden_tbs(vector))
    assert behind_serial == golden


def _golden_tbs(vector: Vector) -> bytes:
    body = re.sub("-----.*?-----", "", vector["expected"]["certificate_pem"])
    der = base64.b64decode(body)
    return der[4 : 8 + int.from_bytes(der[6:8], "big")]


def _behind_serial(tbs: bytes) -> bytes:
    assert tbs[0:2] == b"\x30\x82"
    assert tbs[4:10] == bytes.fromhex("a0030201 0202")  # version 3, INTEGER
    return tbs[11 + tbs[10] :]


@_each
def test_certificate_is_signed_by_its_own_key(vector: Vector, key: ClientKey) -> None:
    certificate = _x509(_made(vector, key))
    certificate.verify_directly_issued_by(certificate)
    assert certificate.serial_number > 0


@_each
def test_embedded_front_reads_the_certificate(vector: Vector, key: ClientKey) -> None:
    seen = read_client_certificate(_x509(_made(vector, key)))
    inputs = vector["inputs"]
    assert (seen.file_system_id, seen.access_point_id) == (
        inputs["file_system_id"],
        inputs["access_point_id"],
    )
    assert isinstance(seen, Seen)


def test_certificates_have_unique_serial_numbers(key: ClientKey) -> None:
    numbers = {_x509(make_certificate(SUBJECT, key, now=NOW)).serial_number for _ in range(5)}
    assert len(numbers) == 5


def test_text_is_a_key_and_a_certificate_for_openssl(key: ClientKey, tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    file.write_bytes(make_certificate(SUBJECT, key, now=datetime.now(UTC)).secret_pem)
    ssl.create_default_context().load_cert_chain(file)


async def test_new_key_matches_efs_utils() -> None:
    key = await ClientKey.generate()
    numbers = key.private_key.public_key().public_numbers()
    assert (key.private_key.key_size, numbers.e) == (3072, 65537)


def test_times_are_in_utc_and_whole_seconds(key: ClientKey) -> None:
    there = datetime(2026, 11, 21, 14, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    credentials = AwsCredentials(access_key_id="AKIA", secret_access_key="secret")
    made = make_certificate(SUBJECT, key, now=there, credentials=credentials)
    certificate = _x509(made)
    iam = certificate.extensions.get_extension_for_oid(IAM_OID).value.public_bytes()
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=15)
    assert iam.endswith(b"\x17\x0d261121120000Z")


def test_node_name_is_truncated_to_64_characters(key: ClientKey) -> None:
    subject = CertificateSubject(node="n" * 65, file_system_id=SUBJECT.file_system_id, region=SUBJECT.region)
    certificate = _x509(make_certificate(subject, key, now=NOW))
    assert certificate.subject.rfc4514_string() == "CN=" + "n" * 64


@pytest.mark.parametrize(
    ("left", "until_renewal"),
    [
        pytest.param(None, timedelta(hours=1), id="without expiring credentials"),
        pytest.param(
            timedelta(hours=6), timedelta(hours=1), id="credentials with a longer life than the certificate"
        ),
        pytest.param(timedelta(hours=2), timedelta(hours=1), id="limit"),
        pytest.param(timedelta(hours=1), timedelta(minutes=30), id="session of an hour"),
        pytest.param(timedelta(minutes=4), timedelta(minutes=2), id="credentials about to expire"),
        pytest.param(timedelta(seconds=10), timedelta(seconds=30), id="seconds before the end"),
        pytest.param(timedelta(minutes=-5), timedelta(seconds=30), id="expired"),
    ],
)
def test_renewal_is_due_at_a_share_of_both_lives(
    left: timedelta | None, until_renewal: timedelta, key: ClientKey
) -> None:
    made = make_certificate(SUBJECT, key, now=NOW, credentials_expire_at=None if left is None else NOW + left)
    assert made.renew_at == NOW + until_renewal


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        pytest.param("k8s", "k8s", id="driver"),
        pytest.param("", "unknown", id="empty"),
        pytest.param("s" * 100, "s" * 100, id="maximum length"),
        pytest.param("s" * 101, "unknown", id="too long"),
    ],
)
def test_client_info_is_read_from_its_source(source: str, shown: str) -> None:
    assert ClientInfo.of(source, "1.0") == ClientInfo(source=shown, version="1.0")


def test_repr_contains_no_secret(key: ClientKey) -> None:
    vector = _VECTORS[0]
    made, request = _made(vector, key), _request(vector)
    shown = " ".join(map(repr, (made, request, key, _credentials(vector))))
    inputs = vector["inputs"]
    assert inputs["access_key_id"] in shown
    assert [
        name
        for name in ("secret_access_key", "session_token")
        if inputs[name] in shown or inputs[name][:20] in shown
    ] == []
    assert "PRIVATE KEY" not in shown
    assert "CERTIFICATE" not in shown


@given(text=st.text(max_size=400))
def test_any_text_is_encoded_as_one_utf8_string_of_its_length(text: str) -> None:
    der = certificates._text(text)
    content = text.encode()
    size = len(content)
    lead = b"\x0c" + (
        bytes([size]) if size < 128 else b"\x81" + bytes([size]) if size < 256 else b"\x82" + size.to_bytes(2)
    )
    assert der == lead + content
