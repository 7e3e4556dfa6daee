"""The extensions of a client's certificate: known good ones, and ones that somebody made up."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_efs.client_certificate import (
    ANONYMOUS,
    IAM_OID,
    ClientCertificate,
    IamSignature,
    check_validity,
    read_client_certificate,
)
from fake_efs.errors import InvalidValue
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId

Make = Callable[..., tuple[Any, Any]]

FILE_SYSTEM = b"\x0c\x0bfs-01234567"
ACCESS_POINT = b"\x0c\x0dfsap-01234567"
KEY, SIGNATURE, TIME = b"\x0c\x02AK", b"\x04\x40" + b"0" * 64, b"\x17\x0d260228120000Z"
TOKEN = b"\xa0\x08\x0c\x06secret"

# What efs-utils itself has made.
_VECTORS_FILE = Path(__file__).parents[3] / "tests/unit/tunnels/on_demand/vectors/efs-client-certificate.json"
VECTORS = json.loads(_VECTORS_FILE.read_text(encoding="utf-8"))["vectors"]


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        pytest.param({}, ANONYMOUS, id="no extension"),
        pytest.param(
            {"file_system": FILE_SYSTEM},
            ClientCertificate(file_system_id=FileSystemId("fs-01234567")),
            id="file system",
        ),
        pytest.param(
            {"file_system": FILE_SYSTEM, "access_point": ACCESS_POINT},
            ClientCertificate(
                file_system_id=FileSystemId("fs-01234567"), access_point_id=AccessPointId("fsap-01234567")
            ),
            id="file system and access point",
        ),
    ],
)
def test_extensions_are_read(
    extensions: dict[str, bytes], expected: ClientCertificate, make_client_certificate: Make
) -> None:
    certificate, _ = make_client_certificate(**extensions)
    assert read_client_certificate(certificate) == expected


def test_no_certificate_is_anonymous() -> None:
    assert read_client_certificate(None) == ANONYMOUS


@pytest.mark.parametrize(
    ("extensions", "field", "problem"),
    [
        pytest.param({"file_system": b""}, "file system extension", "is not a UTF8String", id="empty"),
        pytest.param(
            {"file_system": b"\x04\x0bfs-01234567"},
            "file system extension",
            "is not a UTF8String",
            id="another type",
        ),
        pytest.param(
            {"file_system": b"\x0c\x0afs-01234567"},
            "file system extension",
            "is not a UTF8String",
            id="bytes behind the text",
        ),
        pytest.param(
            {"file_system": b"\x0c\x0cfs-01234567"},
            "file system extension",
            "is not a UTF8String",
            id="cut off",
        ),
        pytest.param(
            {"file_system": b"\x0c\x81\x0bfs-01234567"},
            "file system extension",
            "is not a UTF8String",
            id="long form of a short length",
        ),
        pytest.param(
            {"file_system": b"\x0c\x01\xff"}, "file system extension", "is not a UTF8String", id="not UTF-8"
        ),
        pytest.param(
            {"file_system": b"\x0c\x06fs-../"},
            "file system extension",
            "is not a valid file system ID",
            id="no file system id",
        ),
        pytest.param(
            {"access_point": b"\x0c\x0bfs-01234567"},
            "access point extension",
            "is not a valid access point ID",
            id="file system id as access point",
        ),
    ],
)
def test_malformed_extensions_are_refused(
    extensions: dict[str, bytes], field: str, problem: str, make_client_certificate: Make
) -> None:
    certificate, _ = make_client_certificate(**extensions)
    with pytest.raises(InvalidValue) as caught:
        read_client_certificate(certificate)
    assert (caught.value.field, caught.value.problem) == (field, problem)


@given(value=st.binary(max_size=200))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_an_id_or_a_refusal(value: bytes, make_client_certificate: Make) -> None:
    certificate, _ = make_client_certificate(file_system=value)
    try:
        identity = read_client_certificate(certificate)
    except InvalidValue:
        return
    assert identity.file_system_id is not None
    assert value[2:].decode() == identity.file_system_id


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # efs-utils begins with 0
@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["id"]) for vector in VECTORS])
def test_certificates_of_efs_utils_are_read(vector: dict[str, Any]) -> None:
    inputs, expected = vector["inputs"], vector["expected"]
    certificate = x509.load_pem_x509_certificate(expected["certificate_pem"].encode())
    date = datetime.fromisoformat(inputs["date"])
    signature = IamSignature(
        public_key_hash=expected["public_key_hash"],
        access_key_id=inputs["access_key_id"],
        signature=expected["signature"],
        signed_at=date,
        session_token=inputs["session_token"],
    )
    assert read_client_certificate(certificate) == ClientCertificate(
        file_system_id=inputs["file_system_id"],
        access_point_id=inputs["access_point_id"],
        iam=signature if inputs["access_key_id"] else None,
    )
    check_validity(certificate, date)
    for moment in (date - timedelta(hours=1), date + timedelta(hours=4)):
        with pytest.raises(InvalidValue, match=r"client certificate: is valid from .* to .* only"):
            check_validity(certificate, moment)


def sequence(*elements: bytes) -> bytes:
    content = b"".join(elements)
    return b"\x30" + (bytes([len(content)]) if len(content) < 128 else bytes([0x81, len(content)])) + content


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"", "ShortData", id="empty"),
        pytest.param(KEY, "UnexpectedTag", id="no sequence"),
        pytest.param(sequence(KEY, SIGNATURE), "ShortData", id="no time"),
        pytest.param(sequence(SIGNATURE, KEY, TIME), "UnexpectedTag", id="another order"),
        pytest.param(sequence(KEY, SIGNATURE, TIME, TOKEN, TOKEN), "ExtraData", id="two tokens"),
        pytest.param(sequence(KEY, SIGNATURE, TIME)[:-1], "ShortData", id="cut off"),
        pytest.param(
            sequence(KEY, b"\x04\x20" + bytes(32), TIME), "is not 64 hexadecimal digits", id="raw signature"
        ),
        pytest.param(sequence(KEY, SIGNATURE, b"\x17\x0d260230120000Z"), "InvalidValue", id="30 February"),
        pytest.param(sequence(KEY, SIGNATURE, b"\x17\x0b2602281200Z"), "InvalidValue", id="no seconds"),
        pytest.param(sequence(b"\x0c\x01\xff", SIGNATURE, TIME), "InvalidValue", id="key id not UTF-8"),
        pytest.param(
            sequence(KEY, SIGNATURE, TIME, b"\xa0\x08\x04\x06secret"),
            "UnexpectedTag",
            id="other token",
        ),
        pytest.param(sequence(KEY, SIGNATURE, TIME, TOKEN), "is of a key that is not RSA", id="another key"),
    ],
)
def test_malformed_iam_extensions_are_refused_without_showing_them(
    value: bytes, reason: str, make_client_certificate: Make
) -> None:
    certificate, _ = make_client_certificate(iam=value)
    assert certificate.extensions.get_extension_for_oid(IAM_OID).value.public_bytes() == value
    with pytest.raises(InvalidValue, match=reason) as caught:
        read_client_certificate(certificate)
    assert (caught.value.field, caught.value.value) == ("IAM extension", "")
    assert "secret" not in str(caught.value)
