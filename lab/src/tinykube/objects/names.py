"""What objects, labels and keys may be called, after ``k8s.io/apimachinery/pkg/util/validation``.

Each function gives the problem, or an empty string.
"""

import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LABEL_NAME = re.compile(_LABEL)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_NAME_LIMIT = 253
_LABEL_LIMIT = 63


def subdomain_problem(name: str) -> str:
    """An RFC 1123 subdomain, as most names are."""
    fits = len(name) <= _NAME_LIMIT and _SUBDOMAIN.fullmatch(name)
    return "" if fits else f"must be a lowercase RFC 1123 subdomain of at most {_NAME_LIMIT} characters"


def label_problem(name: str) -> str:
    """An RFC 1123 label, as names of namespaces are."""
    fits = len(name) <= _LABEL_LIMIT and _LABEL_NAME.fullmatch(name)
    return "" if fits else f"must be a lowercase RFC 1123 label of at most {_LABEL_LIMIT} characters"


def path_segment_problem(name: str) -> str:
    """Anything that can stand in a path, as names of RBAC objects are."""
    fits = name not in {".", ".."} and "/" not in name and "%" not in name
    return "" if fits else "must not be '.' or '..', nor contain '/' or '%'"


def label_key_problem(key: str) -> str:
    """The key of a label or annotation: a name, after an optional domain and a slash."""
    prefix, slash, name = key.rpartition("/")
    fits = len(name) <= _LABEL_LIMIT and _QUALIFIED.fullmatch(name)
    if fits and not (slash and subdomain_problem(prefix)):
        return ""
    return (
        "must be letters, digits, '-', '_' and '.', at most 63 of them, that begin and end with a letter "
        "or digit, after an optional domain and '/'"
    )


def label_value_problem(value: str) -> str:
    """The value of a label."""
    if not value or (len(value) <= _LABEL_LIMIT and _QUALIFIED.fullmatch(value)):
        return ""
    return (
        "must be letters, digits, '-', '_' and '.', at most 63 of them, that begin and end with a letter "
        "or digit"
    )
