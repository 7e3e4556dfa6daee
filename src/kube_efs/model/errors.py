"""The errors of kube-efs, in one tree.

::

    KubeEfsError
    ├── InvalidValue             a value from a user or another program is not valid
    │   ├── ClaimRefused         a claim (or its class) requests something that cannot be served
    │   ├── InvalidSetting       an environment variable or flag
    │   └── RemovalRefused       a guard says that this directory must not be removed
    ├── NotYet                   nothing is wrong, something does not exist yet
    │   └── GidRangeFull         every group id of a class is in use
    ├── AwsError
    │   ├── AwsNotFound
    │   ├── AwsAlreadyExists     something was made with this token before
    │   ├── AwsThrottled
    │   ├── AwsDenied
    │   ├── AwsLimitReached
    │   └── AwsUnavailable       every other answer, and no answer at all
    │       └── AwsOddAnswer     an answer that AWS would not give, such as a proxy's page
    ├── KubeError
    │   ├── KubeNotFound         404
    │   ├── KubeAlreadyExists    409 on create
    │   ├── KubeConflict         409 on update
    │   ├── KubeDenied           401, 403
    │   ├── KubeInvalid          400, 422
    │   ├── KubeExpired          410: the resource version is too old
    │   └── KubeUnavailable      every other answer, and no answer at all
    ├── TunnelError
    │   ├── StunnelMissing
    │   ├── PortTaken
    │   ├── NoTunnelPort         every port for tunnels on demand is in use
    │   ├── ConfigurationRejected
    │   ├── TunnelNotReady       a tunnel on demand could not be had in time
    │   └── TunnelAgentUnavailable
    ├── WorkerFailed             a worker pod could not make or remove directories
    │   ├── WorkerRefused        a link or file is in the way; nothing was touched
    │   └── GidTaken             another directory has the group id
    ├── MountFailed              a volume could not be mounted or unmounted on this node
    │   └── MountUnfinished      nor is it known whether that still comes about
    └── PlatformError            this machine lacks something that is needed

An error says which field, which value and what to do about it. The code that handles an error decides by its
class whether to try again. Errors are translated into events, gRPC codes and exit codes at the edge only.
"""

import reprlib

from kube_efs.model.secrets import shortened, text_without_secrets


class _Short(reprlib.Repr):
    """Cuts what has no secrets any more: half of one has not the shape of a secret, and is one still."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = 200

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(shortened(x, _SHOWN_MAX), level)

    def repr_instance(self, x: object, level: int) -> str:
        return super().repr_instance(_Text(shortened(repr(x), _SHOWN_MAX)), level)


class _Text(str):
    """A text that is shown as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# Of which the middle is left out when it is shown.
_SHOWN_MAX = 20_000
_SHORT = _Short()


def shown(value: object) -> str:
    """The value as messages show it: in quotes when it is text, and cut to a few lines.

    Values come from any source, and ten lines of YAML can stand for gigabytes.
    """
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a huge {type(value).__name__}"


class KubeEfsError(Exception):
    """The root of the tree.

    ``field`` names what is wrong (a field path, a setting, a call), ``value`` what was found there,
    ``remedy`` what the reader can do. Empty strings mean that there is nothing to say. ``outcome_unknown`` is
    set where what was asked for may have been done anyway, or may still be done.
    """

    outcome_unknown: bool = False

    def __init__(self, problem: str, *, field: str = "", value: object = "", remedy: str = "") -> None:
        super().__init__(problem, field, value, remedy)
        self.problem = problem
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        subject = f"{self.field}: " if self.field else ""
        value = f"{shown(self.value)} " if self.value != "" else ""
        # This text goes to logs, events, statuses and callers. Each part may hold a text that was cut.
        problem = text_without_secrets(self.problem)
        remedy = f"; {text_without_secrets(self.remedy)}" if self.remedy else ""
        return text_without_secrets(f"{subject}{value}{problem}{remedy}")


def told(error: BaseException) -> str:
    """What may leave the process of an error: the text of our own ones, of others no more than their class.

    The words of an unexpected error may hold anything; they are for the log.
    """
    if isinstance(error, KubeEfsError):
        return str(error)
    return f"internal error ({type(error).__name__}); the log has the details"


class InvalidValue(KubeEfsError):
    """A value is not valid, and waiting does not change that."""


class ClaimRefused(InvalidValue):
    """A claim cannot be served until it, its class or the set of file systems changes."""


class InvalidSetting(InvalidValue):
    """A setting is missing or malformed."""


class RemovalRefused(InvalidValue):
    """A guard of data removal says no; nothing was touched."""


class NotYet(KubeEfsError):
    """Something that is needed does not exist yet and may appear by itself."""


class GidRangeFull(NotYet):
    """Every group id of a class's range is in use; one is free when a volume is deleted."""


class AwsError(KubeEfsError):
    """AWS answered with an error, or did not answer. ``field`` is the call.

    ``code`` is AWS's code of the error, such as ``FileSystemNotFound``; else the name of the library's error.
    """

    code: str = ""


class AwsNotFound(AwsError):
    """The named resource does not exist."""


class AwsAlreadyExists(AwsError):
    """Something was made with this token before; ``existing`` is its id, empty if AWS does not tell."""

    existing: str = ""


class AwsThrottled(AwsError):
    """Too many calls; the client's own retries were used up."""


class AwsDenied(AwsError):
    """Credentials are missing, wrong, expired, or lack the permission."""


class AwsLimitReached(AwsError):
    """A quota of the account is used up."""


class AwsUnavailable(AwsError):
    """Any other failure: server errors, timeouts, no connection."""


class AwsOddAnswer(AwsUnavailable):
    """An answer that AWS would not give: not in its format, or with values that are not valid."""


class KubeError(KubeEfsError):
    """The Kubernetes API answered with an error, or did not answer. ``field`` is the object."""


class KubeNotFound(KubeError):
    """The object does not exist."""


class KubeAlreadyExists(KubeError):
    """An object of that name exists."""


class KubeConflict(KubeError):
    """The object has changed since it was read."""


class KubeDenied(KubeError):
    """The credentials are not accepted, or lack the permission."""


class KubeInvalid(KubeError):
    """The API server does not accept the object."""


class KubeExpired(KubeError):
    """The resource version is too old; list again."""


class KubeUnavailable(KubeError):
    """Any other failure: throttling, server errors, timeouts, no connection."""


class TunnelError(KubeEfsError):
    """The node's tunnels cannot be served as asked."""


class StunnelMissing(TunnelError):
    """No stunnel binary where it was looked for."""


class PortTaken(TunnelError):
    """Another program listens on a tunnel's port."""


class NoTunnelPort(TunnelError):
    """Every port for tunnels on demand is in use; one is free when a tunnel is closed."""


class ConfigurationRejected(TunnelError):
    """stunnel did not accept the configuration that was written for it."""


class TunnelNotReady(TunnelError):
    """A tunnel on demand could not be had in time, or not be remembered."""


class TunnelAgentUnavailable(TunnelError):
    """The tunnel agent of this node does not answer; ``value`` is its socket."""


class WorkerFailed(KubeEfsError):
    """A worker pod ended without having done its work; ``value`` is the pod or the directory."""


class MountFailed(KubeEfsError):
    """mount(8) or umount(8) failed, or the directory is not valid; ``value`` is the target."""


class MountUnfinished(MountFailed):
    """The file system did not answer in time, so a mount may still come to be, or go."""


class WorkerRefused(WorkerFailed):
    """Something is in the way, such as a link in the path, and a directory was neither made nor removed."""


class GidTaken(WorkerFailed):
    """Another directory of the file system has the group id; ``value`` is the id, or the directory."""


class PlatformError(KubeEfsError):
    """This machine lacks a program, a privilege or a kernel feature."""
