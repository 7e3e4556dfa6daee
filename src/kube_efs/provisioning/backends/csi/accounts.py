"""EFS and S3 Files in this AWS account, and EFS in the accounts of roles in provisioner secrets."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeAlias

from kube_efs.aws.connection import AwsConnection, AwsOptions
from kube_efs.aws.credentials import assume_role
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.telemetry.metrics import AwsMetrics

# The clients of an account need 1.2 MB.
_MOST_OPEN: Final = 16

_Key: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The calls to AWS in one account, and its known access points on each kind of file systems."""

    gateway: AwsGateway
    access_points: Mapping[FileSystemKind, AccessPoints]


@dataclass(slots=True, kw_only=True)
class _Other:
    """The account of a role, and how many callers use it."""

    account: Account
    users: int = 0


class Accounts(AbstractAsyncContextManager["Accounts"]):
    """Every account in use, with its clients and known access points; use as ``async with``.

    Users of claims may write the Secrets with the roles, so any number of roles can appear. Of the accounts
    that nothing uses, only the ``most_open`` last used ones keep their clients. An account whose clients are
    closed is forgotten if no access point of it is known and no outcome of a creation is unknown.
    """

    def __init__(
        self,
        own: AwsGateway,
        options: AwsOptions,
        metrics: AwsMetrics,
        access_points_of: Callable[[AwsGateway], Mapping[FileSystemKind, AccessPoints]],
        *,
        most_open: int = _MOST_OPEN,
    ) -> None:
        self._options = options
        self._metrics = metrics
        self._access_points_of = access_points_of
        self._most_open = most_open
        self._own = Account(gateway=own, access_points=access_points_of(own))
        self._others: dict[_Key, _Other] = {}
        # Those that may have clients; the most recently used one is the last.
        self._open: dict[_Key, _Other] = {}
        self._connection = AwsConnection(self._options, self._metrics)

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for other in self._others.values():
            await other.account.gateway.close()
        await self._connection.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def of(self, role: CrossAccountRole | None) -> AsyncIterator[Account]:
        """The account of the role, or this account without a role; makes no call to AWS.

        Use it only inside the context.
        """
        if role is None:
            yield self._own
            return
        key = (role.role_arn, role.external_id)
        other = self._open.pop(key, None) or self._others.get(key)
        if other is None:
            credentials = partial(assume_role, self._connection, role.role_arn, external_id=role.external_id)
            gateway = AwsGateway(replace(self._options, credentials_source=credentials), self._metrics)
            account = Account(gateway=gateway, access_points=self._access_points_of(gateway))
            other = self._others[key] = _Other(account=account)
        self._open[key] = other
        other.users += 1
        try:
            yield other.account
        finally:
            other.users -= 1
            await self._close_unused()

    async def _close_unused(self) -> None:
        for key, other in list(self._open.items())[: -self._most_open]:
            # Others may use or close it while this closes an earlier one. A list that several callers share
            # continues after they were cancelled.
            if other.users or other.account.gateway.is_busy or self._open.get(key) is not other:
                continue
            del self._open[key]
            if all(points.is_blank for points in other.account.access_points.values()):
                del self._others[key]
            await other.account.gateway.close()

    def known(self) -> Iterator[Account]:
        """This account, and those of roles that are not forgotten."""
        yield self._own
        for other in self._others.values():
            yield other.account

    @property
    def counts(self) -> Mapping[FileSystemId, int]:
        """The number of access points of each file system that was listed."""
        known = [points.known for one in self.known() for points in one.access_points.values()]
        return {name: count for points in known for name, count in points.counts.items()}

    async def refresh(self) -> None:
        """List the access points of every account again; a failure is only logged."""
        roles = [
            CrossAccountRole(role_arn=role_arn, external_id=external_id)
            for role_arn, external_id in self._others
        ]
        for role in (None, *roles):
            async with self.of(role) as account:
                for points in account.access_points.values():
                    await points.known.refresh_known()
