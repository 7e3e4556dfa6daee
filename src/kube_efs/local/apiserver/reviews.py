"""Answers to reviews of access and identity: the one user of this server may do everything."""

from kube_efs.local.apiserver.json_types import Json
from kube_efs.local.apiserver.resources import ResourceType

USER = {"username": "kube-efs-admin", "groups": ["system:masters", "system:authenticated"]}
_RULES = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


def answer_review(resource: ResourceType, review: Json) -> Json:
    """The review with its status."""
    match resource.kind:
        case "SelfSubjectReview":
            status: Json = {"userInfo": USER}
        case "SelfSubjectRulesReview":
            status = _RULES
        case _:
            status = {"allowed": True}
    return {
        **review,
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": review.get("metadata") or {},
        "spec": review.get("spec") or {},
        "status": status,
    }
