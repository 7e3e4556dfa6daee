"""How pods get roles: web identity at STS, and the agent of EKS Pod Identity on the node.

Both exchange a token of a service account for credentials of a role. They judge it by its claims: audience,
end and subject. Its signature is not checked, for there is no OpenID provider here.

Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html and
https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html
"""

import base64
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from xml.sax.saxutils import escape

from aiohttp import web

from fake_efs.identities import Identities, Identity

_STS = "sts.amazonaws.com"
_POD_IDENTITY = "pods.eks.amazonaws.com"
_ANSWER = """\
<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>{token}</SessionToken><Expiration>{end}</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult>
<ResponseMetadata><RequestId>0</RequestId></ResponseMetadata>
</AssumeRoleWithWebIdentityResponse>
"""
_REFUSAL = """\
<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>
<RequestId>0</RequestId></ErrorResponse>
"""


class PodRoles:
    """Both services on a free port of ``host``. Roles trust the service accounts that ``trust`` names.

    ``life`` is how long credentials are good, ``sessions`` how often a role was given, ``secrets`` are the
    tokens and keys that no log may show.
    """

    def __init__(self, identities: Identities, *, host: str = "127.0.0.1") -> None:
        self._identities = identities
        self._host = host
        self._trusted: set[tuple[str, str]] = set()
        self._associated: dict[str, str] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.life = timedelta(hours=1)
        self.sessions: Counter[str] = Counter()
        self.secrets: set[str] = set()

    async def start(self) -> None:
        """Listen; ``url`` is set from now on."""
        application = web.Application()
        application.router.add_post("/", self._assume_role)
        application.router.add_get("/v1/credentials", self._agent)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def trust(self, role_arn: str, namespace: str, service_account: str) -> None:
        """Let pods of the service account assume the role by web identity."""
        self._trusted.add((role_arn, _subject(namespace, service_account)))

    def distrust(self, role_arn: str) -> None:
        """Let nobody assume the role."""
        self._trusted = {one for one in self._trusted if one[0] != role_arn}

    def associate(self, namespace: str, service_account: str, role_arn: str) -> None:
        """Give pods of the service account the role by EKS Pod Identity."""
        self._associated[_subject(namespace, service_account)] = role_arn

    async def _assume_role(self, request: web.Request) -> web.Response:
        form = await request.post()
        role, token = str(form.get("RoleArn", "")), str(form.get("WebIdentityToken", ""))
        subject = self._subject_of(token, _STS)
        if form.get("Action") != "AssumeRoleWithWebIdentity" or subject is None:
            return _refused(400, "InvalidIdentityToken", f"Couldn't use the token {token}")
        if (role, subject) not in self._trusted:
            return _refused(403, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity")
        session = self._session(role)
        keys = session.credentials
        text = _ANSWER.format(
            key=keys.access_key_id, secret=keys.secret_access_key, token=keys.session_token, end=_end(session)
        )
        return web.Response(text=text, content_type="text/xml")

    async def _agent(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "")
        role = self._associated.get(self._subject_of(token, _POD_IDENTITY) or "")
        if role is None:
            return web.Response(status=404, text="no association for this service account")
        session = self._session(role)
        document = {
            "AccessKeyId": session.credentials.access_key_id,
            "SecretAccessKey": session.credentials.secret_access_key,
            "Token": session.credentials.session_token,
            "AccountId": role.split(":")[4],
            "Expiration": _end(session),
        }
        return web.json_response(document)

    def _session(self, role: str) -> Identity:
        self.sessions[role] += 1
        session = self._identities.assume(role, self.life)
        self.secrets.add(session.credentials.secret_access_key)
        return session

    def _subject_of(self, token: str, audience: str) -> str | None:
        """Whose token it is; None unless it is for the audience and has not ended."""
        self.secrets.add(token)
        try:
            _, payload, _ = token.split(".")
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            is_good = audience in claims["aud"] and claims["exp"] > datetime.now(UTC).timestamp()
            return str(claims["sub"]) if is_good else None
        except (ValueError, LookupError, TypeError):
            return None


def _subject(namespace: str, service_account: str) -> str:
    return f"system:serviceaccount:{namespace}:{service_account}"


def _end(session: Identity) -> str:
    return f"{session.expires_at:%Y-%m-%dT%H:%M:%SZ}"


def _refused(status: int, code: str, message: str) -> web.Response:
    text = _REFUSAL.format(code=code, message=escape(message))
    return web.Response(status=status, text=text, content_type="text/xml")
