"""Events (pkg/apis/core/validation/events.go)."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.json_types import Json, lookup
from tinykube.objects.label_syntax import label_key_problems
from tinykube.objects.statuses import Cause, invalid, required
from tinykube.objects.strategies import Strategy

_NOTE_LIMIT = 1024
_TEXT_LIMIT = 128
_FREE_NAMESPACES = frozenset({"default", "kube-system"})
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


def _problems(event: Json, _old: Json | None) -> Iterator[Cause]:
    namespace = event["metadata"].get("namespace", "")
    about = lookup(event, "involvedObject", "namespace") or ""
    if about != namespace and (about or namespace not in _FREE_NAMESPACES):
        yield invalid("involvedObject.namespace", about, "does not match event.namespace")
    if not event.get("eventTime"):
        return
    controller = event.get("reportingComponent") or ""
    if not controller:
        yield required("reportingComponent")
    for problem in label_key_problems(controller):
        yield invalid("reportingComponent", controller, problem)
    for field in ("reportingInstance", "action", "reason"):
        if not event.get(field):
            yield required(field)
        elif len(event[field]) > _TEXT_LIMIT:
            yield invalid(field, "", f"can have at most {_TEXT_LIMIT} characters")
    if len(event.get("message") or "") > _NOTE_LIMIT:
        yield invalid("message", "", f"can have at most {_NOTE_LIMIT} characters")


STRATEGIES = {
    ("", "Event"): Strategy(
        default=_DEFAULTS, problems=_problems, deletion=DeletionRules(collects_dependents=False)
    ),
}
