"""The calls in the shell text of pages: which programs they name, and whether these accept their words.

Nothing is run, except ``kube-efs render``, which only prints. Commands of ``aws`` are compared with the
models of the API that AWS publishes with its client library.
"""

import io
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final

import botocore.session
from botocore import xform_name
from botocore.exceptions import UnknownServiceError
from botocore.model import OperationModel
from tests.docs.test_manuals import COMMANDS
from typer import BadParameter
from typer.main import get_command
from typer.testing import CliRunner

from kube_efs.cli import app
from kube_efs.kubectl import plugin
from kube_efs.model.csi.cross_account import ROLE_ARN

# What shells have, and every machine.
_ORDINARY: Final = frozenset({"cp", "echo", "false", "grep", "read", "sed", "sleep", "true"})
_KEYWORDS: Final = frozenset({"while", "until", "do", "done", "if", "then", "fi", "!", "{", "}"})
_SEPARATORS: Final = frozenset("|&;()\n")
_ASSIGNMENT: Final = re.compile(r"\w+=")
# Options of the program itself, with the number of words that follow.
_AWS_OPTIONS: Final = {"--output": 1, "--profile": 1, "--query": 1, "--region": 1}
# What a command raises for words that it does not take. Typer has no public name for it.
_UsageError: Any = BadParameter.__mro__[1]
_MANAGED: Final = re.compile(r"arn:aws:iam::aws:policy/service-role/(\w+)")


def calls(text: str) -> Iterator[list[str]]:
    """The words of each call in a shell text, also of those in ``$(…)``; raises ValueError."""
    for inner in re.findall(r'"\$\(([^"]*?)\)"', text):
        yield from calls(inner)
    lexer = shlex.shlex(io.StringIO(text.replace("\\\n", " ")), posix=True, punctuation_chars="|&;()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    call: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= _SEPARATORS:
            if call:
                yield call
            call = []
        elif call or not (word in _KEYWORDS or _ASSIGNMENT.match(word)):
            call.append(word)


def problem(call: Sequence[str], *, documents: Collection[str] = (), is_complete: bool = True) -> str:
    """Why a program does not accept these words, or that it is unknown here; empty if it does.

    ``documents`` are the files that the reader has. Unless ``is_complete``, required options may be missing.
    """
    program, *words = call
    match program:
        case "kube-efs":
            return _own(tuple(words), is_complete=is_complete)
        case "kubectl" if words[:1] == ["efs"]:
            return _plugin(words[1:])
        case "aws":
            return _aws(words, documents, is_complete=is_complete)
        case "kubectl" | "helm":  # the sessions run these
            return _files(words, documents)
        case _:
            return "" if program in _ORDINARY else f"is not a known program: {program}"


@cache
def _own(words: tuple[str, ...], *, is_complete: bool) -> str:
    known = [name for name in COMMANDS if words[: len(name.split())] == tuple(name.split())]
    if not known:
        return "kube-efs has no such command"
    name = max(known, key=len)
    try:
        COMMANDS[name].make_context(name, list(words[len(name.split()) :]))
    except _UsageError as error:
        is_missing = type(error).__name__ == "MissingParameter"
        return "" if is_missing and not is_complete else str(error.format_message())
    if name == "render" and is_complete:
        answer = CliRunner().invoke(app, list(words))
        return "" if answer.exit_code == 0 else f"kube-efs render fails: {answer.output}"
    return ""


def _plugin(words: Sequence[str]) -> str:
    command: Any = get_command(plugin.app)
    rest = list(words)
    while (subcommands := getattr(command, "commands", None)) is not None:
        if not rest or rest[0] not in subcommands:
            return "kubectl efs has no such command"
        command = subcommands[rest.pop(0)]
    try:
        command.make_context("efs", rest)
    except _UsageError as error:
        return str(error.format_message())
    return ""


def _files(words: Sequence[str], documents: Collection[str]) -> str:
    """A file of the reader that the page does not have; those of this repository contain a slash."""
    for option, name in pairwise(words):
        if option == "-f" and name != "-" and "/" not in name and name not in documents:
            return f"{name} is not a file of the page"
    return ""


@cache
def operations(service: str) -> Mapping[str, OperationModel]:
    """The operations of a service by the name that the command line has for them; raises ValueError."""
    try:
        model = botocore.session.get_session().get_service_model(service)
    except UnknownServiceError:
        raise ValueError(f"AWS has no service {service}") from None
    return {xform_name(name, "-"): model.operation_model(name) for name in model.operation_names}


def _aws(words: Sequence[str], documents: Collection[str], *, is_complete: bool) -> str:
    try:
        service, operation, *rest = words
        model = operations(service).get(operation)
    except ValueError as error:
        return str(error)
    if model is None:
        return f"aws {service} has no {operation}"
    shape: Any = model.input_shape
    options = {f"--{xform_name(name, '-')}": name for name in shape.members} if shape else {}
    given = set()
    while rest:
        option = rest.pop(0)
        values = []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if option in _AWS_OPTIONS:
            continue
        if option not in options:
            return f"aws {service} {operation} has no {option}"
        given.add(options[option])
        for value in values:
            if value.startswith("file://") and value.removeprefix("file://") not in documents:
                return f"{value} is not a file of the page"
            if text := _arn_problem(value):
                return text
    missing = set(shape.required_members if shape else ()) - given
    return f"aws {service} {operation} needs {', '.join(sorted(missing))}" if missing and is_complete else ""


def _arn_problem(value: str) -> str:
    if not value.startswith("arn:"):
        return ""
    if managed := _MANAGED.fullmatch(value):
        return (
            "" if files("fake_efs").joinpath(f"{managed[1]}.json").is_file() else f"AWS has no {managed[1]}"
        )
    return "" if ROLE_ARN.fullmatch(value) else f"is not the ARN of a role: {value}"
