"""What can go wrong in the embedded EFS.

::

    EfsError
    ├── InvalidValue     a value of a client or of the AWS API is not acceptable
    │   └── MountDenied  the policy of a file system does not let a client mount
    ├── NotYet           something is not there yet and may appear by itself
    ├── AwsError         the AWS API refuses a call or does not answer
    │   └── AwsNotFound  what the call is about does not exist
    └── PlatformError    this machine lacks something that is needed
"""


class EfsError(Exception):
    """The root of the tree; empty texts mean that there is nothing to say."""

    def __init__(self, problem: str, *, field: str = "", value: object = "", remedy: str = "") -> None:
        super().__init__(problem, field, value, remedy)
        self.problem = problem
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        subject = f"{self.field}: " if self.field else ""
        value = f"{self.value!r} " if self.value != "" else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{subject}{value}{self.problem}{remedy}"


class InvalidValue(EfsError):
    """A value is not acceptable and will not become so by waiting."""


class MountDenied(InvalidValue):
    """The policy of a file system does not let this client mount."""


class NotYet(EfsError):
    """Something that is needed is not there yet."""


class AwsError(EfsError):
    """A call of the AWS API failed."""


class AwsNotFound(AwsError):
    """What a call of the AWS API is about does not exist."""


class PlatformError(EfsError):
    """This machine lacks something that is needed."""
