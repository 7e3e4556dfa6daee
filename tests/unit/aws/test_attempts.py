"""Failed calls say whether AWS may have carried out an attempt; the library shows only the last one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from tests.serving import answering, serving

from kube_efs.aws.connection import AwsConnection, AwsCredentials, AwsOptions, LoadedCredentials, Service
from kube_efs.model.efs.ids import Region
from kube_efs.model.errors import (
    AwsDenied,
    AwsError,
    AwsLimitReached,
    AwsNotPermitted,
    AwsRefused,
    AwsThrottled,
    AwsUnavailable,
)

CREDENTIALS = AwsCredentials(access_key_id="AKIA", secret_access_key="secret")


@dataclass
class Aws:
    """Gives one answer after the other, and lets the credentials for further attempts be refused."""

    answers: list[str] = field(default_factory=list)
    refuses_after: int = 100
    signed: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        status, _, code = self.answers.pop(0).partition(" ")
        if status == "lost":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if status == "200":
            return web.json_response({"AccessPoints": [], "NextToken": "more"})
        headers = {"x-amzn-ErrorType": code, "x-amzn-RequestId": "r-1"}
        return web.json_response({"ErrorCode": code}, status=int(status), headers=headers)

    async def credentials(self) -> LoadedCredentials:
        self.signed += 1
        if self.signed > self.refuses_after:
            raise AwsDenied("was answered with AccessDenied", field="AssumeRoleWithWebIdentity")
        # They expire so soon that the library renews them for each attempt.
        return LoadedCredentials(
            credentials=CREDENTIALS, expires_at=datetime.now(UTC) + timedelta(seconds=30)
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AwsConnection]:
        async with serving(answering(self.answer)) as url:
            options = AwsOptions(
                region=Region("eu-west-1"),
                endpoint_url=url,
                credentials_source=self.credentials,
                max_attempts=len(self.answers) or 1,
            )
            async with AwsConnection(options) as connection:
                yield connection


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_self: object, _seconds: float) -> None:
        """The pause between two attempts."""

    monkeypatch.setattr("aiobotocore.endpoint.AioEndpoint._sleep", sleep)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["403 AccessDenied"], AwsNotPermitted),
        (["400 BadRequest"], AwsRefused),
        (["429 ThrottlingException", "429 ThrottlingException"], AwsThrottled),
        (["503 RequestLimitExceeded", "403 AccessDenied"], AwsNotPermitted),
        (["403 Unheard-of"], AwsDenied),
    ],
)
async def test_call_whose_attempts_were_all_refused_is_clear(
    answers: list[str], expected: type[AwsError]
) -> None:
    error = await failure(Aws(answers))
    assert (type(error), error.is_unclear) == (expected, False)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["lost"], AwsUnavailable),
        (["lost", "403 AccessDenied"], AwsNotPermitted),
        (["lost", "429 ThrottlingException"], AwsThrottled),
        (["500 InternalServerError", "429 ThrottlingException", "403 AccessDenied"], AwsNotPermitted),
        # A refusal says nothing about the request before.
        (["500 InternalServerError", "400 BadRequest"], AwsUnavailable),
        (["502 ", "409 AccessPointLimitExceeded"], AwsLimitReached),
    ],
)
async def test_call_is_unclear_after_an_attempt_that_aws_may_have_carried_out(
    answers: list[str], expected: type[AwsError]
) -> None:
    error = await failure(Aws(answers))
    assert (type(error), error.is_unclear) == (expected, True)


@pytest.mark.parametrize(("signed", "is_unclear"), [(0, False), (1, True)])
async def test_refused_credentials_of_a_repetition_say_nothing_about_the_first_attempt(
    signed: int, *, is_unclear: bool
) -> None:
    error = await failure(Aws(["lost", "not sent"], refuses_after=signed))
    assert (type(error), error.is_unclear) == (AwsDenied, is_unclear)


async def test_each_call_has_its_own_attempts() -> None:
    aws = Aws(["lost", "403 AccessDenied"])
    async with aws.connection() as connection:
        assert (await failure_of(connection)).is_unclear
        aws.answers.append("403 AccessDenied")
        assert not (await failure_of(connection)).is_unclear


async def test_refusal_of_a_later_page_of_a_list_is_a_refusal() -> None:
    async with Aws(["200", "400 BadRequest"]).connection() as connection:
        with pytest.raises(AwsRefused):
            await connection.list_all(Service.EFS, "DescribeAccessPoints", "AccessPoints")


async def failure(aws: Aws) -> AwsError:
    async with aws.connection() as connection:
        return await failure_of(connection)


async def failure_of(connection: AwsConnection) -> AwsError:
    with pytest.raises(AwsError) as caught:
        await connection.call(
            Service.EFS, "CreateAccessPoint", ClientToken="token", FileSystemId="fs-0123abcd"
        )
    return caught.value
