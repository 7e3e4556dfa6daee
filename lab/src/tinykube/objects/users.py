"""Who asks: the administrator, or a service account with a token that this server has issued."""

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from tinykube.objects.resources import GroupResource
from tinykube.objects.statuses import Subject, invalid_option, not_found
from tinykube.objects.storage import ObjectKey, Store
from tinykube.objects.values import Json, lookup, timestamp

_ISSUER = "https://kubernetes.default.svc"
_ACCOUNTS = GroupResource("", "serviceaccounts")
_PODS = GroupResource("", "pods")
_SHORTEST_SECONDS = 600
_USUAL_SECONDS = 3600
# What admission asks for in pods that may never ask again: such tokens are good for a year
# (pkg/registry/core/serviceaccount/storage/token.go).
POD_TOKEN_SECONDS = 3607
_POD_TOKEN_LIFE = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class User:
    """A user as reviews show it."""

    name: str
    groups: tuple[str, ...]


ADMINISTRATOR = User("kube-efs-admin", ("system:masters", "system:authenticated"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticket:
    """What a token stands for: as long as these objects are there, and until then."""

    account: ObjectKey
    account_uid: str
    pod: ObjectKey | None
    pod_uid: str
    until: datetime
    for_this_server: bool


class Users:
    """Issues tokens and recognises them; they are gone with the server, as everything else."""

    def __init__(self, store: Store, administrator_token: str) -> None:
        self._store = store
        self._administrator_token = administrator_token
        self._tickets: dict[str, _Ticket] = {}

    def find(self, token: str, now: datetime) -> User | None:
        """Whose token it is; None when nobody may use it (any more)."""
        if hmac.compare_digest(token.encode(), self._administrator_token.encode()):
            return ADMINISTRATOR
        ticket = self._tickets.get(token)
        if ticket is None or not self._is_good(ticket, now):
            return None
        namespace, name = ticket.account
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return User(f"system:serviceaccount:{namespace}:{name}", groups)

    def issue(self, account: Json, request: Json, now: datetime) -> Json:
        """The answer to a TokenRequest for a service account; raises 404 or 422."""
        key = _key(account)
        spec = request.get("spec") or {}
        seconds = lookup(spec, "expirationSeconds") or _USUAL_SECONDS
        audiences = lookup(spec, "audiences") or [_ISSUER]
        if seconds < _SHORTEST_SECONDS:
            raise invalid_option("spec.expirationSeconds", f"must be at least {_SHORTEST_SECONDS}")
        pod, pod_uid = self._bound_pod(key.namespace, lookup(spec, "boundObjectRef"))
        expires = now + timedelta(seconds=seconds)
        extended = pod is not None and seconds == POD_TOKEN_SECONDS
        token = secrets.token_urlsafe(32)
        self._tickets = {one: kept for one, kept in self._tickets.items() if self._is_good(kept, now)}
        self._tickets[token] = _Ticket(
            account=key,
            account_uid=account["metadata"]["uid"],
            pod=pod,
            pod_uid=pod_uid,
            until=now + _POD_TOKEN_LIFE if extended else expires,
            for_this_server=_ISSUER in audiences,
        )
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "creationTimestamp": timestamp(now),
            },
            "spec": {**spec, "audiences": audiences, "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": timestamp(expires)},
        }

    def _bound_pod(self, namespace: str, reference: Json | None) -> tuple[ObjectKey | None, str]:
        if not reference or reference.get("kind") != "Pod":
            return None, ""
        key = ObjectKey(namespace, reference.get("name", ""))
        uid = self._uid_of(_PODS, key)
        if uid is None or reference.get("uid") not in {None, uid}:
            raise not_found(Subject(group="", resource="pods", name=key.name))
        return key, uid

    def _is_good(self, ticket: _Ticket, now: datetime) -> bool:
        return (
            ticket.for_this_server
            and now < ticket.until
            and self._uid_of(_ACCOUNTS, ticket.account) == ticket.account_uid
            and (ticket.pod is None or self._uid_of(_PODS, ticket.pod) == ticket.pod_uid)
        )

    def _uid_of(self, resource: GroupResource, key: ObjectKey) -> str | None:
        found = self._store.get(resource, key)
        return found.json["metadata"]["uid"] if found else None


def _key(found: Json) -> ObjectKey:
    return ObjectKey(found["metadata"]["namespace"], found["metadata"]["name"])
