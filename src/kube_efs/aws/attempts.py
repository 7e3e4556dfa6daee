"""Whether AWS may have carried out an attempt of a call although the call fails.

The library repeats a request that was not answered, and raises only the last error. That may be the refusal
of a repetition, or of credentials for it, and says nothing about the request before. So a hook of the library
sees each attempt.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from kube_efs.aws.errors import is_clear_refusal
from kube_efs.model.errors import AwsError, AwsRefused, AwsUnavailable, KubeEfsError


@dataclass(slots=True)
class _Attempts:
    """The attempts of one call so far."""

    are_unclear: bool = False


# The hook gets nothing from the caller, but the library calls it in the task of the call.
_current: Final[ContextVar[_Attempts | None]] = ContextVar("attempts", default=None)


@contextmanager
def noted_attempts() -> Iterator[None]:
    """Mark an error of the block's call with ``is_unclear`` if AWS may have carried out one of its attempts.

    Such an error is an AwsError, and not AwsRefused.
    """
    attempts = _Attempts()
    token = _current.set(attempts)
    try:
        yield
    except KubeEfsError as error:
        if not attempts.are_unclear:
            raise
        if isinstance(error, AwsError) and not isinstance(error, AwsRefused):
            error.is_unclear = True
            raise
        unclear = AwsUnavailable(error.problem, field=error.field, value=error.value, remedy=error.remedy)
        unclear.code = error.code if isinstance(error, AwsError) else ""
        unclear.is_unclear = True
        raise unclear from None
    finally:
        _current.reset(token)


def note_attempts(client: Any) -> None:  # noqa: ANN401 - see connection.Client
    """Note every attempt of this client of the library from now on."""

    def response_received(*, parsed_response: Mapping[str, Any] | None, **_given: object) -> None:
        attempts = _current.get()
        if attempts is not None and (parsed_response is None or not _is_clear(parsed_response)):
            attempts.are_unclear = True

    client.meta.events.register("response-received", response_received)


def _is_clear(answer: Mapping[str, Any]) -> bool:
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    return status < 300 or is_clear_refusal(answer.get("Error", {}).get("Code"), status)
