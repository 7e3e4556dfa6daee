"""Errors of AWS and of its client library, as errors of kube-efs.

``translate`` judges by the error's code (https://docs.aws.amazon.com/efs/latest/ug/API_Operations.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html), then by its HTTP status.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp
from botocore import exceptions as boto

from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsDenied,
    AwsError,
    AwsLimitReached,
    AwsNotFound,
    AwsThrottled,
    AwsUnavailable,
    InvalidSetting,
    InvalidValue,
    KubeEfsError,
)


class OddAnswer(Exception):
    """An answer with a good status that AWS would not give, as from a proxy in between."""


# All that a call through aiobotocore can raise: the library's two roots, and what slips through from the
# HTTP client while an answer is being read. TimeoutError is an OSError.
FOREIGN_ERRORS: Final = (boto.BotoCoreError, boto.ClientError, aiohttp.ClientError, OSError, OddAnswer)
# What else the library lets out when an answer's JSON does not have the shape that it takes for granted.
_SHAPE_ERRORS: Final = (AttributeError, LookupError, TypeError, ValueError)

_CREDENTIAL_ERRORS: Final = (
    boto.CredentialRetrievalError,
    boto.LoginError,
    boto.MetadataRetrievalError,
    boto.NoAuthTokenError,
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.RefreshWithMFAUnsupportedError,
    boto.SSOError,
    boto.TokenRetrievalError,
    boto.UnknownCredentialError,
    boto.UnknownTokenProviderError,
)
_SETTING_ERRORS: Final = (
    boto.BaseEndpointResolverError,
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.EndpointProviderError,
    boto.InvalidConfigError,
    boto.InvalidDefaultsMode,
    boto.InvalidEndpointConfigurationError,
    boto.InvalidIMDSEndpointError,
    boto.InvalidIMDSEndpointModeError,
    boto.InvalidProxiesConfigError,
    boto.InvalidRegionError,
    boto.InvalidRetryConfigurationError,
    boto.InvalidSTSRegionalEndpointsConfigError,
    boto.ProfileNotFound,
    boto.ServiceNotInRegionError,
    boto.UnknownRegionError,
)
_REQUEST_ERRORS: Final = (boto.MissingParametersError, boto.ParamValidationError, boto.ValidationError)

_THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)
_LIMIT_CODES: Final = frozenset(
    {
        "InsufficientFreeAddressesInSubnet",
        "InsufficientThroughputCapacity",
        "NoFreeAddressesInSubnet",
    }
)
_PERMISSION_CODES: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "NotAuthorized", "UnauthorizedOperation", "UnauthorizedAccess"}
)
_CREDENTIAL_CODES: Final = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidIdentityToken",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_CREDENTIALS_REMEDY: Final = "give this process valid AWS credentials, best by a role of its service account"


def translate(error: Exception, *, operation: str, iam_action: str, subject: object = "") -> KubeEfsError:
    """The error to raise for one of FOREIGN_ERRORS; its cause is for the caller to chain.

    ``field`` is the operation and ``value`` the resource that it was about. Mostly an AwsError;
    InvalidSetting when the library's own configuration is at fault, InvalidValue when the request was
    refused before it was sent.
    """
    kind, problem, remedy = _judge(error, iam_action)
    translated = kind(problem, field=operation, value=subject, remedy=remedy)
    if isinstance(translated, AwsAlreadyExists) and isinstance(error, boto.ClientError):
        translated.existing = str(error.response.get("AccessPointId") or "")
    return translated


@contextmanager
def answer_read() -> Iterator[None]:
    """Raises one of FOREIGN_ERRORS for whatever reading an answer raises inside."""
    try:
        yield
    except FOREIGN_ERRORS:  # some of them are ValueErrors too
        raise
    except _SHAPE_ERRORS as error:
        raise OddAnswer(f"{type(error).__name__}: {error}") from error


def error_code(error: BaseException) -> str:
    """AWS's code of an error, translated or not, such as ``FileSystemNotFound``; else its class's name."""
    if isinstance(error, AwsError) and error.__cause__ is not None:
        return error_code(error.__cause__)
    if isinstance(error, boto.ClientError):
        return str(error.response.get("Error", {}).get("Code") or "Unknown")
    return type(error).__name__


def _judge(error: Exception, iam_action: str) -> tuple[type[KubeEfsError], str, str]:
    if isinstance(error, boto.ClientError):
        return _judge_answer(error, iam_action)
    if isinstance(error, _CREDENTIAL_ERRORS):
        return AwsDenied, f"could not be signed ({error})", _CREDENTIALS_REMEDY
    if isinstance(error, _SETTING_ERRORS):
        return InvalidSetting, f"could not be sent ({error})", "correct the AWS configuration of this process"
    if isinstance(error, _REQUEST_ERRORS):
        return InvalidValue, f"was not sent ({error})", ""
    return AwsUnavailable, _absence(error), ""


def _absence(error: Exception) -> str:
    if isinstance(error, OddAnswer):
        return f"gave an answer that is not AWS's ({error})"
    if isinstance(error, TimeoutError) and not str(error):
        return "was not answered in time"
    return f"was not answered ({error})"


def _judge_answer(error: boto.ClientError, iam_action: str) -> tuple[type[KubeEfsError], str, str]:
    code = error_code(error)
    message = str(error.response.get("Error", {}).get("Message") or "no message")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    problem = f"was answered with {code} ({message})"
    if code in _THROTTLING_CODES or status == 429:
        return AwsThrottled, problem, ""
    if code in _LIMIT_CODES or code.endswith("LimitExceeded"):
        return AwsLimitReached, problem, "remove what is not needed or ask AWS for a higher quota"
    if code.endswith(("NotFound", "AlreadyExists")) or status == 404:
        return AwsAlreadyExists if code.endswith("AlreadyExists") else AwsNotFound, problem, ""
    if code in _CREDENTIAL_CODES:
        return AwsDenied, problem, _CREDENTIALS_REMEDY
    if code in _PERMISSION_CODES or status in {401, 403}:
        return AwsDenied, problem, f"allow {iam_action} to the role of this process"
    return AwsUnavailable, problem, ""
