"""Asks the API server for the permissions of service accounts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from lightkube import AsyncClient
from lightkube.models.authorization_v1 import (
    ResourceAttributes,
    SelfSubjectAccessReviewSpec,
    SubjectAccessReviewSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.authentication_v1 import SelfSubjectReview
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview, SubjectAccessReview

from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.grants import Grant, Right
from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeDenied

_AT_ONCE: Final = 8

_Ask: TypeAlias = Callable[[Grant], Awaitable[bool]]


async def missing_rights(
    client: AsyncClient, grants: Sequence[Grant], attempts: Attempts
) -> tuple[Grant, ...]:
    """The grants that are missing, in order.

    Who may not ask about others, as a service account may not, asks about himself.
    """
    if not grants:
        return ()
    try:
        return await _refused(grants, lambda one: _may(client, one))
    except KubeDenied as error:
        me = await _own_name(client)
        own = [one for one in grants if one.account.user == me]
        for account in sorted({one.account for one in grants if one not in own}):
            attempts.miss(f"the permissions of ServiceAccount {account.namespace}/{account.name}", str(error))
        return await _refused(own, lambda one: _may_i(client, one.right))


async def _refused(grants: Sequence[Grant], ask: _Ask) -> tuple[Grant, ...]:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def allowed(one: Grant) -> bool:
        async with slots:
            return await ask(one)

    answers = await asyncio.gather(*map(allowed, grants))
    return tuple(one for one, answer in zip(grants, answers, strict=True) if not answer)


async def _may(client: AsyncClient, grant: Grant) -> bool:
    spec = SubjectAccessReviewSpec(
        user=grant.account.user,
        groups=list(grant.account.groups),
        resourceAttributes=_attributes(grant.right),
    )
    with translated("SubjectAccessReview"):
        review = await client.create(SubjectAccessReview(metadata=ObjectMeta(), spec=spec))
    return bool(review.status and review.status.allowed)


async def _may_i(client: AsyncClient, right: Right) -> bool:
    spec = SelfSubjectAccessReviewSpec(resourceAttributes=_attributes(right))
    with translated("SelfSubjectAccessReview"):
        review = await client.create(SelfSubjectAccessReview(metadata=ObjectMeta(), spec=spec))
    return bool(review.status and review.status.allowed)


async def _own_name(client: AsyncClient) -> str:
    with translated("SelfSubjectReview"):
        review = await client.create(SelfSubjectReview(metadata=ObjectMeta()))
    return (review.status and review.status.userInfo and review.status.userInfo.username) or ""


def _attributes(right: Right) -> ResourceAttributes:
    resource, _, subresource = right.resource.partition("/")
    return ResourceAttributes(
        verb=right.verb,
        group=right.group,
        resource=resource,
        subresource=subresource,
        namespace=right.namespace,
        name=right.name,
    )
