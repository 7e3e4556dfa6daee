"""Roles and their bindings."""

from collections.abc import Iterator

from kube_efs.local.apiserver.json_types import Json
from kube_efs.local.apiserver.kinds.defaulting import Defaults
from kube_efs.local.apiserver.names import path_segment_problem
from kube_efs.local.apiserver.statuses import Cause, not_supported, required
from kube_efs.local.apiserver.strategies import Strategy

_GROUP = "rbac.authorization.k8s.io"
_SUBJECT_KINDS = ("ServiceAccount", "User", "Group")


def _subject(subject: Json) -> Json:
    if subject.get("kind") in {"User", "Group"} and not subject.get("apiGroup"):
        return {**subject, "apiGroup": _GROUP}
    return subject


def _binding_problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    role = new.get("roleRef") or {}
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
    (_GROUP, "Role"): Strategy(name_rule=path_segment_problem),
    (_GROUP, "ClusterRole"): Strategy(name_rule=path_segment_problem),
    (_GROUP, "RoleBinding"): Strategy(
        name_rule=path_segment_problem, default=_BINDING, problems=_binding_problems
    ),
    (_GROUP, "ClusterRoleBinding"): Strategy(
        name_rule=path_segment_problem, default=_BINDING, problems=_binding_problems
    ),
}
