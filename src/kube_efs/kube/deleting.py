"""Deletes an object, but never a newer one of the same name."""

from lightkube import AsyncClient
from lightkube.core.resource import GlobalResource, NamespacedResource
from lightkube.types import CascadeType


async def delete_exactly(
    client: AsyncClient,
    kind: type[GlobalResource] | type[NamespacedResource],
    name: str,
    uid: str,
    *,
    namespace: str | None = None,
    resource_version: str = "",
    cascade: CascadeType | None = None,
) -> None:
    """Delete the object of that name if it has that uid; otherwise the API server answers 409.

    With a ``resource_version``, delete it only if it has not changed since that version. ``cascade`` is what
    happens to the objects that it owns; None is the default of its kind.

    Raises the errors of the client.
    """
    # The client's own method sends no body, but the API needs the uid there (DeleteOptions, v1).
    requests = client._client  # noqa: SLF001
    request = requests.prepare_request("delete", kind, name=name, namespace=namespace)
    preconditions = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
    policy = {"propagationPolicy": cascade.value} if cascade else {}
    request.data = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions, **policy}
    answer = await requests.send(requests.build_adapter_request(request))  # type: ignore[no-untyped-call]
    requests.handle_response("delete", answer, request)
