import asyncio
import socket
import ssl
import traceback
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import aiohttp
import botocore.session
import pytest
from botocore import exceptions as boto

from kube_efs.aws.errors import aws_errors, error_code, translate
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsDenied,
    AwsError,
    AwsInvalidAnswer,
    AwsLimitReached,
    AwsNotFound,
    AwsNotPermitted,
    AwsRefused,
    AwsThrottled,
    AwsUnavailable,
    InvalidSetting,
    InvalidValue,
    KubeEfsError,
)

# The exceptions that calls of kube-efs can raise instead of an answer. Add a new exception of botocore here,
# or below if it cannot come from EFS, EC2 or STS.
EXPECTED: dict[type[Exception], type[KubeEfsError]] = {
    boto.CredentialRetrievalError: AwsDenied,
    boto.LoginError: AwsDenied,
    boto.LoginAuthorizationCodeError: AwsDenied,
    boto.LoginInsufficientPermissions: AwsDenied,
    boto.LoginRefreshRequired: AwsDenied,
    boto.LoginTokenLoadError: AwsDenied,
    boto.MetadataRetrievalError: AwsDenied,
    boto.NoAuthTokenError: AwsDenied,
    boto.NoCredentialsError: AwsNotPermitted,
    boto.PartialCredentialsError: AwsDenied,
    boto.RefreshWithMFAUnsupportedError: AwsDenied,
    boto.SSOError: AwsDenied,
    boto.SSOTokenLoadError: AwsDenied,
    boto.TokenRetrievalError: AwsDenied,
    boto.UnauthorizedSSOTokenError: AwsDenied,
    boto.UnknownCredentialError: AwsDenied,
    boto.UnknownTokenProviderError: AwsDenied,
    boto.BaseEndpointResolverError: InvalidSetting,
    boto.ConfigNotFound: InvalidSetting,
    boto.ConfigParseError: InvalidSetting,
    boto.EndpointProviderError: InvalidSetting,
    boto.EndpointResolutionError: InvalidSetting,
    boto.EndpointVariantError: InvalidSetting,
    boto.InfiniteLoopConfigError: InvalidSetting,
    boto.InvalidConfigError: InvalidSetting,
    boto.InvalidDefaultsMode: InvalidSetting,
    boto.InvalidEndpointConfigurationError: InvalidSetting,
    boto.InvalidIMDSEndpointError: InvalidSetting,
    boto.InvalidIMDSEndpointModeError: InvalidSetting,
    boto.InvalidMaxRetryAttemptsError: InvalidSetting,
    boto.InvalidProxiesConfigError: InvalidSetting,
    boto.InvalidRegionError: InvalidSetting,
    boto.InvalidRetryConfigurationError: InvalidSetting,
    boto.InvalidRetryModeError: InvalidSetting,
    boto.InvalidSTSRegionalEndpointsConfigError: InvalidSetting,
    boto.NoRegionError: InvalidSetting,
    boto.ProfileNotFound: InvalidSetting,
    boto.ServiceNotInRegionError: InvalidSetting,
    boto.UnknownEndpointError: InvalidSetting,
    boto.UnknownEndpointResolutionBuiltInName: InvalidSetting,
    boto.UnknownFIPSEndpointError: InvalidSetting,
    boto.UnknownRegionError: InvalidSetting,
    boto.AliasConflictParameterError: InvalidValue,
    boto.MissingParametersError: InvalidValue,
    boto.ParamValidationError: InvalidValue,
    boto.RangeError: InvalidValue,
    boto.UnknownKeyError: InvalidValue,
    boto.UnknownParameterError: InvalidValue,
    boto.ValidationError: InvalidValue,
    boto.BotoCoreError: AwsUnavailable,
    boto.CapacityNotAvailableError: AwsUnavailable,
    boto.ChecksumError: AwsUnavailable,
    boto.ConnectTimeoutError: AwsUnavailable,
    boto.ConnectionClosedError: AwsUnavailable,
    boto.ConnectionError: AwsUnavailable,
    boto.EndpointConnectionError: AwsUnavailable,
    boto.HTTPClientError: AwsUnavailable,
    boto.IncompleteReadError: AwsUnavailable,
    boto.PaginationError: AwsUnavailable,
    boto.ProxyConnectionError: AwsUnavailable,
    boto.ReadTimeoutError: AwsUnavailable,
    boto.ResponseStreamingError: AwsUnavailable,
    boto.SSLError: AwsUnavailable,
}
CANNOT_HAPPEN = {
    "ApiVersionNotFoundError", "AwsChunkedWrapperError", "DataNotFoundError", "EventStreamError",
    "FlexibleChecksumError", "InvalidChecksumConfigError", "InvalidDNSNameError",
    "InvalidEndpointDiscoveryConfigurationError", "InvalidExpressionError", "InvalidHostLabelError",
    "InvalidS3AddressingStyleError", "InvalidS3UsEast1RegionalEndpointConfigError", "MD5UnavailableError",
    "MissingDependencyException", "MissingServiceIdError", "OperationNotPageableError", "StubAssertionError",
    "StubResponseError", "UnStubbedResponseError", "UndefinedModelAttributeError", "UnknownClientMethodError",
    "UnknownServiceError", "UnknownServiceStyle", "UnknownSignatureVersionError", "UnseekableStreamError",
    "UnsupportedOutpostResourceError", "UnsupportedS3AccesspointConfigurationError", "UnsupportedS3ArnError",
    "UnsupportedS3ConfigurationError", "UnsupportedS3ControlArnError",
    "UnsupportedS3ControlConfigurationError", "UnsupportedServiceProtocolsError",
    "UnsupportedSignatureVersionError", "WaiterConfigError", "WaiterError",
}  # fmt: skip


class AnyText(dict[str, str]):
    """Fills the placeholders of an exception's message."""

    def __missing__(self, key: str) -> str:
        return f"some {key}"


def made(kind: type[Exception]) -> Exception:
    # Their constructors format a message from keyword arguments that differ from class to class.
    error = kind.__new__(kind)
    Exception.__init__(error, getattr(kind, "fmt", "it").format_map(AnyText()))
    return error


def answered(code: str, status: int = 400) -> boto.ClientError:
    response = {
        "Error": {"Code": code, "Message": "so it is"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return boto.ClientError(response, "DescribeMountTargets")


def translated(error: Exception) -> KubeEfsError:
    return translate(
        error,
        operation="DescribeMountTargets",
        iam_action="elasticfilesystem:DescribeMountTargets",
        subject="fs-1",
    )


def exceptions_of_botocore() -> Iterator[type[Exception]]:
    for candidate in vars(boto).values():
        is_own = isinstance(candidate, type) and candidate.__module__ == boto.__name__
        if is_own and issubclass(candidate, Exception) and not issubclass(candidate, Warning):
            yield candidate


def test_every_botocore_exception_is_mapped() -> None:
    unplaced = {
        kind.__name__
        for kind in exceptions_of_botocore()
        if kind not in EXPECTED and kind.__name__ not in CANNOT_HAPPEN and kind is not boto.ClientError
    }

    assert unplaced == set()


@pytest.mark.parametrize(("kind", "expected"), EXPECTED.items(), ids=lambda kind: kind.__name__)
def test_botocore_exception_becomes_a_typed_error(
    kind: type[Exception], expected: type[KubeEfsError]
) -> None:
    error = made(kind)

    result = translated(error)

    assert type(result) is expected
    assert (result.field, result.value) == ("DescribeMountTargets", "fs-1")


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), aiohttp.ClientPayloadError("cut off"), ConnectionResetError("gone")],
)
def test_untranslated_http_client_errors_are_unavailability(error: Exception) -> None:
    assert type(translated(error)) is AwsUnavailable


def test_timeout_error_mentions_the_timeout() -> None:
    assert str(translated(TimeoutError())) == "DescribeMountTargets: 'fs-1' was not answered in time"


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("FileSystemNotFound", 404, AwsNotFound),
        ("MountTargetNotFound", 404, AwsNotFound),
        ("AccessPointNotFound", 404, AwsNotFound),
        ("SubnetNotFound", 400, AwsNotFound),
        ("InvalidSubnetID.NotFound", 400, AwsNotFound),
        ("ResourceNotFoundException", 404, AwsNotFound),
        # A proxy, or another service at this address.
        ("Unheard", 404, AwsRefused),
        ("ThrottlingException", 429, AwsThrottled),
        ("Throttling", 400, AwsThrottled),
        ("TooManyRequests", 429, AwsThrottled),
        ("RequestLimitExceeded", 503, AwsThrottled),
        ("Unheard", 429, AwsThrottled),
        ("AccessDeniedException", 403, AwsNotPermitted),
        ("AccessDenied", 403, AwsNotPermitted),
        ("UnauthorizedOperation", 403, AwsNotPermitted),
        ("ExpiredTokenException", 403, AwsDenied),
        ("ExpiredToken", 400, AwsDenied),
        ("InvalidClientTokenId", 403, AwsDenied),
        ("UnrecognizedClientException", 400, AwsDenied),
        ("Unheard", 403, AwsDenied),
        ("FileSystemLimitExceeded", 403, AwsLimitReached),
        ("AccessPointLimitExceeded", 403, AwsLimitReached),
        ("NetworkInterfaceLimitExceeded", 409, AwsLimitReached),
        ("NoFreeAddressesInSubnet", 409, AwsLimitReached),
        ("InternalServerError", 500, AwsUnavailable),
        ("FileSystemAlreadyExists", 409, AwsAlreadyExists),
        ("AccessPointAlreadyExists", 409, AwsAlreadyExists),
        ("BadRequest", 400, AwsRefused),
        ("IncorrectFileSystemLifeCycleState", 409, AwsRefused),
        ("Unheard", 418, AwsRefused),
        ("Unheard", 408, AwsUnavailable),
        ("RequestTimeoutException", 400, AwsUnavailable),
    ],
)  # fmt: skip
def test_error_code_is_mapped_to_an_error(code: str, status: int, expected: type[KubeEfsError]) -> None:
    result = translated(answered(code, status))

    assert type(result) is expected
    assert f"was answered with {code} (status {status})" in str(result)
    assert "so it is" not in str(result)


def test_refusal_without_a_code_of_aws_is_that_of_a_proxy() -> None:
    assert type(translated(answered("", 407))) is AwsUnavailable


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("ThrottlingException", "try again later, or request a higher rate of calls from AWS"),
        ("RequestLimitExceeded", "try again later, or request a higher rate of calls from AWS"),
        ("FileSystemLimitExceeded", "remove unused resources or request a higher quota from AWS"),
        ("ServiceQuotaExceededException", "remove unused resources or request a higher quota from AWS"),
        ("NoFreeAddressesInSubnet", "use a larger subnet, or free addresses in it"),
        ("InsufficientFreeAddressesInSubnet", "use a larger subnet, or free addresses in it"),
        ("InsufficientThroughputCapacity", "provision less throughput, or use elastic throughput"),
    ],
)
def test_limit_of_aws_has_a_remedy(code: str, remedy: str) -> None:
    assert translated(answered(code)).remedy == remedy


_ELSEWHERE = "the region and the account"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("FileSystemNotFound", f"check the file system (fileSystemId in a class), {_ELSEWHERE}"),
        ("AccessPointNotFound", f"check the access point, {_ELSEWHERE}"),
        ("InvalidSubnetID.NotFound", f"check the subnets (subnetIds in a class), {_ELSEWHERE}"),
        ("SubnetNotFound", f"check the subnets (subnetIds in a class), {_ELSEWHERE}"),
        ("ResourceNotFoundException", f"check the ID, {_ELSEWHERE}"),
        ("IncorrectFileSystemLifeCycleState", "wait until the file system is available"),
        ("BadRequest", "check the value; the API reference of AWS explains the code"),
    ],
)
def test_refusal_of_aws_has_a_remedy(code: str, remedy: str) -> None:
    result = translated(answered(code))
    assert result.remedy == remedy
    assert code in result.problem


def test_refusal_of_s3_files_names_the_kind_of_file_systems() -> None:
    error = answered("ValidationException")
    result = translate(
        error, operation="ListAccessPoints", iam_action="s3files:ListAccessPoints", subject="fs-1"
    )
    assert str(result) == (
        "ListAccessPoints: 'fs-1' was answered with ValidationException (status 400);"
        " check the value: a file system must be one of S3 Files, not of EFS"
    )


def test_every_documented_efs_error_becomes_an_aws_error() -> None:
    efs = botocore.session.get_session().get_service_model("efs")
    codes = {
        (shape.name, shape.metadata.get("error", {}).get("httpStatusCode", 400))
        for operation in efs.operation_names
        for shape in efs.operation_model(operation).error_shapes
    }

    results = {code: type(translated(answered(code, status))) for code, status in codes}

    assert len(results) > 20
    assert all(issubclass(kind, AwsError) for kind in results.values())
    assert {
        code for code, kind in results.items() if code.endswith("NotFound") and kind is not AwsNotFound
    } == set()
    assert {
        code for code, kind in results.items() if "LimitExceeded" in code and kind is not AwsLimitReached
    } == set()
    assert AwsDenied not in results.values()


def test_denial_names_the_missing_iam_action_or_the_credentials() -> None:
    assert "allow elasticfilesystem:DescribeMountTargets to the role" in str(
        translated(answered("AccessDenied"))
    )
    assert "give this process valid AWS credentials" in str(translated(answered("ExpiredToken")))
    assert "give this process valid AWS credentials" in str(translated(boto.NoCredentialsError()))


def test_refusal_of_credentials_by_sts_is_not_a_missing_permission_for_the_call() -> None:
    refused = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    result = translated(boto.ClientError(refused, "AssumeRoleWithWebIdentity"))
    assert type(result) is AwsDenied
    assert "give this process valid AWS credentials" in str(result)


def test_missing_role_of_the_credentials_is_not_a_missing_resource() -> None:
    missing = {"Error": {"Code": "ResourceNotFoundException"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    result = translated(boto.ClientError(missing, "GetRoleCredentials"))
    assert type(result) is AwsDenied
    assert "give this process valid AWS credentials" in str(result)


def test_already_exists_error_names_the_existing_object() -> None:
    error = {"Code": "AccessPointAlreadyExists", "Message": "there is one"}
    response = {"Error": error, "AccessPointId": "fsap-0123456789abcdef0"}
    result = translated(boto.ClientError(response, "CreateAccessPoint"))

    assert isinstance(result, AwsAlreadyExists)
    assert result.existing == "fsap-0123456789abcdef0"


def test_error_code_is_found_before_and_after_translation() -> None:
    foreign = answered("FileSystemAlreadyExists")

    assert error_code(foreign) == error_code(translated(foreign)) == "FileSystemAlreadyExists"
    assert error_code(translated(boto.NoCredentialsError())) == "NoCredentialsError"
    assert error_code(boto.NoCredentialsError()) == "NoCredentialsError"
    assert error_code(boto.ClientError({}, "Call")) == "Unknown"


@pytest.mark.parametrize(
    "error",
    [KeyError("hidden"), RecursionError("hidden"), ExceptionGroup("hidden", [ValueError("hidden")])],
    ids=lambda error: type(error).__name__,
)
def test_unexpected_exception_is_reported_by_its_class_only(error: Exception) -> None:
    with pytest.raises(AwsInvalidAnswer) as caught, aws_errors("Call", subject="fs-1"):
        raise error

    assert str(caught.value) == f"Call: 'fs-1' gave an invalid answer ({type(error).__name__})"
    assert "hidden" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [AwsDenied("no"), InvalidSetting("no"), asyncio.CancelledError()])
def test_kube_efs_errors_and_cancellation_pass_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, aws_errors("Call"):
        raise error

    assert caught.value is error


@pytest.mark.parametrize(
    "code",
    [
        "0123456789abcdef",
        "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY",
        "two words",
        "a" * 100,
        "",
        None,
        7,
        ["A"],
    ],
)
def test_invalid_error_code_is_not_shown(code: object) -> None:
    error = boto.ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "DescribeMountTargets"
    )

    assert translated(error).problem == "was answered with Unknown (status 400)"
    assert error_code(error) == "Unknown"


@pytest.mark.parametrize("response", [{}, {"Error": None}, {"Error": "text", "ResponseMetadata": []}])
def test_incomplete_error_is_translated(response: dict[str, Any]) -> None:
    error = boto.ClientError({}, "DescribeMountTargets")
    error.response = response

    assert translated(error).problem == "was answered with Unknown"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (boto.EndpointConnectionError(endpoint_url="x", error=OSError(111, "hidden")), "Connection refused"),
        (
            boto.ConnectionClosedError(endpoint_url="x", error=OSError(104, "hidden")),
            "Connection reset by peer",
        ),
        (
            boto.ConnectTimeoutError(endpoint_url="x", error=socket.gaierror(-2, "hidden")),
            "name cannot be resolved",
        ),
        (boto.SSLError(endpoint_url="x", error=ssl.SSLError(1, "hidden")), "SSLError"),
        (aiohttp.ClientResponseError(Mock(), (), message="hidden"), "ClientResponseError"),
    ],
    ids=["refused", "reset", "unknown name", "TLS", "invalid HTTP answer"],
)
def test_connection_error_contains_the_message_of_the_system(error: Exception, reason: str) -> None:
    result = translated(error)

    assert type(result) is AwsUnavailable
    assert reason in str(result)
    assert "hidden" not in str(result)
