"""The ports in the ConfigMap, which the nodes read."""

from collections.abc import Mapping
from functools import lru_cache

from tests.simulation.apiserver import ApiServer, Body

from kube_efs.model.efs.targets import CONFIG_MAP_KEY, parse_targets
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL


def file_systems_by_port(config_map: Body | None) -> Mapping[int, str]:
    """The file system of each port; empty without a ConfigMap."""
    return _parsed(((config_map or {}).get("data") or {}).get(CONFIG_MAP_KEY, ""))


def published(server: ApiServer, namespace: str) -> Mapping[int, str]:
    """The file system of each port in the current ConfigMap."""
    return file_systems_by_port(server.find("configmaps", OPENSHIFT_EFS_STUNNEL.config_map, namespace))


@lru_cache(maxsize=64)
def _parsed(text: str) -> Mapping[int, str]:
    targets, _ = parse_targets(text)
    return {one.port: str(one.file_system_id) for one in targets.targets.values()}
