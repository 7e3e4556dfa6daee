"""Finds the installation of kube-efs in a cluster, by its names."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from lightkube import AsyncClient
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import ConfigMap

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeDenied, KubeError, KubeNotFound
from kube_efs.model.names import NEW_INSTALLATION, OPERATOR_NAMESPACES, Names, NameSet


async def find_installation(client: AsyncClient, namespace: str | None, name_set: NameSet | None) -> Names:
    """The names of the installation that the options describe; raises KubeError.

    ``namespace`` None: the first one whose objects exist, of the names or of operators, else that of the
    names. ``name_set`` None: the first one whose objects exist, else that of a new installation.
    """
    sets = (name_set,) if name_set else sorted(NameSet, key=lambda one: one is not NEW_INSTALLATION)
    own = [replace(one.names, namespace=namespace or one.names.namespace) for one in sets]
    others = () if namespace else OPERATOR_NAMESPACES
    candidates = [*own, *(replace(one, namespace=other) for other in others for one in own)]
    if len(candidates) == 1:
        return candidates[0]
    # In a pod of kube-efs: its service account can read only its own objects.
    return await find_installed(client, candidates, skips_denied=True) or candidates[0]


async def find_installed(
    client: AsyncClient, candidates: Sequence[Names], *, skips_denied: bool = False
) -> Names | None:
    """The first names of an existing DaemonSet of the tunnels, else of their ConfigMap; raises KubeError.

    Of several DaemonSets, one with a ConfigMap is preferred: the controller of a second installation does not
    lead, so it creates none. The ConfigMap of a replaced installation stays beside that of the next one, and
    after a removal. With ``skips_denied``, objects that this client must not read do not exist.
    """
    missing: tuple[type[KubeError], ...] = (KubeNotFound, KubeDenied) if skips_denied else (KubeNotFound,)

    async def exists(kind: type[DaemonSet | ConfigMap], names: Names) -> bool:
        name = names.tunnel if kind is DaemonSet else names.config_map
        with suppress(*missing), translated(f"{kind.__name__} {names.namespace}/{name}"):
            await client.get(kind, name, namespace=names.namespace)
            return True
        return False

    running = [names for names in dict.fromkeys(candidates) if await exists(DaemonSet, names)]
    if len(running) == 1:
        return running[0]
    for names in running or candidates:
        if await exists(ConfigMap, names):
            return names
    return running[0] if running else None
