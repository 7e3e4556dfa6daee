"""Refusals of the CSI driver, each with its gRPC code.

::

    InvalidValue
    └── RequestRefused
        ├── InvalidArgument          INVALID_ARGUMENT: the request must change
        ├── ExistingVolumeDiffers    ALREADY_EXISTS: a different volume of that name exists
        ├── VolumeMissing            NOT_FOUND: the volume does not exist
        ├── VolumePending            ABORTED: an earlier call for the volume still runs
        ├── VolumeInUse              FAILED_PRECONDITION: another target has a volume for one target
        ├── SourceRefused            FAILED_PRECONDITION: the data of the source cannot be copied
        └── NoMountTarget            FAILED_PRECONDITION: the file system has no usable mount target

The codes are those of the CSI specification, version 1.12, if it defines one for the case.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

from kube_efs.model.errors import InvalidValue


class RpcCode(StrEnum):
    """The gRPC status codes of refusals, with the names of ``grpc.StatusCode``."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    NOT_FOUND = "NOT_FOUND"
    ABORTED = "ABORTED"


class RequestRefused(InvalidValue):
    """A CSI request cannot be served; the caller gets ``code``."""

    code: ClassVar[RpcCode]


class InvalidArgument(RequestRefused):
    """A field of the request is missing, malformed or contradicts another."""

    code = RpcCode.INVALID_ARGUMENT


class ExistingVolumeDiffers(RequestRefused):
    """The existing volume of that name is not the requested one."""

    code = RpcCode.ALREADY_EXISTS


class VolumeMissing(RequestRefused):
    """No volume has that handle."""

    code = RpcCode.NOT_FOUND


class VolumePending(RequestRefused):
    """An earlier call for the same volume has not ended."""

    code = RpcCode.ABORTED


class VolumeInUse(RequestRefused):
    """The volume is for one target at a time, and another target has it."""

    code = RpcCode.FAILED_PRECONDITION


class SourceRefused(RequestRefused):
    """The directory cannot be copied; nothing was changed."""

    code = RpcCode.FAILED_PRECONDITION


class NoMountTarget(RequestRefused):
    """The file system has no usable mount target, which an administrator can change."""

    code = RpcCode.FAILED_PRECONDITION


@contextmanager
def refused_as_argument() -> Iterator[None]:
    """Turns every InvalidValue that is raised inside into an InvalidArgument with the same text."""
    try:
        yield
    except RequestRefused:
        raise
    except InvalidValue as error:
        raise InvalidArgument(
            error.problem, field=error.field, value=error.value, remedy=error.remedy
        ) from error
