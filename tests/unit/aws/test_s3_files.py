"""What the calls to S3 Files remember of a denied one; tests/integration has the calls themselves."""

from collections.abc import Callable, Mapping
from typing import Any

from kube_efs.aws.connection import Service
from kube_efs.aws.s3_files import AwsS3Files
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsNotPermitted

FILE_SYSTEM, POINT = FileSystemId("fs-0123456789abcdef0"), AccessPointId("fsap-0123456789abcdef0")
ANSWER = {"accessPointId": POINT, "fileSystemId": FILE_SYSTEM, "clientToken": "token", "status": "available"}


class Account:
    """An account that allows GetAccessPoint or does not."""

    def __init__(self) -> None:
        self.allows_get = False
        self.calls: list[str] = []

    async def call(self, service: Service, operation: str, **_: object) -> Mapping[str, Any]:
        assert service is Service.S3_FILES
        self.calls.append(operation)
        if not self.allows_get:
            raise AwsNotPermitted("is not allowed", field=operation)
        return ANSWER

    async def read_all(
        self,
        service: Service,
        operation: str,
        key: str,
        parse: Callable[[list[object]], tuple[Any, ...]],
        **_: object,
    ) -> tuple[Any, ...]:
        assert (service, key) == (Service.S3_FILES, "accessPoints")
        self.calls.append(operation)
        return parse([{**ANSWER, "clientToken": ""}])


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
