"""Objects and texts without secrets, for what leaves the cluster.

More is taken out here than from logs: whoever gets a bundle may be anybody.
"""

import re
import string
from collections.abc import Mapping
from typing import Any, Final

from kube_efs.telemetry.secrets import REMOVED, text_without_secrets, without_secrets

# What kubectl and the API server remember of an object is the object once more.
_ECHOES: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_CONTENT: Final = ("data", "stringData", "binaryData")

_PATTERNS: Final = (
    # A PEM file once more in base 64, as Secrets and kubeconfigs have it: "-----BEGIN" by its first bytes. It
    # may be in lines of 76.
    re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]+(?:(?:\\n|\s)+[A-Za-z0-9+/]{40,}={0,2}(?![\w+/=]))*"),
    # JSON in base 64, as pull secrets are: an object by its first bytes.
    re.compile(r"(?<![A-Za-z0-9+/=_-])(?:eyJ|ewog|ewoJ)[A-Za-z0-9+/_-]{20,}={0,2}(?![\w.])"),
    # Ids of AWS access keys: no secrets, but half of one.
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    # Session tokens of AWS, which begin so, and other long runs of base 64.
    re.compile(r"\b(?:IQoJ|FwoG|FQoG)[A-Za-z0-9+/=]{40,}"),
    re.compile(
        r"(?<![A-Za-z0-9+/=_-])(?=[A-Za-z0-9+/]*[0-9])(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[a-z])"
        r"[A-Za-z0-9+/]{64,}={0,2}"
    ),
    # Passwords in URLs, and tokens that take the place of a user.
    re.compile(r"(?<=://)[^\s/@\"']+(?=@)"),
    # As STS answers.
    re.compile(r"(?<=<SecretAccessKey>)[^<]+|(?<=<SessionToken>)[^<]+"),
)

# What is named as a secret: with dashes in the name too, with blanks in a quoted value, in JSON within JSON.
_NAMED: Final = re.compile(
    r"(?P<name>(?:token|secret|passw(?:or)?d|passphrase|(?:\b|_)(?:auth|pass|pwd)"
    r"|(?:api|access|secret|private)[-_]?key)(?:\\*[\"'])?\s*[=:]\s*(?:[|>][-+]?(?:\s|\\+n)+)?)"
    r"(?!\[removed\])(?:\\+\".*?\\+\"|\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\*[\"']?[^\s\"',;&]+)",
    re.IGNORECASE,
)

_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_KEY_END: Final = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
# With line ends, also those within JSON.
_BASE64: Final = f"{string.ascii_letters}{string.digits}+/=\\{string.whitespace}"
_OPTION: Final = re.compile(r"--?[\w-]*(?:token|secret|passw(?:or)?d|key)", re.IGNORECASE)


def redacted_text(text: str) -> str:
    """The text without anything that has the shape of a secret."""
    text = _without_keys(text)
    for pattern in _PATTERNS:
        text = pattern.sub(REMOVED, text)
    text = _NAMED.sub(rf"\g<name>{REMOVED}", text)
    return text_without_secrets(text)


def _without_keys(text: str) -> str:
    """The text without private keys, also without the end of one that a log's tail begins in."""
    *before, last = _KEY_END.split(_KEY.sub(REMOVED, text))
    return "".join([*(f"{one.rstrip(_BASE64)}{REMOVED}" for one in before), last])


def redacted(found: Any) -> Any:  # noqa: ANN401 - any JSON
    """The same object without secrets, at any depth; of a Secret only its name and type are left."""
    match found:
        case Mapping():
            return _redacted_mapping(found)
        case list() | tuple():
            return [_item(before, one) for before, one in zip(("", *found), found, strict=False)]
        case str():
            return redacted_text(found)
        case _:
            return found


def _item(before: Any, found: Any) -> Any:  # noqa: ANN401 - any JSON
    """Of a program's arguments one may be the value of the one before."""
    if isinstance(before, str) and isinstance(found, str) and _OPTION.fullmatch(before):
        return REMOVED
    return redacted(found)


def _redacted_mapping(found: Mapping[str, Any]) -> dict[str, Any]:
    left_out = _ECHOES.union(_CONTENT if found.get("kind") == "Secret" else ())
    if found.get("kind") == "SecretList":  # whose items do not say what they are
        found = {**found, "items": [{**one, "kind": "Secret"} for one in found.get("items") or ()]}
    name = found.get("name")
    return {
        # The value of an environment variable is judged by the variable's name.
        key: _field(name if key == "value" and isinstance(name, str) else key, value)
        for key, value in found.items()
        if key not in left_out
    }


def _field(key: str, value: Any) -> Any:  # noqa: ANN401 - any JSON
    if not isinstance(value, str):
        return redacted(value)
    is_secret = without_secrets({key: "any"})[key] == REMOVED
    return REMOVED if value and is_secret else redacted_text(value)
