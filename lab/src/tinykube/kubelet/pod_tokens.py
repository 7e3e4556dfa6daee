"""Tokens of the service accounts of pods, for files in the pods and for CSI drivers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from lightkube import AsyncClient
from lightkube.models.authentication_v1 import BoundObjectReference, TokenRequestSpec, TokenRequestStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import CSIDriverSpec
from lightkube.resources.core_v1 import ServiceAccountToken
from lightkube.resources.storage_v1 import CSIDriver

from tinykube.client.calls import unless_missing
from tinykube.errors import NotYet
from tinykube.kubelet.pods import Pod

_SECONDS = 3600
# As in pkg/kubelet/token: a new token when a fifth of the life of the known one is left.
_USED = 0.8
_TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """What a driver gets besides the attributes of a volume, and whether it gets it again and again."""

    attributes: Mapping[str, str] = field(default_factory=dict)
    again: bool = False


class PodTokens:
    """Asks the API server for tokens; those for drivers are kept for most of their life."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], tuple[datetime, TokenRequestStatus]] = {}

    async def request(self, pod: Pod, audience: str | None, seconds: int | None) -> TokenRequestStatus:
        """A token of the pod's service account that is good as long as the pod is there."""
        bound = BoundObjectReference(apiVersion="v1", kind="Pod", name=pod.name, uid=pod.uid)
        request = ServiceAccountToken(
            metadata=ObjectMeta(namespace=pod.namespace),
            spec=TokenRequestSpec(
                audiences=[audience] if audience else [],
                expirationSeconds=seconds or _SECONDS,
                boundObjectRef=bound,
            ),
        )
        account = pod.spec.serviceAccountName or "default"
        issued = await self._client.create(request, account, namespace=pod.namespace)
        if issued.status is None:
            raise NotYet(f'serviceaccount "{account}" got no token')
        return issued.status

    async def context(self, pod: Pod, driver: str) -> PodContext:
        """What the CSIDriver of that name asks for, for this pod."""
        found = await unless_missing(self._client.get(CSIDriver, driver))
        spec = (found and found.spec) or CSIDriverSpec()
        tokens = {}
        for wanted in spec.tokenRequests or ():
            issued = await self._kept(pod, wanted.audience, wanted.expirationSeconds)
            ends = f"{issued.expirationTimestamp:%Y-%m-%dT%H:%M:%SZ}"
            tokens[wanted.audience] = {"token": issued.token, "expirationTimestamp": ends}
        return PodContext(
            attributes={_TOKENS: json.dumps(tokens)} if tokens else {}, again=bool(spec.requiresRepublish)
        )

    async def _kept(self, pod: Pod, audience: str, seconds: int | None) -> TokenRequestStatus:
        now = datetime.now(UTC)
        self._known = {key: known for key, known in self._known.items() if known[0] > now}
        key = pod.uid, audience
        if key not in self._known:
            issued = await self.request(pod, audience, seconds)
            self._known[key] = now + timedelta(seconds=_USED * (seconds or _SECONDS)), issued
        return self._known[key][1]
