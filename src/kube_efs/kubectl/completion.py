"""Completes the command line of ``kubectl efs``.

kubectl runs ``kubectl_complete-efs`` with the words after ``kubectl efs``, the last of which may be a part or
empty. The answer has a candidate on each line, and then ``:4``, which means that no file names follow.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from kube_efs.kubectl.program import contexts, names_of

_NO_FILES: Final = ":4"
# The values of these options are objects of the cluster.
_NAMESPACES: Final = frozenset({"--namespace", "-n", "--system-namespace"})
_CLAIMS: Final = "--claim"
_CONTEXTS: Final = "--context"


def complete(command: Any, words: Sequence[str]) -> str:  # noqa: ANN401 - typer's own copy of click
    """The answer for these words of a command of typer."""
    *before, last = words or [""]
    found = sorted(one for one in _candidates(command, before, last) if one.startswith(last))
    return "".join(f"{line}\n" for line in (*found, _NO_FILES))


def _candidates(command: Any, before: Sequence[str], last: str) -> Iterable[str]:  # noqa: ANN401 - as above
    values = _option_values(before)
    while before and (inner := getattr(command, "commands", {}).get(before[0])):
        command, before = inner, before[1:]
    options = {name: one for one in command.params for name in one.opts if name.startswith("-")}
    option = options.get(before[-1]) if before else None
    if option is not None and not option.is_flag:
        return _values(before[-1], option, values)
    if last.startswith("-"):
        return [*options, "--help"]
    if commands := getattr(command, "commands", None):
        return list(commands)
    takes_claim = any(one.param_type_name == "argument" for one in command.params)
    return _claims(values) if takes_claim else ()


def _values(name: str, option: Any, values: dict[str, str]) -> Iterable[str]:  # noqa: ANN401 - as above
    if name == _CONTEXTS:
        return contexts(values.get("--kubeconfig"))
    if name in _NAMESPACES:
        return names_of("namespaces", **_place(values), namespace=None)
    if name == _CLAIMS:
        return _claims(values)
    # Versions of typer differ in where an option has its type, but not in its default.
    return list(type(option.default)) if isinstance(option.default, StrEnum) else ()


def _claims(values: dict[str, str]) -> list[str]:
    namespace = values.get("--namespace") or values.get("-n")
    return names_of("persistentvolumeclaims", **_place(values), namespace=namespace)


def _place(values: dict[str, str]) -> dict[str, str | None]:
    return {"kubeconfig": values.get("--kubeconfig"), "context": values.get("--context")}


def _option_values(words: Sequence[str]) -> dict[str, str]:
    """The options with their values, as ``--name value`` or ``--name=value``."""
    joined = (word.partition("=") for word in words if word.startswith("--") and "=" in word)
    values = dict(pairwise(words)) | {name: value for name, _, value in joined}
    return {name: value for name, value in values.items() if name.startswith("-")}
