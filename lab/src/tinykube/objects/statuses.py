"""Refusals, and the ``Status`` objects they are answered with.

Codes, reasons and the names of fields are those of kube-apiserver, since programs decide by them. The
sentences are for people, one for each refusal.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tinykube.objects.values import Json, JsonValue

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for a refusal; ``field`` is a path such as ``spec.resources.requests[storage]``."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ApiError(Exception):
    """A request that is answered with a ``Status`` of failure; ``status`` is that object."""

    def __init__(
        self, code: int, reason: str, message: str, *, causes: Iterable[Cause] = (), **details: JsonValue
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        listed = [
            {"reason": "FieldValueInvalid", "message": cause.message, "field": cause.field}
            for cause in causes
        ]
        details = {**details, **({"causes": listed} if listed else {})}
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": details} if details else {}),
            "code": code,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a refusal is about: an object of a resource, or the resource itself."""

    group: str
    resource: str
    name: str = ""

    def __str__(self) -> str:
        qualified = f"{self.resource}.{self.group}" if self.group else self.resource
        return f'{qualified} "{self.name}"' if self.name else qualified

    @property
    def details(self) -> Json:
        """The ``details`` of a Status about this object; ``kind`` is the resource there."""
        given = {"name": self.name, "group": self.group, "kind": self.resource}
        return {key: value for key, value in given.items() if value}


def not_found(subject: Subject) -> ApiError:
    """404: the object does not exist."""
    return ApiError(404, "NotFound", f"{subject} not found", **subject.details)


def conflict(subject: Subject, problem: str = MODIFIED) -> ApiError:
    """409 on a write: a precondition does not hold, above all the resource version."""
    message = f"Operation cannot be fulfilled on {subject}: {problem}"
    return ApiError(409, "Conflict", message, **subject.details)


def invalid_object(subject: Subject, causes: Iterable[Cause]) -> ApiError:
    """422: the object breaks the rules of its kind."""
    listed = list(dict.fromkeys(causes))
    message = f"{subject} is invalid: {', '.join(map(str, listed))}"
    return ApiError(422, "Invalid", message, causes=listed, **subject.details)


def invalid_option(name: str, problem: str) -> ApiError:
    """422: an option of the request is not acceptable."""
    return ApiError(422, "Invalid", f"{name}: {problem}", causes=[Cause(name, problem)])


def forbidden(subject: Subject, problem: str, field: str = "") -> ApiError:
    """403: a rule of admission says no."""
    causes = [Cause(field, problem)] if field else []
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {problem}", causes=causes, **subject.details)


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def unknown_resource() -> ApiError:
    """404 for a resource, subresource or version that is not served."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> ApiError:
    """405: the resource has no such verb."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the resource")


def unsupported_media_type(accepted: Iterable[str]) -> ApiError:
    """415: the body is in a format that no object is taken in."""
    return ApiError(415, "UnsupportedMediaType", f"the body must be one of {', '.join(accepted)}")


def expired(message: str) -> ApiError:
    """410: the changes since that resource version are no longer known; list again."""
    return ApiError(410, "Expired", message)


def internal_error(problem: str) -> ApiError:
    """500: a fault of this server."""
    return ApiError(500, "InternalError", problem)


def success(details: Json | None = None) -> Json:
    """The Status of something that is done and has no object to show, such as a deletion."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        **({"details": details} if details else {}),
    }
