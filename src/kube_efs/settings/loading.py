"""Loads the settings from the environment, or reports all invalid ones."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from kube_efs.model.errors import InvalidSetting, InvalidValue
from kube_efs.model.secrets import text_without_secrets
from kube_efs.settings.base import Environment
from kube_efs.settings.fields import InvalidItem, Variable, variables

_Settings = TypeVar("_Settings", bound=Environment)


def load(kind: type[_Settings], environment: Mapping[str, str] | None = None) -> _Settings:
    """The settings from these variables, by default those of this process; an empty one counts as not set.

    Raises InvalidSetting that names every invalid variable.
    """
    given = {
        name: text for name, text in (os.environ if environment is None else environment).items() if text
    }
    values: dict[str, Any] = {}
    faults: list[InvalidSetting] = []
    for field, variable in variables(kind).items():
        text = given.get(variable.name, "")
        try:
            values[field] = variable.read(text) if text else variable.default()
        except (ValueError, InvalidValue) as error:
            faults.append(_fault(variable, error, text))
    rules = kind.gaps(given)
    if not faults:
        settings = kind(**values)
        rules += settings.faults()
        if not rules:
            return settings
    faults += map(InvalidSetting, rules)
    if len(faults) == 1:
        raise faults[0]
    raise InvalidSetting(f"{len(faults)} settings are not valid:" + "".join(f"\n  {one}" for one in faults))


def _fault(variable: Variable[Any], error: ValueError | InvalidValue, text: str) -> InvalidSetting:
    path: tuple[str | int, ...] = ()
    value: object = text
    problem = error.problem if isinstance(error, InvalidValue) else str(error)
    if isinstance(error, InvalidItem):
        path, value = error.path, error.value
    elif isinstance(error, InvalidValue):
        value = error.value
    return InvalidSetting(
        problem,
        field=".".join(map(str, (variable.name, *path))),
        # A secret in the wrong variable must not be logged.
        value=text_without_secrets(value) if isinstance(value, str) else value,
        remedy=f"use {variable.accepts.replace('`', '')}",
    )
