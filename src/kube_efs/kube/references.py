"""Values in ConfigMaps and Secrets that classes reference."""

import base64
import binascii
from collections.abc import Mapping

from lightkube import AsyncClient
from lightkube.resources.core_v1 import ConfigMap, Secret

from kube_efs.kube.errors import translated
from kube_efs.model.csi.cross_account import CrossAccountRole, parse_provisioner_secret
from kube_efs.model.csi.parameters import FileSystemReference, ReferenceKind
from kube_efs.model.errors import KubeNotFound, NotYet


class References:
    """Reads referenced values; raises KubeError, which never contains the content of a Secret."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def text(self, reference: FileSystemReference) -> str | None:
        """The text of the key; None when the object or key does not exist, or is not text."""
        if reference.kind is ReferenceKind.SECRET:
            return (await self.secret(reference.namespace, reference.name) or {}).get(reference.key)
        try:
            with translated(f"ConfigMap {reference.namespace}/{reference.name}"):
                found = await self._client.get(ConfigMap, reference.name, namespace=reference.namespace)
        except KubeNotFound:
            return None
        return (found.data or {}).get(reference.key)

    async def secret(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """Every text of the Secret by its key; None when the Secret does not exist."""
        try:
            with translated(f"Secret {namespace}/{name}"):
                found = await self._client.get(Secret, name, namespace=namespace)
        except KubeNotFound:
            return None
        texts = {key: _decoded(value) for key, value in (found.data or {}).items()}
        return {key: text for key, text in texts.items() if text is not None}

    async def role(self, secret: tuple[str, str] | None) -> CrossAccountRole | None:
        """The role in the Secret with that namespace and name; None without one.

        Raises NotYet while the Secret does not exist: our own account is not a substitute. Raises
        InvalidArgument if its content is not valid.
        """
        if secret is None:
            return None
        found = await self.secret(*secret)
        if found is None:
            value, remedy = "/".join(secret), "create it, with awsRoleArn"
            raise NotYet("does not exist", field="provisioner secret", value=value, remedy=remedy)
        return parse_provisioner_secret(found)


def _decoded(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
