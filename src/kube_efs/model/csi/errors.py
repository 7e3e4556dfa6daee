"""Refusals of the CSI driver, each of which knows the gRPC code that it becomes.

::

    InvalidValue
    └── RequestRefused
        ├── InvalidArgument          INVALID_ARGUMENT: the request can never be served as it is
        ├── ExistingVolumeDiffers    ALREADY_EXISTS: a volume of that name exists and does not fit
        ├── VolumeMissing            NOT_FOUND: there is no such volume
        ├── VolumePending            ABORTED: an earlier call for the volume is still at work
        ├── VolumeInUse              FAILED_PRECONDITION: another target has what only one may have
        └── NoMountTarget            FAILED_PRECONDITION: the file system cannot be reached as asked

The codes are those of the CSI specification, version 1.12, where it names one for the case.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

from kube_efs.model.errors import InvalidValue


class RpcCode(StrEnum):
    """gRPC status codes that a value alone can call for, by the names of ``grpc.StatusCode``."""

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
    """What was made under that name before is not what is asked for now."""

    code = RpcCode.ALREADY_EXISTS


class VolumeMissing(RequestRefused):
    """There is no volume of that handle."""

    code = RpcCode.NOT_FOUND


class VolumePending(RequestRefused):
    """An earlier call for the same volume has not ended."""

    code = RpcCode.ABORTED


class VolumeInUse(RequestRefused):
    """The volume may be written from one target at a time, and another one has it."""

    code = RpcCode.FAILED_PRECONDITION


class NoMountTarget(RequestRefused):
    """The file system has no usable mount target, which an administrator can change."""

    code = RpcCode.FAILED_PRECONDITION


@contextmanager
def refused_as_argument() -> Iterator[None]:
    """Turns every InvalidValue that is raised inside into an InvalidArgument with the same words."""
    try:
        yield
    except RequestRefused:
        raise
    except InvalidValue as error:
        raise InvalidArgument(
            error.problem, field=error.field, value=error.value, remedy=error.remedy
        ) from error
