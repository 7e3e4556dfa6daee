"""Roles and their bindings."""

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.json_types import Json
from tinykube.objects.names import path_segment_problem
from tinykube.objects.strategies import Strategy

_GROUP = "rbac.authorization.k8s.io"


def _subject(subject: Json) -> Json:
    if subject.get("kind") in {"User", "Group"} and not subject.get("apiGroup"):
        return {**subject, "apiGroup": _GROUP}
    return subject


_ROLE = Strategy(name_rule=path_segment_problem)
_BINDING = Strategy(
    name_rule=path_segment_problem,
    default=Defaults(
        inside={"roleRef": Defaults(values={"apiGroup": _GROUP}), "subjects": Defaults(then=_subject)}
    ),
    immutable=("roleRef",),
)
STRATEGIES = {
    (_GROUP, "Role"): _ROLE,
    (_GROUP, "ClusterRole"): _ROLE,
    (_GROUP, "RoleBinding"): _BINDING,
    (_GROUP, "ClusterRoleBinding"): _BINDING,
}
