import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from grpc import StatusCode

import kube_efs.model
from kube_efs.csi.codes import code_of
from kube_efs.model import errors
from kube_efs.model.csi import errors as csi_errors
from kube_efs.model.errors import KubeEfsError


def _all_errors(kind: type[KubeEfsError] = KubeEfsError) -> Iterator[type[KubeEfsError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _all_errors(child)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidValue, StatusCode.INVALID_ARGUMENT),
        (errors.ClaimRefused, StatusCode.INVALID_ARGUMENT),
        (errors.InvalidSetting, StatusCode.FAILED_PRECONDITION),
        (errors.RemovalRefused, StatusCode.FAILED_PRECONDITION),
        (csi_errors.InvalidArgument, StatusCode.INVALID_ARGUMENT),
        (csi_errors.ExistingVolumeDiffers, StatusCode.ALREADY_EXISTS),
        (csi_errors.VolumeInUse, StatusCode.FAILED_PRECONDITION),
        (csi_errors.NoMountTarget, StatusCode.FAILED_PRECONDITION),
        (errors.NotYet, StatusCode.UNAVAILABLE),
        (errors.GidRangeFull, StatusCode.RESOURCE_EXHAUSTED),
        (errors.AwsNotFound, StatusCode.NOT_FOUND),
        (errors.AwsAlreadyExists, StatusCode.ALREADY_EXISTS),
        (errors.AwsThrottled, StatusCode.UNAVAILABLE),
        (errors.AwsDenied, StatusCode.PERMISSION_DENIED),
        (errors.AwsLimitReached, StatusCode.RESOURCE_EXHAUSTED),
        (errors.AwsRefused, StatusCode.FAILED_PRECONDITION),
        (errors.AwsUnavailable, StatusCode.UNAVAILABLE),
        (errors.KubeNotFound, StatusCode.FAILED_PRECONDITION),
        (errors.KubeAlreadyExists, StatusCode.ABORTED),
        (errors.KubeConflict, StatusCode.ABORTED),
        (errors.KubeDenied, StatusCode.PERMISSION_DENIED),
        (errors.KubeInvalid, StatusCode.INTERNAL),
        (errors.KubeExpired, StatusCode.UNAVAILABLE),
        (errors.KubeUnavailable, StatusCode.UNAVAILABLE),
        (errors.StunnelMissing, StatusCode.FAILED_PRECONDITION),
        (errors.PortTaken, StatusCode.UNAVAILABLE),
        (errors.NoTunnelPort, StatusCode.RESOURCE_EXHAUSTED),
        (errors.TunnelNotReady, StatusCode.UNAVAILABLE),
        (errors.TunnelAgentUnavailable, StatusCode.UNAVAILABLE),
        (errors.ConfigurationRejected, StatusCode.INTERNAL),
        (errors.WorkerFailed, StatusCode.UNAVAILABLE),
        (errors.MountFailed, StatusCode.INTERNAL),
        (errors.MountUnfinished, StatusCode.DEADLINE_EXCEEDED),
        (errors.PlatformError, StatusCode.FAILED_PRECONDITION),
    ],
)
def test_each_error_has_its_code(kind: type[KubeEfsError], code: StatusCode) -> None:
    assert code_of(kind("is wrong")) is code


@pytest.mark.parametrize("kind", [errors.AwsDenied, csi_errors.NoMountTarget, errors.MountFailed])
def test_refusal_with_an_unknown_outcome_is_retried(kind: type[KubeEfsError]) -> None:
    error = kind("is not allowed")
    error.outcome_unknown = True
    assert code_of(error) is StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (csi_errors.InvalidArgument, StatusCode.UNAVAILABLE),
        (csi_errors.VolumeMissing, StatusCode.UNAVAILABLE),
        (errors.AwsDenied, StatusCode.UNAVAILABLE),
        (errors.KubeInvalid, StatusCode.UNAVAILABLE),
        (errors.KubeEfsError, StatusCode.UNAVAILABLE),
        (csi_errors.VolumePending, StatusCode.ABORTED),
        # csi-provisioner forgets a volume after RESOURCE_EXHAUSTED.
        (errors.GidRangeFull, StatusCode.UNAVAILABLE),
        (errors.MountUnfinished, StatusCode.DEADLINE_EXCEEDED),
        # CSI requires it.
        (csi_errors.ExistingVolumeDiffers, StatusCode.ALREADY_EXISTS),
        (errors.CopyDiffers, StatusCode.ALREADY_EXISTS),
    ],
)
def test_error_that_has_begun_something_is_not_final(kind: type[KubeEfsError], code: StatusCode) -> None:
    error = kind("is wrong")
    error.has_begun = True
    assert code_of(error) is code


def test_timeouts_and_unimplemented_methods_have_codes() -> None:
    assert code_of(TimeoutError()) is StatusCode.DEADLINE_EXCEEDED
    assert code_of(NotImplementedError()) is StatusCode.UNIMPLEMENTED


def test_unexpected_error_has_no_code() -> None:
    assert code_of(KeyError("volume")) is None


def test_every_error_of_the_tree_has_a_code() -> None:
    for module in pkgutil.walk_packages(kube_efs.model.__path__, "kube_efs.model."):
        importlib.import_module(module.name)
    # RequestRefused itself is never raised; its children name their codes.
    ours = [kind for kind in _all_errors() if kind.__module__.startswith("kube_efs.model.")]
    kinds = [kind for kind in ours if kind is not csi_errors.RequestRefused]
    assert [kind.__name__ for kind in kinds if code_of(kind("is wrong")) is None] == []


def test_only_errors_about_the_request_have_codes_of_invalid_requests() -> None:
    about_the_request = (errors.InvalidValue, errors.AwsNotFound)
    others = [kind for kind in _all_errors() if not issubclass(kind, about_the_request)]
    codes = {kind.__name__: code_of(kind("is wrong")) for kind in others}
    wrong = {StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND}
    assert [name for name, code in codes.items() if code in wrong] == []
