"""Loads the settings from the environment, or reports all invalid ones."""

import os
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kube_efs.model.errors import InvalidSetting
from kube_efs.settings.base import Environment
from kube_efs.telemetry.secrets import text_without_secrets

_Settings = TypeVar("_Settings", bound=Environment)


def load(kind: type[_Settings], **given: str) -> _Settings:
    """The settings from the environment of this process; those ``given`` by flags take precedence.

    Raises InvalidSetting that names every invalid variable.
    """
    try:
        return kind(**given)  # type: ignore[arg-type]  # names of variables, not options of the library
    except ValidationError as error:
        raise _invalid(kind, error.errors(include_url=False)) from error


def _invalid(kind: type[Environment], details: list[ErrorDetails]) -> InvalidSetting:
    accepts = {
        str(field.validation_alias): str(field.json_schema_extra["accepts"])
        for field in kind.model_fields.values()
        if isinstance(field.json_schema_extra, dict)
    }
    # pydantic reports an invalid default with the name of the field, not of the variable.
    variables = {name: str(field.validation_alias) for name, field in kind.model_fields.items()}
    faults = [fault for detail in details for fault in _faults(detail, variables, accepts)]
    if all(detail["loc"] for detail in details):  # else the rules for several variables have been checked
        faults += map(InvalidSetting, kind.gaps(os.environ))
    if len(faults) == 1:
        return faults[0]
    return InvalidSetting(f"{len(faults)} settings are not valid:" + "".join(f"\n  {f}" for f in faults))


def _faults(detail: ErrorDetails, variables: dict[str, str], accepts: dict[str, str]) -> list[InvalidSetting]:
    problem = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("Path ")
    if not detail["loc"]:  # rules for several variables, one line each, which names them
        return [InvalidSetting(line) for line in problem.splitlines()]
    name, *inside = map(str, detail["loc"])
    name = variables.get(name, name)
    # The value identifies an item of a list; a field of a structure also needs its name.
    inside = inside if len(inside) > 1 else []
    given = detail["input"]
    fault = InvalidSetting(
        problem[0].lower() + problem[1:],
        field=".".join([name, *inside]),
        # A secret in the wrong variable must not be logged.
        value=text_without_secrets(given) if isinstance(given, str) else given,
        remedy=f"use {accepts[name].replace('`', '')}",
    )
    return [fault]
