"""Deleting an object, and no other one that has its name by then."""

from lightkube import AsyncClient
from lightkube.core.resource import GlobalResource, NamespacedResource


async def delete_exactly(
    client: AsyncClient,
    kind: type[GlobalResource] | type[NamespacedResource],
    name: str,
    uid: str,
    *,
    namespace: str | None = None,
    resource_version: str = "",
) -> None:
    """Delete the object of that name if it has that uid; the API server answers 409 if it has another one.

    With a ``resource_version``, only if it has not changed since that version either.

    Raises what the client raises.
    """
    # The client's own method sends no body, where the API has the uid (DeleteOptions, v1).
    requests = client._client  # noqa: SLF001
    request = requests.prepare_request("delete", kind, name=name, namespace=namespace)
    preconditions = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
    request.data = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    answer = await requests.send(requests.build_adapter_request(request))  # type: ignore[no-untyped-call]
    requests.handle_response("delete", answer, request)
