"""Refusals, and the ``Status`` objects they are answered with.

Reasons, codes and sentences are those of k8s.io/apimachinery (packages ``api/errors`` and
``util/validation/field``), since kubectl, lightkube and kopf decide by them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tinykube.objects.json_types import Json, JsonValue


class CauseReason(StrEnum):
    """Why one field of an object is refused."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    TYPE_INVALID = "FieldValueTypeInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    DUPLICATE = "FieldValueDuplicate"
    NOT_FOUND = "FieldValueNotFound"
    FORBIDDEN = "FieldValueForbidden"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    MANAGER_CONFLICT = "FieldManagerConflict"
    VERSION_TOO_LARGE = "ResourceVersionTooLarge"
    NAMESPACE_TERMINATING = "NamespaceTerminating"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for a refusal; ``field`` is a path such as ``spec.resources.requests[storage]``."""

    reason: CauseReason
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> Cause:
    """A field that must be given is not."""
    return Cause(reason=CauseReason.REQUIRED, field=field, message=_sentence("Required value", detail))


def invalid(field: str, value: JsonValue, detail: str) -> Cause:
    """A field's value is not acceptable."""
    message = _sentence(f"Invalid value: {shown(value)}", detail)
    return Cause(reason=CauseReason.INVALID, field=field, message=message)


def not_supported(field: str, value: JsonValue, supported: Iterable[str]) -> Cause:
    """A field's value is not one of a closed set."""
    choices = ", ".join(json.dumps(choice) for choice in supported)
    message = f"Unsupported value: {shown(value)}: supported values: {choices}"
    return Cause(reason=CauseReason.NOT_SUPPORTED, field=field, message=message)


def duplicate(field: str, value: JsonValue) -> Cause:
    """A value that may occur once occurs again."""
    return Cause(reason=CauseReason.DUPLICATE, field=field, message=f"Duplicate value: {shown(value)}")


def missing(field: str, value: JsonValue) -> Cause:
    """A field names something that is not there."""
    return Cause(reason=CauseReason.NOT_FOUND, field=field, message=f"Not found: {shown(value)}")


def forbidden_field(field: str, detail: str) -> Cause:
    """A field may not be set, or not be changed, here."""
    return Cause(reason=CauseReason.FORBIDDEN, field=field, message=f"Forbidden: {detail}")


def shown(value: JsonValue) -> str:
    """A value as Kubernetes' messages quote it."""
    return "null" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _sentence(problem: str, detail: str) -> str:
    return f"{problem}: {detail}" if detail else problem


class ApiError(Exception):
    """A request that is answered with a ``Status`` of failure; ``status`` is that object."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.headers = headers or {}
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({} if details is None else {"details": details}),
            "code": code,
        }


class Undecodable(Exception):
    """A value is not of the type that its field has; the text says which, in the words of Go's decoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a refusal is about: the group, and its resource or (for invalid objects) its kind."""

    group: str
    resource: str
    kind: str
    name: str = ""

    @property
    def qualified_resource(self) -> str:
        """Such as ``storageclasses.storage.k8s.io``."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def qualified_kind(self) -> str:
        """Such as ``StorageClass.storage.k8s.io``."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def details(self, **more: JsonValue) -> Json:
        """The ``details`` of a Status about this resource; ``kind`` is the resource there."""
        return _present(name=self.name, group=self.group, kind=self.resource, **more)


def _present(**fields: JsonValue) -> Json:
    return {name: value for name, value in fields.items() if value}


def undecodable_patch(patched: Json, problem: str) -> ApiError:
    """422: the object that a patch leads to cannot be decoded."""
    nothing = Subject(group="", resource="", kind="")
    return invalid_object(nothing, [invalid("patch", shown(patched), problem)])


def not_found(subject: Subject) -> ApiError:
    """404: the object does not exist."""
    message = f'{subject.qualified_resource} "{subject.name}" not found'
    return ApiError(404, "NotFound", message, details=subject.details())


def already_exists(subject: Subject, *, deleting: bool = False) -> ApiError:
    """409 on create: the name is taken, perhaps by an object that is about to go."""
    there = "object is being deleted: " if deleting else ""
    message = f'{there}{subject.qualified_resource} "{subject.name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=subject.details())


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(subject: Subject, problem: str = MODIFIED) -> ApiError:
    """409 on a write: a precondition does not hold, above all the resource version."""
    message = f'Operation cannot be fulfilled on {subject.qualified_resource} "{subject.name}": {problem}'
    return ApiError(409, "Conflict", message, details=subject.details())


def undeclared_fields(subject: Subject, kind: str, unknown: Iterable[str]) -> ApiError:
    """500 on server-side apply: the type has no such fields."""
    problems = [f".{path}: field not declared in schema" for path in unknown]
    listed = problems[0] if len(problems) == 1 else "\n".join(["errors:", *(f"  {one}" for one in problems)])
    message = f"failed to create typed patch object (/{subject.name}; {kind}): {listed}"
    return ApiError(500, "", message)


def manager_conflict(causes: Iterable[Cause], message: str) -> ApiError:
    """409 on server-side apply: other managers own fields with other values."""
    details = {"causes": [_cause_json(cause) for cause in causes]}
    return ApiError(409, "Conflict", message, details=details)


def invalid_object(subject: Subject, causes: Iterable[Cause]) -> ApiError:
    """422: the object breaks the rules of its kind."""
    listed = list(causes)
    texts = list(dict.fromkeys(str(cause) for cause in listed))
    summary = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _present(
        name=subject.name,
        group=subject.group,
        kind=subject.kind,
        causes=[_cause_json(cause) for cause in listed],
    )
    message = f'{subject.qualified_kind} "{subject.name}" is invalid: {summary}'
    return ApiError(422, "Invalid", message, details=details)


def _cause_json(cause: Cause) -> Json:
    return {"reason": cause.reason.value, "message": cause.message, "field": cause.field}


def forbidden(subject: Subject, problem: str, causes: Iterable[Cause] = ()) -> ApiError:
    """403: a rule of admission says no."""
    quoted = f' "{subject.name}"' if subject.name else ""
    message = f"{subject.qualified_resource}{quoted} is forbidden: {problem}"
    details = subject.details(causes=[_cause_json(cause) for cause in causes])
    return ApiError(403, "Forbidden", message, details=details)


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """401: no token, or another one."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def unknown_resource() -> ApiError:
    """404 for a resource, subresource or version that is not served."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> ApiError:
    """405: the resource has no such verb."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, details={})


def not_acceptable(media_types: Iterable[str]) -> ApiError:
    """406: no answer in any of the formats that were asked for."""
    message = f"406: Not Acceptable\n\nAvailable representations: {', '.join(media_types)}"
    return ApiError(406, "NotAcceptable", message, details={})


def unsupported_media_type(media_types: Iterable[str]) -> ApiError:
    """415: the body is in a format that no object is taken in."""
    accepted = ", ".join(media_types)
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return ApiError(415, "UnsupportedMediaType", message)


def unsupported_patch() -> ApiError:
    """415: the body is no kind of patch that the resource takes."""
    return ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})


def patch_failed() -> ApiError:
    """422: a JSON patch does not fit the object, or one of its tests fails."""
    message = "the server rejected our request due to an error in our request"
    return ApiError(422, "Invalid", message, details={})


def too_large(limit_bytes: int) -> ApiError:
    """413: the body has more than so many bytes."""
    message = f"Request entity too large: limit is {limit_bytes}"
    return ApiError(413, "RequestEntityTooLarge", message)


def expired(message: str, details: Json | None = None) -> ApiError:
    """410: the changes since that resource version are no longer known; list again."""
    return ApiError(410, "Expired", message, details=details)


def version_too_large(asked: int, current: int) -> ApiError:
    """504: the resource version lies in the future."""
    cause = {"reason": CauseReason.VERSION_TOO_LARGE.value, "message": "Too large resource version"}
    return ApiError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )


def not_implemented(problem: str) -> ApiError:
    """501: what a real API server does, and this one does not."""
    return ApiError(501, "NotImplemented", problem)


def internal_error(problem: str) -> ApiError:
    """500: a fault of this server."""
    details = {"causes": [{"message": problem}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {problem}", details=details)


def success(details: Json | None = None) -> Json:
    """The Status of something that is done and has no object to show, such as a deletion."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        **({"details": details} if details else {}),
    }
