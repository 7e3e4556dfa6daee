"""What the calls to S3 Files remember, and what they read; tests/integration has the calls themselves."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kube_efs.aws.connection import Service
from kube_efs.aws.s3_files import AwsS3Files
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import LifeCycleState
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsNoCredentialsYet, AwsNotFound, AwsNotListed, AwsNotPermitted

FILE_SYSTEM, POINT = FileSystemId("fs-0123456789abcdef0"), AccessPointId("fsap-0123456789abcdef0")
ANSWER = {"accessPointId": POINT, "fileSystemId": FILE_SYSTEM, "clientToken": "token", "status": "available"}


class Account:
    """An account that allows GetAccessPoint or does not."""

    def __init__(self) -> None:
        self.allows_get = False
        self.error = AwsNotPermitted("is not allowed", field="GetAccessPoint")
        self.omits = False
        self.status = "available"
        self.calls: list[str] = []

    async def call(self, service: Service, operation: str, **_: object) -> Mapping[str, Any]:
        assert service is Service.S3_FILES
        self.calls.append(operation)
        if operation == "DeleteAccessPoint":
            return {}
        if not self.allows_get:
            raise self.error
        return ANSWER

    async def read_all(
        self,
        service: Service,
        operation: str,
        key: str,
        parse: Callable[[list[object]], tuple[Any, ...]],
        **_: object,
    ) -> tuple[Any, ...]:
        assert service is Service.S3_FILES
        self.calls.append(operation)
        if key == "fileSystems":
            return parse([{"fileSystemId": FILE_SYSTEM, "status": self.status}])
        assert key == "accessPoints"
        return parse([] if self.omits else [{**ANSWER, "clientToken": ""}])


async def test_denied_access_points_are_listed_until_the_call_is_tried_again() -> None:
    account, now = Account(), [1000.0]
    calls = AwsS3Files(account, clock=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(3):
        assert (await calls.get(POINT, FILE_SYSTEM)).client_token == ""
    assert account.calls == ["GetAccessPoint", "ListAccessPoints", "ListAccessPoints", "ListAccessPoints"]

    account.allows_get = True
    now[0] += 600
    assert (await calls.get(POINT, FILE_SYSTEM)).client_token == "token"
    assert (await calls.get(POINT, FILE_SYSTEM)).client_token == "token"


async def test_call_without_credentials_is_no_denied_one() -> None:
    account = Account()
    calls = AwsS3Files(account)  # type: ignore[arg-type]
    account.error = AwsNoCredentialsYet("could not be signed", field="GetAccessPoint")
    with pytest.raises(AwsNoCredentialsYet):
        await calls.get(POINT, FILE_SYSTEM)
    account.allows_get = True
    assert (await calls.get(POINT, FILE_SYSTEM)).client_token == "token"


async def test_access_point_that_lists_omit_is_not_found_only_after_a_minute() -> None:
    """A list may omit a new one."""
    account, now = Account(), [1000.0]
    calls = AwsS3Files(account, clock=lambda: now[0])  # type: ignore[arg-type]
    account.omits = True
    for now[0] in (1000.0, 1059.0):
        with pytest.raises(AwsNotListed, match=f"{POINT}.*is not in the list.*s3files:GetAccessPoint"):
            await calls.get(POINT, FILE_SYSTEM)
    now[0] = 1060.0
    with pytest.raises(AwsNotFound):
        await calls.get(POINT, FILE_SYSTEM)
    account.omits = False
    assert (await calls.get(POINT, FILE_SYSTEM)).access_point_id == POINT
    # What was asked long ago needs no memory.
    account.omits = True
    now[0] += 3600
    for other in ("fsap-00000000000000001", "fsap-00000000000000002"):
        with pytest.raises(AwsNotListed):
            await calls.get(AccessPointId(other), FILE_SYSTEM)
    assert POINT not in calls._proven_from


async def test_minute_of_an_omitted_access_point_begins_with_the_answer() -> None:
    """A slow list may say what was true long after it began."""
    account, now = Account(), [1000.0]
    calls = AwsS3Files(account, clock=lambda: now[0])  # type: ignore[arg-type]
    account.omits, read_all = True, account.read_all

    async def read_slowly(*given: Any, **named: Any) -> tuple[Any, ...]:
        now[0] += 100
        return await read_all(*given, **named)

    account.read_all = read_slowly  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(AwsNotListed):
            await calls.get(POINT, FILE_SYSTEM)
    with pytest.raises(AwsNotFound):
        await calls.get(POINT, FILE_SYSTEM)


async def test_deleted_access_point_is_not_found_as_soon_as_lists_omit_it() -> None:
    account = Account()
    calls = AwsS3Files(account)  # type: ignore[arg-type]
    await calls.delete(POINT)
    assert (await calls.get(POINT, FILE_SYSTEM)).access_point_id == POINT
    account.omits = True
    with pytest.raises(AwsNotFound):
        await calls.get(POINT, FILE_SYSTEM)


async def test_deletions_are_remembered_for_an_hour() -> None:
    account, now = Account(), [1000.0]
    account.allows_get = True
    calls = AwsS3Files(account, clock=lambda: now[0])  # type: ignore[arg-type]
    for number in range(300):
        now[0] += 60
        await calls.delete(AccessPointId(f"fsap-{number:017x}"))
        await calls.delete(POINT)
    assert len(calls._proven_from) <= 61


async def test_misconfigured_file_system_is_listed() -> None:
    account = Account()
    account.status = "misconfigured"
    (found,) = await AwsS3Files(account).file_systems()  # type: ignore[arg-type]
    assert (found.file_system_id, found.state) == (FILE_SYSTEM, LifeCycleState.MISCONFIGURED)
