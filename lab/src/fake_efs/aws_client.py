"""Calls to the AWS API on this machine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aiobotocore.session import get_session
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from fake_efs.errors import AwsError, AwsNotFound

_CALL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An access key, with a token if it is that of a session."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


# The secret is removed from logs wherever it stands, so it is not a word of other names.
CREDENTIALS: Final = Credentials(access_key_id="embedded", secret_access_key="nobodys-secret")  # noqa: S106


# Those of a CSI driver whose calls a policy restricts.
DRIVER: Final = Credentials(access_key_id="driver", secret_access_key="nobodys-secret-either")  # noqa: S106


class AwsCalls(Protocol):
    """One service of the AWS API."""

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """The answer to a call; raises AwsNotFound and AwsError."""
        ...


class AwsClient:
    """One service of the AWS API, by the library of AWS."""

    def __init__(self, client: Any, call_seconds: float = _CALL_SECONDS) -> None:  # noqa: ANN401 - has no types
        self._client = client
        self._call_seconds = call_seconds

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """The answer to a call; raises AwsNotFound and AwsError."""
        try:
            async with asyncio.timeout(self._call_seconds):
                answer: Mapping[str, Any] = await getattr(self._client, xform_name(operation))(**parameters)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            kind = AwsNotFound if code.endswith("NotFound") else AwsError
            raise kind(str(error), field=operation) from error
        except (BotoCoreError, TimeoutError) as error:
            raise AwsError(f"failed ({error!r})", field=operation) from error
        return answer

    async def list_all(self, operation: str, key: str, **parameters: object) -> list[Mapping[str, Any]]:
        """The items under ``key`` of all pages; raises AwsError."""
        answer = await self.call(operation, **parameters)
        found = list(answer[key])
        while marker := answer.get("NextMarker"):
            answer = await self.call(operation, **parameters, Marker=marker)
            found += answer[key]
        return found


class RememberingClient:
    """Remembers answers to calls, and that something is not there, until ``changes`` gives another number.

    To ask at each connection of each probe what nobody has changed would keep a processor busy.
    """

    def __init__(self, calls: AwsCalls, changes: Callable[[], int]) -> None:
        self._calls = calls
        self._changes = changes
        self._changes_seen = -1
        self._answers: dict[object, Mapping[str, Any] | AwsNotFound] = {}

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """The answer to this call since the last change; raises AwsNotFound and AwsError."""
        changes = self._changes()
        if changes != self._changes_seen:
            self._changes_seen, self._answers = changes, {}
        answers, question = self._answers, (operation, *sorted(parameters.items()))
        if question not in answers:
            try:
                answers[question] = await self._calls.call(operation, **parameters)
            except AwsNotFound as error:
                answers[question] = error
        answer = answers[question]
        if isinstance(answer, AwsNotFound):
            raise answer
        return answer


@asynccontextmanager
async def aws_client(
    service: str,
    endpoint_url: str,
    region: str,
    *,
    credentials: Credentials = CREDENTIALS,
    call_seconds: float = _CALL_SECONDS,
) -> AsyncIterator[AwsClient]:
    """A client of a service, by the library's name of it, while the context is open."""
    opening = get_session().create_client(
        service,
        region_name=region,
        endpoint_url=endpoint_url,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
    )
    async with opening as client:
        yield AwsClient(client, call_seconds)
