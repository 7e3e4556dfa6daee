"""EFS and S3 Files in this AWS account, and EFS in the accounts of roles in provisioner secrets."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

from kube_efs.aws.connection import AwsConnection, AwsOptions
from kube_efs.aws.credentials import assume_role
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.telemetry.metrics import AwsMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The calls to AWS in one account, and its known access points on each kind of file systems."""

    gateway: AwsGateway
    access_points: Mapping[FileSystemKind, AccessPoints]


class Accounts(AbstractAsyncContextManager["Accounts"]):
    """Every account in use, with its clients and known access points; use as ``async with``."""

    def __init__(
        self,
        own: AwsGateway,
        options: AwsOptions,
        metrics: AwsMetrics,
        access_points_of: Callable[[AwsGateway], Mapping[FileSystemKind, AccessPoints]],
    ) -> None:
        self._options = options
        self._metrics = metrics
        self._access_points_of = access_points_of
        self._own = Account(gateway=own, access_points=access_points_of(own))
        self._others: dict[tuple[str, str | None], Account] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self._connection = await self._stack.enter_async_context(AwsConnection(self._options, self._metrics))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def of(self, role: CrossAccountRole | None) -> Account:
        """The account of the role, or this account without a role; makes no call to AWS."""
        if role is None:
            return self._own
        key = (role.role_arn, role.external_id)
        if key not in self._others:
            credentials = partial(assume_role, self._connection, role.role_arn, external_id=role.external_id)
            gateway = AwsGateway(replace(self._options, credentials_source=credentials), self._metrics)
            # This makes no call, so no other task can do the same meanwhile.
            await self._stack.enter_async_context(gateway)
            self._others[key] = Account(gateway=gateway, access_points=self._access_points_of(gateway))
        return self._others[key]

    @property
    def counts(self) -> Mapping[FileSystemId, int]:
        """The number of access points of each file system that was listed."""
        accounts = (self._own, *self._others.values())
        known = [points.known for one in accounts for points in one.access_points.values()]
        return {name: count for points in known for name, count in points.counts.items()}

    async def refresh(self) -> None:
        """List the access points of every account again; raises AwsError."""
        for account in (self._own, *self._others.values()):
            for points in account.access_points.values():
                await points.known.refresh_known()
