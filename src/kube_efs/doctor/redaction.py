"""Objects and texts without secrets, for what leaves the cluster.

More is taken out here than from logs: whoever gets a bundle may be anybody.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from kube_efs.telemetry.secrets import REMOVED, text_without_secrets, without_secrets

# What kubectl and the API server remember of an object is the object once more.
_ECHOES: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_CONTENT: Final = ("data", "stringData", "binaryData")

_PATTERNS: Final = (
    # A PEM file once more in base 64, as Secrets and kubeconfigs have it: "-----BEGIN" by its first bytes.
    re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]+"),
    # Ids of AWS access keys: no secrets, but half of one.
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    # Session tokens of AWS, which begin so, and other long runs of base 64.
    re.compile(r"\b(?:IQoJ|FwoG|FQoG)[A-Za-z0-9+/=]{40,}"),
    re.compile(
        r"(?<![A-Za-z0-9+/=_-])(?=[A-Za-z0-9+/]*[0-9])(?=[A-Za-z0-9+/]*[A-Z])[A-Za-z0-9+/]{100,}={0,2}"
    ),
    # Passwords in URLs.
    re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"),
)

# What is named as a secret: with dashes in the name too, with blanks in a quoted value, in JSON within JSON.
_NAMED: Final = re.compile(
    r"(?P<name>(?:token|secret|passw(?:or)?d|(?:api|access|secret|private)[-_]?key)(?:\\*[\"'])?\s*[=:]\s*)"
    r"(?!\[removed\])(?:\\+\".*?\\+\"|\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\*[\"']?[^\s\"',;&]+)",
    re.IGNORECASE,
)


def redacted_text(text: str) -> str:
    """The text without anything that has the shape of a secret."""
    for pattern in _PATTERNS:
        text = pattern.sub(REMOVED, text)
    text = _NAMED.sub(rf"\g<name>{REMOVED}", text)
    return text_without_secrets(text)


def redacted(found: Any) -> Any:  # noqa: ANN401 - any JSON
    """The same object without secrets, at any depth; of a Secret only its name and type are left."""
    match found:
        case Mapping():
            return _redacted_mapping(found)
        case list() | tuple():
            return [redacted(one) for one in found]
        case str():
            return redacted_text(found)
        case _:
            return found


def _redacted_mapping(found: Mapping[str, Any]) -> dict[str, Any]:
    left_out = _ECHOES.union(_CONTENT if found.get("kind") == "Secret" else ())
    name = found.get("name")
    return {
        # The value of an environment variable is judged by the variable's name.
        key: _field(name if key == "value" and isinstance(name, str) else key, value)
        for key, value in found.items()
        if key not in left_out
    }


def _field(key: str, value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return redacted_text(str(without_secrets({key: value})[key]))
    return redacted(value)
