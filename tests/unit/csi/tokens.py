"""Tokens of service accounts as a kubelet adds them to requests."""

import base64
import json

TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
ROLE = "arn:aws:iam::123456789012:role/web"


def pod_token(namespace: str, name: str, audience: str, number: int = 1) -> str:
    """A JWT without a signature; ``number`` distinguishes a later one."""
    claims = {"aud": [audience], "sub": f"system:serviceaccount:{namespace}:{name}", "jti": number}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{payload}.c2lnbmF0dXJl"


def token_context(namespace: str, name: str, number: int = 1) -> dict[str, str]:
    """The entry of the volume context for both audiences."""
    audiences = ("sts.amazonaws.com", "pods.eks.amazonaws.com")
    tokens = {one: {"token": pod_token(namespace, name, one, number)} for one in audiences}
    return {TOKENS: json.dumps(tokens)}
