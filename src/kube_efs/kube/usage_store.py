"""The ConfigMap with the usage of volumes, for the next leader and for ``kube-efs status``."""

from collections.abc import Mapping

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import ConfigMap

from kube_efs.kube.building import build_config_map
from kube_efs.kube.errors import translated
from kube_efs.model.errors import InvalidValue, KubeNotFound
from kube_efs.model.usage import USAGE_CONFIG_MAP, USAGE_KEY, VolumeUsage, parse_usage, render_usage

log = structlog.get_logger(__name__)

_LABELS = {"component": USAGE_CONFIG_MAP, "app.kubernetes.io/part-of": "kube-efs"}


class UsageStore:
    """Reads and writes the usage of all volumes."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def load(self) -> Mapping[str, VolumeUsage]:
        """The usage by volume name, empty before the first round; raises KubeError."""
        try:
            with translated(f"ConfigMap {USAGE_CONFIG_MAP}"):
                found = await self._client.get(ConfigMap, USAGE_CONFIG_MAP, namespace=self._namespace)
        except KubeNotFound:
            return {}
        return read_usage_map(found)

    async def save(self, usages: Mapping[str, VolumeUsage]) -> None:
        """Write them; raises KubeError."""
        body = build_config_map(
            namespace=self._namespace,
            name=USAGE_CONFIG_MAP,
            labels=_LABELS,
            data={USAGE_KEY: render_usage(usages)},
        )
        with translated(f"ConfigMap {USAGE_CONFIG_MAP}"):
            await self._client.apply(body, force=True)


def read_usage_map(found: ConfigMap) -> Mapping[str, VolumeUsage]:
    """The usage in the ConfigMap; empty if it is unreadable, because volumes are measured again."""
    try:
        return parse_usage((found.data or {}).get(USAGE_KEY, ""))
    except InvalidValue as error:
        log.warning("usage-not-read", reason=str(error))
        return {}
