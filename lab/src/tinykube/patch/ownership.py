"""Field ownership of a write: the glue between the service and server-side apply."""

from dataclasses import dataclass

from tinykube.objects.bodies import in_wire_form
from tinykube.objects.json_types import Json, json_equal, without
from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import ApiError, Cause, bad_request
from tinykube.patch.apply import ApplyConflict, apply, track_update
from tinykube.patch.managed_fields import FieldManager
from tinykube.patch.patches import PatchInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who writes which resource, through which subresource, and when."""

    resource: ResourceType
    manager: str
    subresource: str
    now: str

    def of_write(self, old: Json | None, new: Json) -> Json:
        """The object to write with its ``managedFields`` brought up to date."""
        tracked = track_update(
            None if old is None else in_wire_form(self.resource, old),
            in_wire_form(self.resource, new),
            manager=self._field_manager,
            rules=self.resource.rules,
            now=self.now,
            ignored=self._ignored(new),
        )
        return self.resource.form.to_stored(tracked) if self.resource.form else tracked

    def of_apply(self, live: Json | None, applied: Json, *, force: bool) -> Json:
        """The live object with the applied configuration merged in, both as the request's version shows them.

        Raises 400 or 409.
        """
        try:
            return apply(
                live,
                applied,
                manager=self._field_manager,
                force=force,
                rules=self.resource.rules,
                now=self.now,
                ignored=self._ignored(applied),
            )
        except ApplyConflict as error:
            raise _refused(error) from error
        except PatchInvalid as error:
            raise bad_request(str(error)) from error

    @property
    def _field_manager(self) -> FieldManager:
        return FieldManager(
            name=self.manager, api_version=self.resource.api_version, subresource=self.subresource
        )

    def _ignored(self, new: Json) -> tuple[str, ...]:
        """Top-level fields that this (sub)resource does not write."""
        if self.subresource != "status":
            return ("status",) if self.resource.has_status else ()
        written = {"status"} if self.resource.custom else {"status", "metadata"}
        return tuple(field for field in new if field not in written)


def same_but_for_times(new: Json, old: Json) -> bool:
    """Whether nothing differs but the resource version and times in ``managedFields``."""
    return json_equal(_without_times(new), _without_times(old))


def _without_times(json_object: Json) -> Json:
    metadata = json_object["metadata"]
    entries = [without(entry, "time") for entry in metadata.get("managedFields") or ()]
    return {
        **json_object,
        "metadata": {**without(metadata, "resourceVersion"), "managedFields": entries},
    }


def _refused(conflict: ApplyConflict) -> ApiError:
    causes = [
        Cause(one.field, f"conflict with {one.manager}", "FieldManagerConflict") for one in conflict.conflicts
    ]
    return ApiError(409, "Conflict", conflict.problem, causes=causes)
