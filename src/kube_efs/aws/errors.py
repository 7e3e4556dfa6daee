"""The boundary to AWS: translates all exceptions of calls and of reading answers into errors of kube-efs.

``aws_errors`` surrounds every call with AWS's client library and every other call to AWS. ``reading``
surrounds the code that parses answers. The library raises more than its own errors, for example when its
parser gets an unexpected answer. So both translate every exception, not only known ones.

Messages contain no part of an answer, neither of AWS nor of a proxy or a program of a profile. STS repeats
the refused token, programs print keys, and messages are written to logs, events and answers to the kubelet.
So a message contains only our own values (the call, the resource, the permission), the HTTP status, AWS's
error code if it has the form of one, and class names of exceptions. It does not contain the message of AWS:
no rule distinguishes a harmless message from one that quotes a secret. It contains texts of the library only
if they consist of its configuration (``_TEXTS_OF_CONFIGURATION``). The original error is not chained, because
a traceback would print it (``from None``). AWS's request ID is omitted, too: it would make each message, and
so each event, different.

``translate`` uses the error's code (https://docs.aws.amazon.com/efs/latest/ug/API_Operations.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html), then its HTTP status.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import aiohttp
from botocore import exceptions as boto

from kube_efs.model.csi.volume_handles import parse_access_point_id
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsDenied,
    AwsError,
    AwsInvalidAnswer,
    AwsLimitReached,
    AwsNoCredentialsYet,
    AwsNotFound,
    AwsNotPermitted,
    AwsRefused,
    AwsThrottled,
    AwsUnavailable,
    InvalidSetting,
    InvalidValue,
    KubeEfsError,
)


class InvalidAnswer(Exception):
    """An answer with a good status that is not from AWS, for example from a proxy; the text is ours."""


class NoCredentialsYet(boto.NoCredentialsError):  # type: ignore[misc]  # the library has no types
    """No credentials were found, but they may still appear by themselves."""


# The exceptions without an answer. All other unknown exceptions come from reading an answer.
_NO_ANSWER: Final = (boto.BotoCoreError, aiohttp.ClientError, OSError)

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

# Their texts contain only settings, names in profile files, and parameters of a request.
_TEXTS_OF_CONFIGURATION: Final = (
    boto.InfiniteLoopConfigError,
    boto.InvalidConfigError,
    boto.NoCredentialsError,
    boto.NoRegionError,
    boto.ParamValidationError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.UnknownCredentialError,
)

THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
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
        "TransactionInProgressException",
    }
)
_THROTTLING_REMEDY: Final = "try again later, or request a higher rate of calls from AWS"
_QUOTA_REMEDY: Final = "remove unused resources or request a higher quota from AWS"
_SUBNET_REMEDY: Final = "use a larger subnet, or free addresses in it"
# The codes of limits, beside all that end in LimitExceeded. The alert EFSAwsLimitReached names them, too.
LIMIT_REMEDIES: Final = MappingProxyType(
    {
        "InsufficientFreeAddressesInSubnet": _SUBNET_REMEDY,
        "InsufficientThroughputCapacity": "provision less throughput, or use elastic throughput",
        "NoFreeAddressesInSubnet": _SUBNET_REMEDY,
        "ServiceQuotaExceededException": _QUOTA_REMEDY,  # S3 Files
    }
)
_ELSEWHERE: Final = "the region and the account"
# What is not found, and what is refused.
_REMEDIES: Final = MappingProxyType(
    {
        "AccessPointNotFound": f"check the access point, {_ELSEWHERE}",
        "FileSystemNotFound": f"check the file system (fileSystemId in a class), {_ELSEWHERE}",
        "IncorrectFileSystemLifeCycleState": "wait until the file system is available",
        "InvalidSubnetID.NotFound": f"check the subnets (subnetIds in a class), {_ELSEWHERE}",
        "SubnetNotFound": f"check the subnets (subnetIds in a class), {_ELSEWHERE}",
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
_CREDENTIALS_REMEDY: Final = (
    "give this process valid AWS credentials, preferably with a role of its service account"
)


# AWS's codes are words, such as InvalidPermission.Duplicate. Secrets contain digits or other characters.
_CODE_WORD: Final = r"[A-Z](?:[A-Za-z]|(?<=[Pp]v)[46]){1,63}"
_CODE: Final = re.compile(rf"{_CODE_WORD}(?:\.{_CODE_WORD})?")
_UNKNOWN_CODE: Final = "Unknown"
_FIELD: Final = re.compile(r"[A-Za-z]{1,40}")
_SSL_REASON: Final = re.compile(r"[A-Z0-9_]{1,60}")
_CAUSES_MOST: Final = 8


@contextmanager
def aws_errors(
    operation: str, *, iam_action: str = "", subject: object = "", remedy: str = ""
) -> Iterator[None]:
    """Translate every exception of the block into an error of kube-efs; those of kube-efs are not changed.

    The arguments are those of ``translate``. A cancellation passes.
    """
    try:
        yield
    except KubeEfsError:
        raise
    except Exception as error:  # noqa: BLE001 - the libraries raise anything
        raise translate(
            error, operation=operation, iam_action=iam_action, subject=subject, remedy=remedy
        ) from None


@contextmanager
def reading(operation: str, *, subject: object = "") -> Iterator[None]:
    """Raise AwsInvalidAnswer for every exception of the block, which parses an answer."""
    try:
        yield
    except AwsError:
        raise
    except Exception as error:  # noqa: BLE001 - an answer may be anything
        raise AwsInvalidAnswer(_invalid_answer(error), field=operation, value=subject) from None


def translate(
    error: Exception, *, operation: str, iam_action: str, subject: object = "", remedy: str = ""
) -> KubeEfsError:
    """The error of kube-efs for any other, to raise without chaining.

    ``field`` is the operation and ``value`` its resource. ``remedy`` is used if no server answers. The result
    is usually an AwsError. It is InvalidSetting when the library's own configuration is invalid, and
    InvalidValue when the library has refused the request.
    """
    kind, problem, own_remedy = _judge(error, iam_action, remedy)
    translated = kind(problem, field=operation, value=subject, remedy=own_remedy)
    if isinstance(translated, AwsError):
        translated.code = error_code(error)
    if isinstance(translated, AwsAlreadyExists) and isinstance(error, boto.ClientError):
        translated.existing = _existing_id(error)
    return translated


def error_code(error: BaseException) -> str:
    """AWS's code of an error, translated or not, such as ``FileSystemNotFound``; otherwise its class name."""
    if isinstance(error, AwsError) and error.code:
        return error.code
    if isinstance(error, boto.ClientError):
        return safe_code(_part(error.response, "Error").get("Code"))
    return type(error).__name__


def safe_code(code: object) -> str:
    """The code if it has the form of AWS's codes, otherwise ``Unknown``: answers may contain anything."""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else _UNKNOWN_CODE


def is_clear_refusal(code: object, status: object) -> bool:
    """Whether an answer with an error says that the request was not carried out."""
    code = safe_code(code)
    return code in THROTTLING_CODES or status in {401, 403, 429} or _is_refusal(code, status)


def cause_of(error: BaseException) -> str:
    """A description of any error without its text.

    It contains the class name, the reason of a failed connection, and the name of an invalid field.
    """
    name = type(error).__name__
    if isinstance(error, (InvalidAnswer, *_TEXTS_OF_CONFIGURATION)):
        return str(error)
    if isinstance(error, InvalidValue) and _FIELD.fullmatch(error.field):
        return f"{error.field} is not valid"
    reasons = filter(None, map(_system_reason, _causes(error)))
    reason = next(reasons, "")
    return f"{name}: {reason}" if reason else name


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes; the library has some of them as an argument."""
    for _ in range(_CAUSES_MOST):
        yield error
        below = _mapping(getattr(error, "kwargs", None)).get("error") or error.__cause__ or error.__context__
        if not isinstance(below, BaseException):
            return
        error = below


def _system_reason(error: BaseException) -> str:
    """The message of the operating system or of OpenSSL."""
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None)
        return reason if isinstance(reason, str) and _SSL_REASON.fullmatch(reason) else ""
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved"
    if isinstance(error, OSError) and isinstance(error.errno, int) and error.errno > 0:
        return os.strerror(error.errno)
    return ""


def _judge(error: Exception, iam_action: str, remedy: str) -> tuple[type[KubeEfsError], str, str]:
    if isinstance(error, boto.ClientError):
        return _judge_answer(error, iam_action)
    if isinstance(error, _CREDENTIAL_ERRORS):
        kind = AwsNotPermitted if isinstance(error, boto.NoCredentialsError) else AwsDenied
        kind = AwsNoCredentialsYet if isinstance(error, NoCredentialsYet) else kind
        return kind, f"could not be signed ({cause_of(error)})", _CREDENTIALS_REMEDY
    if isinstance(error, _SETTING_ERRORS):
        problem = f"could not be sent ({cause_of(error)})"
        return InvalidSetting, problem, "correct the AWS configuration of this process"
    if isinstance(error, _REQUEST_ERRORS):
        return InvalidValue, f"was not sent ({cause_of(error)})", ""
    if isinstance(error, _NO_ANSWER):
        is_late = isinstance(error, TimeoutError) and error.errno is None
        how = "in time" if is_late else f"({cause_of(error)})"
        return AwsUnavailable, f"was not answered {how}", remedy
    return AwsInvalidAnswer, _invalid_answer(error), ""


def _invalid_answer(error: Exception) -> str:
    return f"gave an invalid answer ({cause_of(error)})"


def _judge_answer(error: boto.ClientError, iam_action: str) -> tuple[type[KubeEfsError], str, str]:
    code = error_code(error)
    status = _part(error.response, "ResponseMetadata").get("HTTPStatusCode")
    problem = f"was answered with {code}" + (f" (status {status})" if isinstance(status, int) else "")
    # In this order: RequestLimitExceeded, for example, is throttling, and ends as the codes of limits do.
    if code in THROTTLING_CODES or status == 429:
        return AwsThrottled, problem, _THROTTLING_REMEDY
    if code in LIMIT_REMEDIES or code.endswith("LimitExceeded"):
        return AwsLimitReached, problem, LIMIT_REMEDIES.get(code, _QUOTA_REMEDY)
    is_existing = code.endswith("AlreadyExists") or bool(_existing_id(error))
    # The library itself calls STS and IAM Identity Center for credentials. They may refuse a new role for a
    # while, and their answer says nothing about the resource.
    is_of_library = bool(iam_action) and not iam_action.endswith(f":{error.operation_name}")
    # Not by the status: a proxy or another service may answer 404, too, and what does not exist is forgotten,
    # or no longer protects data.
    is_missing = code.endswith(("NotFound", "NotFoundException"))
    if is_existing or (is_missing and not is_of_library):
        remedy = "" if is_existing else _REMEDIES.get(code, f"check the ID, {_ELSEWHERE}")
        return AwsAlreadyExists if is_existing else AwsNotFound, problem, remedy
    if code in _CREDENTIAL_CODES or (is_of_library and (is_missing or code in _PERMISSION_CODES)):
        return AwsDenied, problem, _CREDENTIALS_REMEDY
    if code in _PERMISSION_CODES or status in {401, 403}:
        kind = AwsNotPermitted if code in _PERMISSION_CODES else AwsDenied
        remedy = f"allow {iam_action} to the role of this process" if iam_action else _CREDENTIALS_REMEDY
        return kind, problem, remedy
    remedy = ""
    if is_refusal := _is_refusal(code, status):
        remedy = _REMEDIES.get(code, "check the value; the API reference of AWS explains the code")
        if code == "ValidationException" and iam_action.startswith("s3files:"):
            remedy = "check the value: a file system must be one of S3 Files, not of EFS"
    return AwsRefused if is_refusal else AwsUnavailable, problem, remedy


def _is_refusal(code: str, status: object) -> bool:
    """Whether AWS itself has answered that it does not carry out the request."""
    is_of_caller = isinstance(status, int) and 400 <= status < 500
    is_late = status == 408 or "Timeout" in code or "TimedOut" in code
    return is_of_caller and code != _UNKNOWN_CODE and not is_late


def _existing_id(error: boto.ClientError) -> str:
    """The access point that has the token of the request; S3 Files names anything that conflicts."""
    if error.operation_name != "CreateAccessPoint":
        return ""
    answer = _mapping(error.response)
    named = answer.get("AccessPointId") or answer.get("resourceId") or ""
    try:
        return parse_access_point_id(str(named), field="AccessPointId")
    except InvalidValue:
        return ""


def _part(response: object, key: str) -> Mapping[str, Any]:
    return _mapping(_mapping(response).get(key))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
