"""Answers to reviews of access and identity: whoever this server knows may do everything."""

from tinykube.objects.json_types import Json
from tinykube.objects.resources import ResourceType
from tinykube.objects.users import User


def answer_review(resource: ResourceType, review: Json, user: User) -> Json:
    """The review of that user with its status."""
    is_about_identity = resource.kind == "SelfSubjectReview"
    identity: Json = {"userInfo": {"username": user.name, "groups": list(user.groups)}}
    return {
        **review,
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": review.get("metadata") or {},
        "spec": review.get("spec") or {},
        "status": identity if is_about_identity else {"allowed": True},
    }
