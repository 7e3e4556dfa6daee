"""The ``log`` subresource of pods, whose text comes from whoever runs the pods."""

from collections.abc import AsyncIterator
from typing import Protocol

from aiohttp import web

from tinykube.api.parameters import Parameters
from tinykube.objects.json_types import lookup
from tinykube.objects.statuses import bad_request
from tinykube.objects.storage import Stored

_OF_TIMES = {"timestamps": "--timestamps", "sinceSeconds": "--since", "sinceTime": "--since-time"}


class PodLogs(Protocol):
    """The source of container logs."""

    def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncIterator[bytes]:
        """What the container wrote so far, and with ``follow`` what it writes until it ends."""


class NoPodLogs:
    """The source where nobody runs pods: every log is empty."""

    async def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncIterator[bytes]:
        """One empty chunk."""
        yield b""


async def stream_log(request: web.Request, pod: Stored, logs: PodLogs) -> web.StreamResponse:
    """The answer to a request for a container's log; raises 400 when the container is not clear."""
    parameters = Parameters(request.query)
    container = choose_container(pod, parameters.text("container"))
    check_log_options(pod, container, parameters)
    chunks = logs.read(
        pod.key.namespace,
        pod.key.name,
        container,
        follow=parameters.flag("follow"),
        tail_lines=parameters.number("tailLines"),
    )
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    left = parameters.number("limitBytes")
    async for chunk in chunks:
        await response.write(chunk if left is None else chunk[:left])
        if left is not None and (left := left - len(chunk)) <= 0:
            break
    await response.write_eof()
    return response


def check_log_options(pod: Stored, container: str, parameters: Parameters) -> None:
    """Raises 400 for what a log cannot be asked for.

    Logs are what containers wrote, through all restarts, so lines have no times, and what a container wrote
    before it was restarted is in its log still.
    """
    for name, option in _OF_TIMES.items():
        if parameters.flag(name):
            raise bad_request(f"lines of logs have no times in the embedded cluster: leave out {option}")
    if parameters.flag("previous") and not _restarts(pod, container):
        raise bad_request(f'previous terminated container "{container}" in pod "{pod.key.name}" not found')


def _restarts(pod: Stored, container: str) -> int:
    status = pod.json.get("status") or {}
    listed = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((one.get("restartCount") or 0 for one in listed if one.get("name") == container), 0)


def choose_container(pod: Stored, wanted: str) -> str:
    """The container of that name, the only one for an empty name; raises 400 when it is not clear."""
    names = [one.get("name", "") for one in lookup(pod.json, "spec", "containers") or []]
    init_names = [one.get("name", "") for one in lookup(pod.json, "spec", "initContainers") or []]
    if wanted in {*names, *init_names}:
        return wanted
    if wanted:
        raise bad_request(f"container {wanted} is not valid for pod {pod.key.name}")
    if len(names) != 1:
        choices = " ".join(names)
        raise bad_request(
            f"a container name must be specified for pod {pod.key.name}, choose one of: [{choices}]"
        )
    return str(names[0])
