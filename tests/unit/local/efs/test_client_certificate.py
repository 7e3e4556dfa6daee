"""The extensions of a client's certificate: known good ones, and ones that somebody made up."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kube_efs.local.efs.client_certificate import (
    ANONYMOUS,
    AccessPointId,
    ClientCertificate,
    read_client_certificate,
)
from kube_efs.model.errors import InvalidValue
from kube_efs.model.ids import FileSystemId

Make = Callable[..., tuple[Any, Any]]

FILE_SYSTEM = b"\x0c\x0bfs-01234567"
ACCESS_POINT = b"\x0c\x0dfsap-01234567"


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
        pytest.param({"file_system": b""}, "file system extension", "is no UTF8String", id="empty"),
        pytest.param(
            {"file_system": b"\x04\x0bfs-01234567"},
            "file system extension",
            "is no UTF8String",
            id="another type",
        ),
        pytest.param(
            {"file_system": b"\x0c\x0afs-01234567"},
            "file system extension",
            "is no UTF8String",
            id="bytes behind the text",
        ),
        pytest.param(
            {"file_system": b"\x0c\x0cfs-01234567"}, "file system extension", "is no UTF8String", id="cut off"
        ),
        pytest.param(
            {"file_system": b"\x0c\x81\x0bfs-01234567"},
            "file system extension",
            "is no UTF8String",
            id="long form of a short length",
        ),
        pytest.param(
            {"file_system": b"\x0c\x01\xff"}, "file system extension", "is not UTF-8", id="not UTF-8"
        ),
        pytest.param(
            {"file_system": b"\x0c\x06fs-../"}, "file system id", "is not acceptable", id="no file system id"
        ),
        pytest.param(
            {"access_point": b"\x0c\x0bfs-01234567"},
            "access point extension",
            "is no access point id",
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
