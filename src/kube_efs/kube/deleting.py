"""Deleting one particular object, and not another one that has got its name meanwhile."""

from contextlib import suppress
from typing import Any

from lightkube import AsyncClient
from lightkube.core.resource import Resource

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeNotFound


async def delete_exactly(
    client: AsyncClient, kind: type[Resource], name: str, *, uid: str, namespace: str | None = None
) -> None:
    """Delete the object of that uid; one that is gone is no error. Raises KubeConflict for another one."""
    # The client's own call has no body to put the condition into.
    generic: Any = client._client  # noqa: SLF001
    request = generic.prepare_request("delete", kind, name=name, namespace=namespace)
    request.data = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    with suppress(KubeNotFound), translated(f"{kind.__name__} {name}"):
        answer = await generic.send(generic.build_adapter_request(request))
        generic.handle_response("delete", answer, request)
