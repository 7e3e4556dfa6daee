"""The connection for all calls to AWS: limits, retries and counts them, and translates errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioDeferredRefreshableCredentials
from aiobotocore.session import AioSession
from botocore import xform_name
from botocore.exceptions import NoCredentialsError
from prometheus_client import CollectorRegistry

from kube_efs.aws.attempts import note_attempts, noted_attempts
from kube_efs.aws.errors import InvalidAnswer, NoCredentialsYet, aws_errors, error_code, reading
from kube_efs.aws.requests import count_requests
from kube_efs.aws.session import new_session
from kube_efs.model.efs.ids import Region
from kube_efs.model.errors import KubeEfsError
from kube_efs.telemetry.metrics import AwsMetrics, Outcome
from kube_efs.telemetry.traces import span

# Clients get their methods at run time from service descriptions.
Client: TypeAlias = Any
Value = TypeVar("Value")


class Service(StrEnum):
    """The called services, with the names of the client library."""

    EFS = "efs"
    EC2 = "ec2"
    S3_FILES = "s3files"
    STS = "sts"


_IAM_PREFIXES: Final = {
    Service.EFS: "elasticfilesystem",
    Service.EC2: "ec2",
    Service.S3_FILES: "s3files",
    Service.STS: "sts",
}
# The only call that needs no credentials, because the token in it proves who calls.
_UNSIGNED: Final = "AssumeRoleWithWebIdentity"
# A look for credentials takes seconds where instance metadata does not answer.
_LOOK_AGAIN_SECONDS: Final = 10.0
# Instance metadata may not give credentials yet on a node that has just booted.
_BOOT_SECONDS: Final = 60.0
# For one attempt to connect.
_CONNECT_SECONDS: Final = 5.0
# Those whose requests the AWS driver counts, too.
_COUNTED: Final = frozenset({Service.EFS, Service.S3_FILES})


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsCredentials:
    """Fixed credentials; without them, the library's own chain finds some."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCredentials:
    """Credentials and their expiration in UTC, None for never."""

    credentials: AwsCredentials
    expires_at: datetime | None = None


CredentialsSource: TypeAlias = Callable[[], Awaitable[LoadedCredentials]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsOptions:
    """Options of the calls to AWS.

    ``endpoint_url`` None means AWS_ENDPOINT_URL in the environment (or AWS_ENDPOINT_URL_EFS for one service),
    otherwise AWS itself. ``credentials_source`` gives temporary credentials, such as those of a role, and is
    called again before they expire. ``call_timeout_seconds`` limits a call, or one page of a list, with all
    its retries and pauses; for a deletion, this includes the wait for other calls. ``read_timeout_seconds``
    limits one attempt. ``page_size`` is the maximum of EFS.
    """

    region: Region
    endpoint_url: str | None = None
    credentials: AwsCredentials | None = None
    credentials_source: CredentialsSource | None = None
    max_concurrency: int = 8
    max_attempts: int = 5
    read_timeout_seconds: float = 30.0
    # ``CALL_SECONDS`` of the backend ``csi`` relies on this limit.
    call_timeout_seconds: float = 120.0
    page_size: int = 100


class AwsConnection:
    """Calls by operation name while its context is open; the first call to a service creates its client.

    The service description of EC2 alone needs 22 MB of memory, and most processes never call EC2. ``close``
    releases the clients, also to save memory between calls: a later call creates them again.
    """

    def __init__(self, options: AwsOptions, metrics: AwsMetrics | None = None) -> None:
        self._options = options
        self._metrics = metrics or AwsMetrics(CollectorRegistry())
        self._session: AioSession | None = None
        self._clients: dict[Service, Client] = {}
        self._opening = asyncio.Lock()
        self._has_credentials = options.credentials is not None
        self._first_looked_at = inf
        self._look_again_at = 0.0
        self._slots = asyncio.Semaphore(options.max_concurrency)
        self._exit_stack = AsyncExitStack()
        self._running = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def is_busy(self) -> bool:
        """Whether a call is running."""
        return self._running > 0

    async def close(self) -> None:
        """Close the clients; no call may be running."""
        # The next call may come before this ends.
        clients, self._exit_stack = self._exit_stack, AsyncExitStack()
        self._clients.clear()
        self._session = None
        self._has_credentials = self._options.credentials is not None
        await clients.aclose()

    async def call(
        self, service: Service, operation: str, /, *, subject: object = "", **parameters: object
    ) -> Mapping[str, Any]:
        """The answer to one call; raises AwsError with ``subject`` as its value."""
        async with self._attempt(service, operation, subject) as (client, _deadline):
            method = getattr(client, xform_name(operation))
            answer: Mapping[str, Any] = await method(**parameters)
            self._count(service, operation, Outcome.SUCCEEDED)
        return answer

    async def list_all(
        self,
        service: Service,
        operation: str,
        key: str,
        /,
        *,
        subject: object = "",
        page_size: int | None = None,
        **parameters: object,
    ) -> list[Mapping[str, Any]]:
        """The items under ``key`` of all pages; raises AwsError, and never returns only a part."""
        return await self.read_all(
            service, operation, key, list, subject=subject, page_size=page_size, **parameters
        )

    async def read_all(
        self,
        service: Service,
        operation: str,
        key: str,
        read: Callable[[Iterable[Mapping[str, Any]]], Iterable[Value]],
        /,
        *,
        subject: object = "",
        page_size: int | None = None,
        **parameters: object,
    ) -> list[Value]:
        """The values that ``read`` makes of the items under ``key``, page by page to save memory.

        Raises AwsError, and never returns only a part.
        """
        values: list[Value] = []
        async with self._attempt(service, operation, subject) as (client, deadline):
            paging = {"PageSize": page_size or self._options.page_size}
            pages = client.get_paginator(xform_name(operation)).paginate(
                **parameters, PaginationConfig=paging
            )
            async for page in pages:
                with reading(operation, subject=subject):
                    values.extend(read(_items(page, key)))
                self._count(service, operation, Outcome.SUCCEEDED)
                deadline.reschedule(self._next_deadline())
        return values

    @asynccontextmanager
    async def _attempt(
        self, service: Service, operation: str, subject: object
    ) -> AsyncIterator[tuple[Client, asyncio.Timeout]]:
        # The wait for other calls is a part of the span.
        with span(f"aws.{_label(service, operation)}", subject=str(subject)):
            started = monotonic()
            iam_action = f"{_IAM_PREFIXES[service]}:{operation}"
            # A deletion was confirmed just before. While it waits for other calls, the confirmation ages.
            is_deletion = operation.startswith("Delete")
            self._running += 1
            try:
                with (
                    noted_attempts(),
                    aws_errors(operation, iam_action=iam_action, subject=subject),
                ):
                    # A slot is held until the last retry and page, so this also limits concurrent requests.
                    async with (
                        asyncio.timeout_at(self._next_deadline() if is_deletion else None) as deadline,
                        self._slots,
                    ):
                        started = monotonic()
                        if not is_deletion:
                            deadline.reschedule(self._next_deadline())
                        if operation != _UNSIGNED:
                            await self._find_credentials()
                        yield await self._client(service), deadline
            except KubeEfsError as error:
                self._count(service, operation, error_code(error))
                raise
            finally:
                self._running -= 1
                self._metrics.call_seconds.labels(_label(service, operation)).observe(monotonic() - started)

    def _next_deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._options.call_timeout_seconds

    def _count(self, service: Service, operation: str, outcome: str) -> None:
        self._metrics.calls.labels(_label(service, operation), outcome).inc()

    async def _find_credentials(self) -> None:
        """Raise NoCredentialsYet or NoCredentialsError while there are none; they are looked for again.

        A client that is created without credentials never gets any. Instance metadata may not answer yet when
        a node has just booted, and a Secret may be mounted later.
        """
        if self._has_credentials:
            return
        async with self._opening:
            if not self._has_credentials and monotonic() >= self._look_again_at:
                self._first_looked_at = min(self._first_looked_at, monotonic())
                self._has_credentials = await self._opened_session().get_credentials() is not None
                self._look_again_at = monotonic() + _LOOK_AGAIN_SECONDS
            if not self._has_credentials:
                is_early = monotonic() < self._first_looked_at + _BOOT_SECONDS
                raise NoCredentialsYet if is_early else NoCredentialsError

    async def _client(self, service: Service) -> Client:
        async with self._opening:
            if service not in self._clients:
                client = await self._exit_stack.enter_async_context(self._new_client(service))
                note_attempts(client)
                if service in _COUNTED and self._metrics.aws_driver is not None:
                    count_requests(client, self._metrics.aws_driver, service)
                self._clients[service] = client
        return self._clients[service]

    def _opened_session(self) -> AioSession:
        if self._session is None:
            self._session = new_session()
            if self._options.credentials_source:
                resolver = _Resolver(self._options.credentials_source)
                self._session.register_component("credential_provider", resolver)
        return self._session

    def _new_client(self, service: Service) -> Client:
        options = self._options
        config = AioConfig(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=options.read_timeout_seconds,
            max_pool_connections=options.max_concurrency,
            # "adaptive" slows this client down when AWS throttles, instead of only retrying.
            retries={"mode": "adaptive", "total_max_attempts": options.max_attempts},
        )
        credentials = options.credentials
        return self._opened_session().create_client(
            service.value,
            region_name=options.region,
            endpoint_url=options.endpoint_url,
            aws_access_key_id=credentials and credentials.access_key_id,
            aws_secret_access_key=credentials and credentials.secret_access_key,
            aws_session_token=credentials and credentials.session_token,
            config=config,
        )


def _label(service: Service, operation: str) -> str:
    """The operation in metrics; EFS and S3 Files have some of the same name."""
    return f"{service}:{operation}" if service is Service.S3_FILES else operation


def _items(page: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    """The items of a page; raises InvalidAnswer for a foreign answer, which would look like an empty page."""
    if key not in page and "RequestId" not in page["ResponseMetadata"]:
        raise InvalidAnswer(f"no {key} and no request ID")
    found: Iterable[Mapping[str, Any]] = page.get(key, ())
    return found


class _Resolver:
    """Gives the client library credentials that it must refresh."""

    def __init__(self, source: CredentialsSource) -> None:
        self._source = source

    async def load_credentials(self) -> AioDeferredRefreshableCredentials:
        return AioDeferredRefreshableCredentials(self._refresh, "kube-efs")

    async def _refresh(self) -> Mapping[str, str | None]:
        loaded = await self._source()
        return {
            "access_key": loaded.credentials.access_key_id,
            "secret_key": loaded.credentials.secret_access_key,
            "token": loaded.credentials.session_token,
            "expiry_time": (loaded.expires_at or datetime.max.replace(tzinfo=UTC)).isoformat(),
        }
