"""Objects and texts without secrets, for what leaves the cluster.

``kube_efs.model.secrets`` says what a secret looks like. More than that is removed here: a bundle may be
shared.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from kube_efs.model.secrets import REMOVED, is_secret_name, proxy_without_password, text_without_secrets

# What kubectl and the API server remember of an object is the object once more.
_ECHOES: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_CONTENT: Final = ("data", "stringData", "binaryData")
# Ids of AWS access keys: no secrets, but half of one.
_KEY_ID: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
# The fields of references to Secrets and of projected tokens.
_REFERENCE: Final = frozenset(
    {"name", "namespace", "secretName", "key", "path", "mode", "defaultMode", "optional"}
    | {"audience", "expirationSeconds"}
)
_OPTION: Final = re.compile(r"--?[\w-]+")


def redacted_text(text: str) -> str:
    """The text without anything that has the shape of a secret."""
    return text_without_secrets(_KEY_ID.sub(REMOVED, text))


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
        return _field(before, found)
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
    # The value of an option such as --key is usually a path, which is not needed.
    is_key_option = key.startswith("-") and key.lower().endswith("key")
    is_count = isinstance(value, int | float) and key.lower().endswith("s")  # tokens: 3
    if (is_secret_name(key) or is_key_option) and not is_count:
        return _without_values(value)
    return redacted(proxy_without_password(key, value) if isinstance(value, str) else value)


def _without_values(found: Any) -> Any:  # noqa: ANN401 - any JSON
    """A secret at any depth. ``imagePullSecrets``, ``secret`` and ``serviceAccountToken`` refer to others."""
    match found:
        case Mapping():
            return {
                key: redacted(one) if key in _REFERENCE else _without_values(one)
                for key, one in found.items()
            }
        case list() | tuple():
            return list(map(_without_values, found))
        case _:
            return REMOVED if found and not isinstance(found, bool) else found
