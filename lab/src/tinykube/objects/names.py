"""What objects may be called, and what Kubernetes says about those that may not.

The rules and sentences are those of ``k8s.io/apimachinery/pkg/util/validation``. Each function gives the
problem, or an empty string.
"""

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} characters"


def subdomain_problem(name: str) -> str:
    """An RFC 1123 subdomain, as most names are."""
    if len(name) > 253:
        return _too_long(253)
    if _SUBDOMAIN.fullmatch(name):
        return ""
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
        "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation "
        f"is '{_SUBDOMAIN.pattern}')"
    )


def label_problem(name: str) -> str:
    """An RFC 1123 label, as names of namespaces are."""
    if "." in name:
        return "must not contain dots"
    if len(name) > 63:
        return _too_long(63)
    if _LABEL.fullmatch(name):
        return ""
    return (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must "
        "start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for "
        f"validation is '{_LABEL.pattern}')"
    )


def service_name_problem(name: str) -> str:
    """An RFC 1035 label, as names of services are."""
    if len(name) > 63:
        return _too_long(63)
    if _SERVICE_LABEL.fullmatch(name):
        return ""
    return (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
        "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
        f"regex used for validation is '{_SERVICE_LABEL.pattern}')"
    )


def config_key_problem(key: str) -> str:
    """A key of a config map or secret: what can be a file's name."""
    if len(key) > 253:
        return _too_long(253)
    if not _CONFIG_KEY.fullmatch(key):
        return (
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  "
            f"or 'KEY_NAME',  or 'key-name', regex used for validation is '{_CONFIG_KEY.pattern}')"
        )
    if key in {".", ".."}:
        return f"must not be '{key}'"
    return "must not start with '..'" if key.startswith("..") else ""


def path_segment_problem(name: str) -> str:
    """Anything that can stand in a path, as names of RBAC objects are."""
    if name in {".", ".."}:
        return f"may not be '{name}'"
    for forbidden in "/%":
        if forbidden in name:
            return f"may not contain '{forbidden}'"
    return ""
