"""Roles and their bindings."""

from kube_efs.local.apiserver.json_types import Json
from kube_efs.local.apiserver.kinds.defaulting import Defaults
from kube_efs.local.apiserver.names import path_segment_problem
from kube_efs.local.apiserver.strategies import Strategy

_GROUP = "rbac.authorization.k8s.io"


def _subject(subject: Json) -> Json:
    if subject.get("kind") in {"User", "Group"} and not subject.get("apiGroup"):
        return {**subject, "apiGroup": _GROUP}
    return subject


_BINDING = Defaults(
    inside={"roleRef": Defaults(values={"apiGroup": _GROUP}), "subjects": Defaults(then=_subject)}
)
STRATEGIES = {
    (_GROUP, "Role"): Strategy(name_rule=path_segment_problem),
    (_GROUP, "ClusterRole"): Strategy(name_rule=path_segment_problem),
    (_GROUP, "RoleBinding"): Strategy(name_rule=path_segment_problem, default=_BINDING),
    (_GROUP, "ClusterRoleBinding"): Strategy(name_rule=path_segment_problem, default=_BINDING),
}
