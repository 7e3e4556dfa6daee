"""What can go wrong in the embedded cluster; ``objects.statuses`` has the answers of its API server.

::

    TinykubeError
    ├── InvalidValue     a value of an object is not acceptable
    └── NotYet           something is not there yet and may appear by itself
"""


class TinykubeError(Exception):
    """The root of the tree; ``field`` and ``value`` are empty where there is nothing to say."""

    def __init__(self, problem: str, *, field: str = "", value: object = "") -> None:
        super().__init__(problem, field, value)
        self.problem = problem
        self.field = field
        self.value = value

    def __str__(self) -> str:
        subject = f"{self.field}: " if self.field else ""
        value = f"{self.value!r} " if self.value != "" else ""
        return f"{subject}{value}{self.problem}"


class InvalidValue(TinykubeError):
    """A value is not acceptable and will not become so by waiting."""


class NotYet(TinykubeError):
    """Something that is needed is not there yet."""
