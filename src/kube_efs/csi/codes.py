"""Which gRPC status each error of kube-efs becomes.

csi-provisioner decides by the code. After CANCELLED, UNAVAILABLE, ABORTED and DEADLINE_EXCEEDED, a volume may
exist, so it repeats the call with the same name, also after the claim was deleted. Every other code means
that no volume was created, RESOURCE_EXHAUSTED too: another node may have room then. So an error gets no such
other code while an access point or a directory exists, or may exist, for the volume. The exception is
ALREADY_EXISTS, which CSI requires for a name that belongs to something else. In a similar way, the kubelet
decides whether a volume may be mounted, and csi-snapshotter whether a snapshot may exist; both repeat a call
after RESOURCE_EXHAUSTED, too.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from grpc import StatusCode

from kube_efs.model.csi.errors import RequestRefused
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsDenied,
    AwsError,
    AwsLimitReached,
    AwsNotFound,
    AwsRefused,
    ConfigurationRejected,
    CopyDiffers,
    GidRangeFull,
    InvalidSetting,
    InvalidValue,
    KubeAlreadyExists,
    KubeConflict,
    KubeDenied,
    KubeEfsError,
    KubeError,
    KubeInvalid,
    KubeNotFound,
    LeftAlone,
    MountFailed,
    MountUnfinished,
    NoTunnelPort,
    NotYet,
    PlatformError,
    PortTaken,
    RemovalRefused,
    TunnelAgentUnavailable,
    TunnelError,
    TunnelNotReady,
    WorkerFailed,
)

# The nearest class of an error decides; RequestRefused brings its own code.
_CODES: Final[Mapping[type, StatusCode]] = MappingProxyType(
    {
        InvalidValue: StatusCode.INVALID_ARGUMENT,
        InvalidSetting: StatusCode.FAILED_PRECONDITION,
        RemovalRefused: StatusCode.FAILED_PRECONDITION,
        LeftAlone: StatusCode.FAILED_PRECONDITION,
        NotYet: StatusCode.UNAVAILABLE,
        GidRangeFull: StatusCode.RESOURCE_EXHAUSTED,
        AwsError: StatusCode.UNAVAILABLE,
        AwsNotFound: StatusCode.NOT_FOUND,
        AwsAlreadyExists: StatusCode.ALREADY_EXISTS,
        AwsDenied: StatusCode.PERMISSION_DENIED,
        AwsLimitReached: StatusCode.RESOURCE_EXHAUSTED,
        AwsRefused: StatusCode.FAILED_PRECONDITION,
        KubeError: StatusCode.UNAVAILABLE,
        # NOT_FOUND and ALREADY_EXISTS are about the volume, and objects of Kubernetes are not volumes.
        KubeNotFound: StatusCode.FAILED_PRECONDITION,
        KubeAlreadyExists: StatusCode.ABORTED,
        KubeConflict: StatusCode.ABORTED,
        KubeDenied: StatusCode.PERMISSION_DENIED,
        KubeInvalid: StatusCode.INTERNAL,
        TunnelError: StatusCode.FAILED_PRECONDITION,
        PortTaken: StatusCode.UNAVAILABLE,
        NoTunnelPort: StatusCode.RESOURCE_EXHAUSTED,
        ConfigurationRejected: StatusCode.INTERNAL,
        TunnelNotReady: StatusCode.UNAVAILABLE,
        TunnelAgentUnavailable: StatusCode.UNAVAILABLE,
        WorkerFailed: StatusCode.UNAVAILABLE,
        CopyDiffers: StatusCode.ALREADY_EXISTS,
        MountFailed: StatusCode.INTERNAL,
        MountUnfinished: StatusCode.DEADLINE_EXCEEDED,
        PlatformError: StatusCode.FAILED_PRECONDITION,
        TimeoutError: StatusCode.DEADLINE_EXCEEDED,
        NotImplementedError: StatusCode.UNIMPLEMENTED,
    }
)

# The codes of errors that have begun something; any other becomes UNAVAILABLE.
_OF_BEGUN: Final = frozenset(
    {
        StatusCode.ABORTED,
        StatusCode.ALREADY_EXISTS,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.UNAVAILABLE,
    }
)


def code_of(error: Exception) -> StatusCode | None:
    """The status code that a caller gets for this error; None for an unexpected one."""
    if isinstance(error, KubeEfsError) and error.outcome_unknown:
        return StatusCode.UNAVAILABLE
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), None)
    if isinstance(error, RequestRefused):
        code = StatusCode[error.code]
    has_begun = isinstance(error, KubeEfsError) and error.has_begun
    return StatusCode.UNAVAILABLE if has_begun and code not in _OF_BEGUN else code
