"""What the keys and values of labels may look like, and what Kubernetes says about those that do not.

The rules and sentences are those of ``k8s.io/apimachinery/pkg/util/validation``.
"""

import re

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_CHARACTERS = (
    "consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)
_KEY_RULE = (
    f"must {_CHARACTERS} (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    f"regex used for validation is '{_NAME.pattern}')"
)
_PREFIX_EXAMPLE = "(e.g. 'example.com/MyName')"
_VALUE_RULE = (
    f"a valid label must be an empty string or {_CHARACTERS} (e.g. 'MyValue',  or 'my_value',  or '12345', "
    f"regex used for validation is '({_NAME.pattern})?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com', "
    f"regex used for validation is '{_SUBDOMAIN.pattern}')"
)


def label_key_problem(key: str) -> str:
    """Why this cannot be the key of a label or annotation, in one sentence; empty when it can."""
    return "; ".join(label_key_problems(key))


def label_key_problems(key: str) -> list[str]:
    """Everything that is wrong with this as the key of a label or annotation."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_KEY_RULE} with an optional DNS subdomain prefix and '/' {_PREFIX_EXAMPLE}"
        ]
    return [*(_prefix_problems(prefix) if slash else []), *_name_problems(name)]


def label_value_problem(value: str) -> str:
    """Why this cannot be the value of a label; empty when it can."""
    problems = ["must be no more than 63 bytes"] if len(value) > 63 else []
    if value and not _NAME.fullmatch(value):
        problems.append(_VALUE_RULE)
    return "; ".join(problems)


def _prefix_problems(prefix: str) -> list[str]:
    if not prefix:
        return ["prefix part must be non-empty"]
    problems = ["prefix part must be no more than 253 bytes"] if len(prefix) > 253 else []
    if not _SUBDOMAIN.fullmatch(prefix):
        problems.append(f"prefix part {_SUBDOMAIN_RULE}")
    return problems


def _name_problems(name: str) -> list[str]:
    problems = [] if name else ["name part must be non-empty"]
    if len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _NAME.fullmatch(name):
        problems.append(f"name part {_KEY_RULE}")
    return problems
