"""The ``proxy`` subresource of pods: what a program in a pod answers to a GET request."""

from typing import NamedTuple

import aiohttp
from aiohttp import web

from tinykube.objects.json_types import lookup
from tinykube.objects.statuses import ApiError, bad_request
from tinykube.objects.storage import Stored

_SECONDS = 30.0
_SCHEMES = ("http", "https")
# Of the connection, not of the answer (RFC 9110, section 7.6.1); the body has been decoded.
_NOT_PASSED_ON = frozenset({"connection", "content-encoding", "content-length", "transfer-encoding"})


class Door(NamedTuple):
    """A port of a pod; None for the first one that it says it has."""

    scheme: str
    pod: str
    port: int | None


def parse_door(text: str) -> Door:
    """``[SCHEME:]POD[:PORT]`` as it is in a path; raises 400."""
    parts = text.split(":")
    scheme = parts.pop(0) if len(parts) > 1 and parts[0] in _SCHEMES else "http"
    name, port, *more = (*parts, "") if len(parts) == 1 else parts
    known = not port or (port.isdecimal() and 0 < int(port) < 1 << 16)
    if not name or not known or more:
        raise bad_request(f"invalid pod request {text!r}: name it as [http:|https:]POD[:PORT]")
    return Door(scheme, name, int(port) if port else None)


async def pass_on(request: web.Request, pod: Stored, door: Door, path: str) -> web.StreamResponse:
    """What the pod answers at a path; raises 400 or 503."""
    address, port = lookup(pod.json, "status", "podIP"), door.port or _first_port(pod)
    if not address:
        raise bad_request(f"pod {pod.key.name} has no address yet")
    url = f"{door.scheme}://{address}:{port}/{path}"
    accepted = {"Accept": request.headers.get("Accept", "*/*")}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session,
            session.get(
                url, params=request.query, headers=accepted, ssl=False, allow_redirects=False
            ) as answer,
        ):
            headers = {
                name: text for name, text in answer.headers.items() if name.lower() not in _NOT_PASSED_ON
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)
    except (aiohttp.ClientError, TimeoutError) as error:
        problem = f"error trying to reach service: {error or 'no answer in time'}"
        raise ApiError(503, "ServiceUnavailable", problem) from error


def _first_port(pod: Stored) -> int:
    for container in lookup(pod.json, "spec", "containers") or ():
        for port in container.get("ports") or ():
            return int(port["containerPort"])
    raise bad_request(f"pod {pod.key.name} says of no port: name one as {pod.key.name}:PORT")
