"""The CustomResourceDefinition of SharedVolume."""

from typing import cast

from lightkube import AsyncClient
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

from kube_efs.operator.manifests import load_asset


async def define(client: AsyncClient) -> None:
    """Create it in the API server."""
    (body,) = load_asset("shared-volumes-crd")
    await client.create(cast("CustomResourceDefinition", CustomResourceDefinition.from_dict(body)))
