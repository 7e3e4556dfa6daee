"""The controller's settings for SharedVolumes."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, InstanceOf
from pydantic_settings import NoDecode

from kube_efs.model.errors import InvalidValue
from kube_efs.model.shared_volumes.limits import ANNOTATION, OTHERS, Allowance, Limits, parse_allowance
from kube_efs.settings.base import Environment
from kube_efs.settings.fields import read_yaml, setting


def _read_limits(value: object) -> object:
    found = read_yaml(value)
    if not isinstance(found, Mapping):
        return found
    if not all(isinstance(ids, list) for ids in found.values()):
        raise ValueError("has something other than lists")
    allowances = {str(namespace): _read_allowance(ids) for namespace, ids in found.items()}
    others = allowances.pop(OTHERS, Allowance())
    return Limits(by_namespace=allowances, others=others)


def _read_allowance(ids: list[object]) -> Allowance:
    try:
        return parse_allowance(",".join(map(str, ids)), field="")
    except InvalidValue as error:
        raise ValueError(f"names {error.value!r}, which {error.problem}") from error


class SharedVolumeSettings(Environment):
    """SharedVolumes, the custom resource of aws-efs-operator."""

    shared_volumes: bool = setting(
        "KUBE_EFS_SHARED_VOLUMES",
        False,
        "Whether SharedVolumes are served; their CustomResourceDefinition must exist.",
        accepts="true or false",
        shown="`false`",
    )
    shared_volume_limits: Annotated[InstanceOf[Limits], NoDecode, BeforeValidator(_read_limits)] = setting(
        "KUBE_EFS_SHARED_VOLUME_LIMITS",
        Limits,
        "File systems and access points that the SharedVolumes of each namespace may use; for"
        f" all others under `{OTHERS}`. The annotation `{ANNOTATION}` of a Namespace takes precedence"
        f" over `{OTHERS}`.",
        accepts="a mapping of names to lists of ids in JSON or YAML, where `*` is every id",
        shown="everything",
    )
