"""The controller's settings for SharedVolumes."""

from collections.abc import Mapping
from dataclasses import dataclass

from kube_efs.model.errors import InvalidValue
from kube_efs.model.shared_volumes.limits import ANNOTATION, OTHERS, Allowance, Limits, parse_allowance
from kube_efs.settings.base import Environment
from kube_efs.settings.fields import read_yaml, setting, switch


def _read_limits(text: str) -> Limits:
    found = read_yaml(text)
    if not isinstance(found, Mapping):
        raise ValueError("is not a mapping")  # noqa: TRY004 - readers raise ValueError
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


@dataclass(frozen=True, kw_only=True)
class SharedVolumeSettings(Environment):
    """SharedVolumes, the custom resource of aws-efs-operator."""

    shared_volumes: bool = switch(
        "KUBE_EFS_SHARED_VOLUMES",
        False,
        "Whether SharedVolumes are served; their CustomResourceDefinition must exist.",
    )
    shared_volume_limits: Limits = setting(
        "KUBE_EFS_SHARED_VOLUME_LIMITS",
        Limits(),
        "File systems and access points that the SharedVolumes of each namespace may use; for"
        f" all others under `{OTHERS}`. The annotation `{ANNOTATION}` of a Namespace takes precedence"
        f" over `{OTHERS}`.",
        read=_read_limits,
        accepts="a mapping of names to lists of ids in JSON or YAML, where `*` is every id",
        shown="everything",
    )
