"""The errors of kube-efs, in one tree.

::

    KubeEfsError
    ├── InvalidValue             a value from a user or another program is not valid
    │   ├── ClaimRefused         a claim (or its class) requests something that cannot be served
    │   ├── InvalidSetting       an environment variable or flag
    │   └── RemovalRefused       a guard says that this directory must not be removed
    ├── LeftAlone                a claim or volume that an administrator may expect to be handled is not
    ├── NotYet                   something that is needed does not exist yet
    │   ├── StorageClassMissing  the class of a claim is not known yet
    │   └── GidRangeFull         every group id of a class is in use
    ├── AwsError
    │   ├── AwsNotFound
    │   ├── AwsAlreadyExists     something was created with this token before
    │   ├── AwsThrottled
    │   ├── AwsDenied
    │   │   └── AwsNotPermitted  only a person can change it
    │   │       └── AwsNoCredentialsYet
    │   ├── AwsLimitReached
    │   ├── AwsRefused           a clear refusal for any other reason
    │   └── AwsUnavailable       every other error, and no answer
    │       ├── AwsInvalidAnswer an answer that is not from AWS, such as a page of a proxy
    │       ├── AwsIdentityLate  a configured source of an identity does not answer
    │       └── AwsNotListed     a list does not contain it, but it may exist
    ├── KubeError
    │   ├── KubeNotFound         404
    │   ├── KubeAlreadyExists    409 on create
    │   ├── KubeConflict         409 on update
    │   ├── KubeDenied           401, 403
    │   ├── KubeInvalid          400, 422
    │   ├── KubeExpired          410: the resource version is too old
    │   └── KubeUnavailable      every other error, and no answer
    ├── TunnelError
    │   ├── StunnelMissing
    │   ├── PortTaken
    │   ├── NoTunnelPort         every port for tunnels on demand is in use
    │   ├── ConfigurationRejected
    │   ├── RelayUnavailable     the process of the kernel's data plane does not answer
    │   ├── TunnelNotReady       a tunnel on demand was not ready in time
    │   └── TunnelAgentUnavailable
    ├── WorkerFailed             a worker pod could not create or remove directories
    │   ├── WorkerDenied         EFS does not let worker pods mount the root of the file system
    │   ├── WorkerRefused        a link or file blocks the path; nothing was changed
    │   ├── CopyDiffers          the name of a copy belongs to another one
    │   └── GidTaken             another directory has the group id
    ├── MountFailed              a volume could not be mounted or unmounted on this node
    │   └── MountUnfinished      and it may still succeed
    └── PlatformError            this machine lacks something that is needed

Some parts have subclasses of their own, which no other part handles, for example ``model.csi.errors``.

An error says which field, which value and what to do about it. The code that handles an error decides by its
class whether to try again. Errors are translated into events, gRPC codes and exit codes at the edge only.
"""

import reprlib

from kube_efs.model.secrets import shortened, text_without_secrets


class _Short(reprlib.Repr):
    """Truncates text after its secrets are removed: no rule finds half of a secret."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = 200

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(shortened(x, _SHOWN_MAX), level)

    def repr_instance(self, x: object, level: int) -> str:
        return super().repr_instance(_Text(shortened(repr(x), _SHOWN_MAX)), level)


class _Text(str):
    """A text that ``repr`` returns without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# Characters that are searched for secrets; reprlib then omits the middle.
_SHOWN_MAX = 20_000
_SHORT = _Short()


def shown(value: object) -> str:
    """The value as in messages: text in quotes, and truncated to a few lines.

    Values come from any source, and ten lines of YAML can expand to gigabytes.
    """
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a huge {type(value).__name__}"


class KubeEfsError(Exception):
    """The root of the tree.

    ``field`` names what is wrong (a field path, a setting, a call), ``value`` is its value, and ``remedy``
    says what the reader can do. Empty parts are omitted. ``outcome_unknown`` is set if the request may have
    succeeded anyway, or may still succeed; ``has_begun`` if it, or an earlier attempt, has created something
    and must be completed.
    """

    outcome_unknown: bool = False
    has_begun: bool = False

    def __init__(self, problem: str, *, field: str = "", value: object = "", remedy: str = "") -> None:
        super().__init__(problem, field, value, remedy)
        self.problem = problem
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        subject = f"{self.field}: " if self.field else ""
        value = f"{shown(self.value)} " if self.value != "" else ""
        # This text goes to logs, events, statuses and callers. Each part may contain truncated text.
        problem = text_without_secrets(self.problem)
        remedy = f"; {text_without_secrets(self.remedy)}" if self.remedy else ""
        return text_without_secrets(f"{subject}{value}{problem}{remedy}")


def public_text(error: BaseException) -> str:
    """The text of an error for events, statuses and callers; of an unexpected error only its class.

    The text of an unexpected error may contain secrets, so only the log gets it.
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
    """A guard refused to remove data; nothing was changed.

    ``volumes`` are the names of volumes that block the removal as long as one of them exists. It is empty if
    something else blocks it.
    """

    def __init__(
        self,
        problem: str,
        *,
        field: str = "",
        value: object = "",
        remedy: str = "",
        volumes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(problem, field=field, value=value, remedy=remedy)
        self.volumes = volumes


class LeftAlone(KubeEfsError):
    """A claim or volume is not handled, although its administrator may expect that."""


class NotYet(KubeEfsError):
    """Something that is needed does not exist yet and may appear by itself."""


class StorageClassMissing(NotYet):
    """Kubernetes has assigned a claim to a provisioner, by a class that this process does not know."""


class GidRangeFull(NotYet):
    """Every group ID in the range of a class is in use; one becomes free when a volume is deleted."""


class AwsError(KubeEfsError):
    """AWS answered with an error, or did not answer. ``field`` is the call.

    ``code`` is the error code of AWS, such as ``FileSystemNotFound``, else the name of the library's error.
    ``is_unclear``: the library has sent the request more than once, or lost its answer. AWS may have carried
    out one of these attempts, or may still do so, whatever the error says about the last one.
    """

    code: str = ""
    is_unclear: bool = False


class AwsNotFound(AwsError):
    """The named resource does not exist."""


class AwsAlreadyExists(AwsError):
    """Something was created with this token before; ``existing`` is its ID, empty if it is unknown."""

    existing: str = ""


class AwsThrottled(AwsError):
    """Too many calls; the client's own retries were used up."""


class AwsDenied(AwsError):
    """Credentials are missing, wrong, expired, or lack the permission."""


class AwsNotPermitted(AwsDenied):
    """The role of this process lacks the permission, or the process has no credentials at all.

    Only a person changes this, so a call that is not necessary can be omitted. Other denials may end by
    themselves, for example when expired credentials are renewed.
    """


class AwsNoCredentialsYet(AwsNotPermitted):
    """The process has no credentials at all, but has looked for them for less than a minute.

    Instance metadata may not give them yet on a node that has just booted. So a call that protects data must
    not be omitted.
    """


class AwsLimitReached(AwsError):
    """A quota of the account is used up."""


class AwsRefused(AwsError):
    """AWS has refused this request for another reason, such as a value or the state of a file system.

    So it has changed nothing. The same request may succeed when something else has changed.
    """


class AwsUnavailable(AwsError):
    """Any other failure: server errors, timeouts, no connection."""


class AwsInvalidAnswer(AwsUnavailable):
    """An answer that is not in the format of AWS, or has invalid values."""


class AwsIdentityLate(AwsUnavailable):
    """A configured source of credentials does not answer, for example because it starts later.

    So there is an identity, and nothing must be done with another one, or without one, instead.
    """


class AwsNotListed(AwsUnavailable):
    """A list does not contain the resource, and AWS does not permit the call that reads it by its ID.

    A list may omit a new resource, so this is not AwsNotFound.
    """


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
    """A tunnel of this node cannot be provided as requested."""


class StunnelMissing(TunnelError):
    """The stunnel program does not exist."""


class PortTaken(TunnelError):
    """Another program listens on a tunnel's port."""


class NoTunnelPort(TunnelError):
    """Every port for tunnels on demand is in use; one becomes free when a tunnel is closed."""


class ConfigurationRejected(TunnelError):
    """stunnel did not accept the configuration that was written for it."""


class RelayUnavailable(TunnelError):
    """The relay of this node does not answer, or not as expected; ``value`` is its socket."""


class TunnelNotReady(TunnelError):
    """A tunnel on demand was not ready in time, or could not be stored."""


class TunnelAgentUnavailable(TunnelError):
    """The tunnel agent of this node does not answer; ``value`` is its socket."""


class WorkerFailed(KubeEfsError):
    """A worker pod ended before its work was done; ``value`` is the pod or the directory."""


class MountFailed(KubeEfsError):
    """mount(8) or umount(8) failed, or the directory is not valid; ``value`` is the target."""


class MountUnfinished(MountFailed):
    """The file system did not answer in time; the mount or unmount may still succeed."""


class WorkerDenied(WorkerFailed):
    """EFS does not let worker pods mount the root of the file system, which is ``value``."""


class WorkerRefused(WorkerFailed):
    """Something blocks the path, such as a link; no directory was created or removed."""


class CopyDiffers(WorkerFailed):
    """The name of a copy belongs to a copy of another directory."""


class GidTaken(WorkerFailed):
    """Another directory of the file system has the group id; ``value`` is the id, or the directory."""


class PlatformError(KubeEfsError):
    """This machine lacks a program, a privilege or a kernel feature."""
