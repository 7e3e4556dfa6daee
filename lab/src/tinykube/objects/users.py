"""Who asks: the administrator, or a service account with a token that this server has issued."""

import base64
import hmac
import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from tinykube.objects.resources import GroupResource
from tinykube.objects.storage import ObjectKey, Store, Stored
from tinykube.objects.values import Json, timestamp

_ACCOUNTS = GroupResource("", "serviceaccounts")
# What admission asks for in pods, which may never ask again.
POD_TOKEN_SECONDS = 3607


@dataclass(frozen=True, slots=True)
class User:
    """A user as reviews show it."""

    name: str
    groups: tuple[str, ...]


ADMINISTRATOR = User("administrator", ("system:masters", "system:authenticated"))


class Users:
    """Issues tokens and recognises them; a token is good as long as its service account is there."""

    def __init__(self, store: Store, administrator_token: str) -> None:
        self._store = store
        self._administrator_token = administrator_token
        self._uid_by_token: dict[str, tuple[ObjectKey, str]] = {}

    def find(self, token: str) -> User | None:
        """Whose token it is; None when nobody may use it (any more)."""
        if hmac.compare_digest(token.encode(), self._administrator_token.encode()):
            return ADMINISTRATOR
        account, uid = self._uid_by_token.get(token, (ObjectKey("", ""), ""))
        found = self._store.get(_ACCOUNTS, account)
        if found is None or found.json["metadata"]["uid"] != uid:
            return None
        namespace, name = account
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return User(f"system:serviceaccount:{namespace}:{name}", groups)

    def issue(self, account: Stored, request: Json, now: datetime) -> Json:
        """The answer to a TokenRequest for a service account."""
        spec = request.get("spec") or {}
        expires = now + timedelta(seconds=spec.get("expirationSeconds") or POD_TOKEN_SECONDS)
        claims = {
            "aud": spec.get("audiences") or [],
            "exp": int(expires.timestamp()),
            "sub": f"system:serviceaccount:{account.key.namespace}:{account.key.name}",
        }
        # A random text instead of a signature: nobody but this server can check it, and it knows its tokens.
        token = f"{_encoded({'alg': 'none', 'typ': 'JWT'})}.{_encoded(claims)}.{secrets.token_urlsafe(32)}"
        self._uid_by_token[token] = account.key, account.json["metadata"]["uid"]
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {**account.key._asdict(), "creationTimestamp": timestamp(now)},
            "spec": spec,
            "status": {"token": token, "expirationTimestamp": timestamp(expires)},
        }


def _encoded(part: Json) -> str:
    """A part of a JWT."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
