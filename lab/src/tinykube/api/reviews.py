"""Answers to reviews of access and identity: whoever this server knows may do everything."""

from tinykube.objects.json_types import Json
from tinykube.objects.resources import ResourceType
from tinykube.objects.users import User

_RULES = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


def answer_review(resource: ResourceType, review: Json, user: User) -> Json:
    """The review of that user with its status."""
    match resource.kind:
        case "SelfSubjectReview":
            status: Json = {"userInfo": {"username": user.name, "groups": list(user.groups)}}
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
