"""A kubelet for worker pods: runs their program on a directory, and can be slow or faulty."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod

from kube_efs.kube.watching import Applied, Listed, follow
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.provisioning.workers import program as worker
from tinykube.kubelet.containers import expand

# The last phase of a pod and its termination message.
Ending = tuple[str, str]


class Logs:
    """The logs of pods; the API server needs them before a kubelet runs."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncGenerator[bytes, None]:
        assert (namespace, container, follow) == ("default", "worker", False)
        lines = self.texts.get(name, "").splitlines(keepends=True)
        yield "".join(lines[-tail_lines:] if tail_lines else lines).encode()


class Kubelet:
    """Runs every pod; ``pods`` records them, ``most_at_once`` the concurrent ones by file system."""

    def __init__(self, client: AsyncClient, folder: Path, logs: Logs) -> None:
        self._client = client
        self._folder = folder
        self._logs = logs
        self._running: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.ending: Callable[[Pod], Ending | None] = lambda _: None
        self.pods: list[Pod] = []
        self.has_started_one = asyncio.Event()
        self.most_at_once: Counter[str] = Counter()

    def root(self, file_system_id: str) -> Path:
        """The directory that stands for that file system."""
        root = self._folder / file_system_id
        root.mkdir(exist_ok=True)
        return root

    @property
    def arguments(self) -> list[list[str]]:
        """The arguments of every pod, in start order."""
        return [_arguments(pod) for pod in self.pods]

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async for change in follow(self._client, Pod, namespace="default"):
                match change:
                    case Listed(objects):
                        self._start(*objects)
                    case Applied(found):
                        self._start(found)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _start(self, *pods: Pod) -> None:
        for pod in pods:
            name = name_of(pod)
            if pod.spec and pod.spec.schedulingGates:
                continue
            if name not in self._tasks and not (pod.status and pod.status.phase in {"Succeeded", "Failed"}):
                self._tasks[name] = asyncio.create_task(self._work(pod))

    async def _work(self, pod: Pod) -> None:
        gate = self.gate  # a test may give later pods another one
        self.pods.append(pod)
        self.has_started_one.set()
        file_system_id = file_system_of(pod)
        self._running[file_system_id] += 1
        self.most_at_once |= self._running
        await set_status(self._client, name_of(pod), {"phase": "Running"})
        await gate.wait()
        phase, message = self.ending(pod) or self._outcome(pod)
        self._running[file_system_id] -= 1
        terminated = {"exitCode": int(phase == "Failed"), "message": message}
        container = {
            "name": "worker",
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": terminated},
        }
        await set_status(self._client, name_of(pod), {"phase": phase, "containerStatuses": [container]})

    def _outcome(self, pod: Pod) -> Ending:
        log = self._folder / f"{name_of(pod)}.log"
        log.touch()
        command, *arguments = _arguments(pod)
        assert command == "worker"
        arguments[arguments.index("--root") + 1] = str(self.root(file_system_of(pod)))
        with redirect_stdout(StringIO()) as output:
            code = worker.main(arguments, termination_log=log)
        self._logs.texts[name_of(pod)] = output.getvalue()
        return ("Failed" if code else "Succeeded"), log.read_text()


@asynccontextmanager
async def running(kubelet: Kubelet) -> AsyncIterator[Kubelet]:
    task = asyncio.create_task(kubelet.run())
    try:
        yield kubelet
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def set_status(client: AsyncClient, name: str, status: Mapping[str, Any]) -> None:
    await client.patch(Pod.Status, name, {"status": status}, namespace="default")


def name_of(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.name) or ""


def file_system_of(pod: Pod) -> str:
    annotations: Mapping[str, str] = (pod.metadata and pod.metadata.annotations) or {}
    return annotations.get(FILE_SYSTEM_ID, "")


def _arguments(pod: Pod) -> list[str]:
    """The arguments as the kubelet passes them to the program."""
    assert pod.spec
    return [expand(argument, {"HOME": "/root"}) for argument in pod.spec.containers[0].args or []]
