"""Events of both groups (pkg/apis/core/validation/events.go).

They are stored as core events. What is written through ``events.k8s.io`` follows stricter rules: it is
complete, and nothing but its series changes.
"""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.json_types import Json, json_equal, lookup
from tinykube.objects.label_syntax import label_key_problems
from tinykube.objects.metadata import IMMUTABLE
from tinykube.objects.statuses import Cause, invalid, required
from tinykube.objects.strategies import Strategy

_NOTE_LIMIT = 1024
_TEXT_LIMIT = 128
_FREE_NAMESPACES = frozenset({"default", "kube-system"})
# Their names in the core group, as Kubernetes' messages have them.
_FIXED = (
    "involvedObject",
    "reason",
    "reportingController",
    "reportingInstance",
    "action",
    "type",
    "related",
    "message",
)
_OLD_FIELDS = ("firstTimestamp", "lastTimestamp", "count")
# Fields that Go's encoder writes even when they are empty; clients read them without asking.
_DEFAULTS = Defaults(
    values={
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    }
)


def _core_problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    yield from _common_problems(new, "reportingComponent")


def _group_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    if old is not None:
        yield from _common_problems(new, "reportingController")
        yield from _changes(new, old)
        return
    yield from _common_problems(new, "reportingController")
    if not new.get("eventTime"):
        yield required("eventTime")
    if new.get("type") not in {"Normal", "Warning"}:
        yield invalid("type", "", f"has invalid value: {new.get('type', '')}")
    for field in (*_OLD_FIELDS, "source"):
        if new.get(field):
            yield invalid(field, "", "needs to be unset")


def _changes(new: Json, old: Json) -> Iterator[Cause]:
    for field in _FIXED:
        stored = "reportingComponent" if field == "reportingController" else field
        if not json_equal(new.get(stored), old.get(stored)):
            yield invalid(field, new.get(stored), IMMUTABLE)


def _common_problems(event: Json, controller_field: str) -> Iterator[Cause]:
    namespace = event["metadata"].get("namespace", "")
    about = lookup(event, "involvedObject", "namespace") or ""
    if about != namespace and (about or namespace not in _FREE_NAMESPACES):
        yield invalid("involvedObject.namespace", about, "does not match event.namespace")
    if not event.get("eventTime"):
        return
    controller = event.get("reportingComponent") or ""
    if not controller:
        yield required(controller_field)
    for problem in label_key_problems(controller):
        yield invalid(controller_field, controller, problem)
    for field in ("reportingInstance", "action", "reason"):
        if not event.get(field):
            yield required(field)
        elif len(event[field]) > _TEXT_LIMIT:
            yield invalid(field, "", f"can have at most {_TEXT_LIMIT} characters")
    if len(event.get("message") or "") > _NOTE_LIMIT:
        yield invalid("message", "", f"can have at most {_NOTE_LIMIT} characters")


_DELETION = DeletionRules(collects_dependents=False)
STRATEGIES = {
    ("", "Event"): Strategy(default=_DEFAULTS, problems=_core_problems, deletion=_DELETION),
    ("events.k8s.io", "Event"): Strategy(default=_DEFAULTS, problems=_group_problems, deletion=_DELETION),
}
