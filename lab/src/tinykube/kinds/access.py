"""Roles and their bindings."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.json_types import Json, json_equal
from tinykube.objects.names import path_segment_problem
from tinykube.objects.statuses import Cause, invalid, not_supported, required
from tinykube.objects.strategies import Strategy

_GROUP = "rbac.authorization.k8s.io"
_GO_NAMES = {"apiGroup": "APIGroup", "kind": "Kind", "name": "Name"}
_SUBJECT_KINDS = ("ServiceAccount", "User", "Group")


def _subject(subject: Json) -> Json:
    if subject.get("kind") in {"User", "Group"} and not subject.get("apiGroup"):
        return {**subject, "apiGroup": _GROUP}
    return subject


def _role_problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    for index, rule in enumerate(new.get("rules") or ()):
        if not rule.get("verbs"):
            yield required(f"rules[{index}].verbs", "verbs must contain at least one value")


def _binding_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    role = new.get("roleRef") or {}
    if old is not None and not json_equal(role, old.get("roleRef")):
        # Kubernetes shows the fields by the names they have in Go.
        shown = {name: role.get(key, "") for key, name in _GO_NAMES.items()}
        yield invalid("roleRef", shown, "cannot change roleRef")
    for field in ("kind", "name"):
        if not role.get(field):
            yield required(f"roleRef.{field}")
    for index, subject in enumerate(new.get("subjects") or ()):
        if not subject.get("name"):
            yield required(f"subjects[{index}].name")
        if subject.get("kind") not in _SUBJECT_KINDS:
            yield not_supported(f"subjects[{index}].kind", subject.get("kind", ""), _SUBJECT_KINDS)


_BINDING = Defaults(
    inside={"roleRef": Defaults(values={"apiGroup": _GROUP}), "subjects": Defaults(then=_subject)}
)
STRATEGIES = {
    (_GROUP, "Role"): Strategy(name_rule=path_segment_problem, problems=_role_problems),
    (_GROUP, "ClusterRole"): Strategy(name_rule=path_segment_problem, problems=_role_problems),
    (_GROUP, "RoleBinding"): Strategy(
        name_rule=path_segment_problem, default=_BINDING, problems=_binding_problems
    ),
    (_GROUP, "ClusterRoleBinding"): Strategy(
        name_rule=path_segment_problem, default=_BINDING, problems=_binding_problems
    ),
}
