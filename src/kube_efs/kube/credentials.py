"""Adds to each request who sends it, where the client itself cannot: tokens of programs, and impersonation.

A program that prints credentials (``client.authentication.k8s.io``) runs before the first request, and again
when the API server no longer accepts its token. It may ask its user something on the terminal.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import httpx2
import msgspec

from kube_efs.kube.kubeconfig import Cluster, Program, User
from kube_efs.model.errors import InvalidSetting

_VERSIONS: Final = tuple(
    f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1")
)
# A login in a browser takes a person some time.
_PROGRAM_SECONDS: Final = 300.0
_UNAUTHORIZED: Final = 401


class CredentialsTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of that user; raises InvalidSetting when a program gives no token."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, user: User, cluster: Cluster) -> None:
        self._inner = inner
        self._headers = tuple(_impersonation(user))
        self._program = user.exec
        self._cluster = cluster
        self._token = ""
        self._running = asyncio.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; raises TransportError, or InvalidSetting."""
        request.headers = httpx2.Headers([*request.headers.multi_items(), *self._headers])
        if self._program is None:
            return await self._inner.handle_async_request(request)
        token = await self._current_token(self._program, refused="")
        request.headers["Authorization"] = f"Bearer {token}"
        answer = await self._inner.handle_async_request(request)
        if answer.status_code != _UNAUTHORIZED:
            return answer
        await answer.aclose()
        token = await self._current_token(self._program, refused=token)
        request.headers["Authorization"] = f"Bearer {token}"
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _current_token(self, program: Program, *, refused: str) -> str:
        async with self._running:  # so that requests at the same time share one run
            if self._token == refused:
                self._token = await _run(program, self._cluster)
            return self._token


def _impersonation(user: User) -> Iterator[tuple[str, str]]:
    if user.impersonated_user:
        yield "Impersonate-User", user.impersonated_user
    if user.impersonated_uid:
        yield "Impersonate-Uid", user.impersonated_uid
    for group in user.impersonated_groups:
        yield "Impersonate-Group", group
    for key, values in user.impersonated_extra.items():
        for value in values:
            # As client-go: the key in lower case, and all that a header name cannot contain encoded.
            yield f"Impersonate-Extra-{quote(key.lower(), safe='')}", value


async def _run(program: Program, cluster: Cluster) -> str:
    """The token that the program prints; raises InvalidSetting."""
    if program.apiVersion not in _VERSIONS:
        raise _refused("exec.apiVersion", program.apiVersion, "is not supported", "use " + _VERSIONS[0])
    environment = {one.name: one.value for one in program.env or ()}
    try:
        # Its messages, and questions such as a code for a login, are for the terminal.
        process = await asyncio.create_subprocess_exec(
            program.command,
            *(program.args or ()),
            env=os.environ | environment | {"KUBERNETES_EXEC_INFO": _information(program, cluster)},
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        problem = f"cannot be run ({error.strerror})"
        raise _refused("exec.command", program.command, problem, program.installHint or "") from error
    try:
        async with asyncio.timeout(_PROGRAM_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as error:
        problem = f"did not end in {_PROGRAM_SECONDS:g} s"
        raise _refused("exec.command", program.command, problem, "run it to see why") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        problem = f"ended with exit status {process.returncode}"
        raise _refused("exec.command", program.command, problem, "run it to see why")
    try:
        status = msgspec.json.decode(output, type=dict[str, Any]).get("status") or {}
        token = status.get("token") or ""
    except (msgspec.MsgspecError, AttributeError) as error:
        problem = "did not print a credential"
        raise _refused("exec.command", program.command, problem, "run it to see what it prints") from error
    if not isinstance(token, str) or not token:
        raise _refused("exec.command", program.command, "gives no token", "use a program that gives one")
    return token


def _information(program: Program, cluster: Cluster) -> str:
    spec: dict[str, object] = {"interactive": sys.stdin is not None and sys.stdin.isatty()}
    if program.provide_cluster_info:
        spec["cluster"] = msgspec.to_builtins(cluster)
    document = {"apiVersion": program.apiVersion, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(document).decode()


def _refused(field: str, value: str, problem: str, remedy: str) -> InvalidSetting:
    return InvalidSetting(problem, field=f"KUBECONFIG: users.{field}", value=value, remedy=remedy)
