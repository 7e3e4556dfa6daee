"""A real Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager.

Admission, RBAC, garbage collection, the volume binder and the rest are Kubernetes' own, from programs that
somebody has built. Usually it is on loopback, without nodes and scheduler; with ``RealNodes`` it has both.
"""

import asyncio
import base64
import contextlib
import os
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from lightkube import AsyncClient

from fake_efs.process import ChildProcess
from kube_efs.kube.client import connect, load_config
from tiny_ca.authority import trusting
from tinykube.api.credentials import make_identity, render_kubeconfig, write_kubeconfig
from tinykube.ports import free_port

_HOST = "127.0.0.1"
_HTTPS = 443
_ISSUER = "https://kubernetes.default.svc"
_READY_SECONDS = 180.0
# etcd waits for the disk at each write, which can take seconds on a busy machine.
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.05
_CONTROLLER_MANAGER = "system:kube-controller-manager"
# Memory is there and processor time is not: rarely collect so small a heap, have goroutines begin with the
# stack that they come to need, and no threads that look for work of each other's.
_GO_FOR_FEW_OBJECTS = {
    "GOGC": "400",
    "GOMEMLIMIT": "512MiB",
    "GODEBUG": "adaptivestackstart=1",
    "GOMAXPROCS": "1",
}
# No volume of EFS grows, but the program that expands volumes does so for each claim. Nodes know the
# addresses of their pods themselves.
_CONTROLLERS = "*,-node-ipam-controller,-persistentvolume-expander-controller"
# Without kubelets, tests create Nodes and do not renew their leases, so no controller may judge Nodes by
# them.
_NODES_UNJUDGED = ",-node-lifecycle-controller,-taint-eviction-controller"
_SCHEDULER = "system:kube-scheduler"


@dataclass(frozen=True, slots=True)
class ServiceAccountName:
    """A service account of the cluster."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RealNodes:
    """Nodes with a kubelet each, which reach the control plane at addresses of this machine.

    ``services`` is the range of addresses of Services. The API server listens at the first, which is that of
    the Service ``kubernetes``, so that pods reach it without a proxy for Services. ``names`` are the nodes'.
    """

    services: IPv4Network
    names: tuple[str, ...]


class RealControlPlane(AbstractAsyncContextManager["RealControlPlane"]):
    """A fresh cluster while its context is open; all its files, logs too, are in ``folder``.

    ``programs`` is the directory with etcd, kube-apiserver and kube-controller-manager, and kube-scheduler if
    there are ``nodes``. ``api_server_flags`` are further flags of kube-apiserver, without the two hyphens.

    The programs are set up for a few thousand objects, unless there are ``many_objects``: a heap that does
    not fit into the memory limit of a small cluster would be collected without a pause, which takes a core.
    """

    def __init__(
        self,
        folder: Path,
        programs: Path,
        api_server_flags: Mapping[str, object] | None = None,
        *,
        nodes: RealNodes | None = None,
        many_objects: bool = False,
    ) -> None:
        self.folder = folder
        self._programs = programs
        self._environment = {**os.environ, **({} if many_objects else _GO_FOR_FEW_OBJECTS)}
        self._api_server_flags = dict(api_server_flags or {})
        self.admin_kubeconfig = folder / "admin.kubeconfig"
        self.ca_file = folder / "ca.crt"
        self._nodes = nodes
        self._port, self._etcd_port, self._peer_port = (free_port(_HOST) for _ in range(3))
        self._host = _HOST
        if nodes is not None:
            self._host, self._port = str(nodes.services[1]), _HTTPS
        self._identity = make_identity(self._host)
        self._admin_token = secrets.token_urlsafe(32)
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"https://{self._host}:{self._port}"

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def kubeconfig(self, user: ServiceAccountName | None = None, *, node: str | None = None) -> Path:
        """A kubeconfig for a service account, with a token as pods get it; else for the administrator.

        With a node, which must be there, the token names it, as those of its pods do.
        """
        if user is None:
            return self.admin_kubeconfig
        path = f"/api/v1/namespaces/{user.namespace}/serviceaccounts/{user.name}/token"
        bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}} if node else {}
        spec = {"expirationSeconds": 3600, **bound}
        async with self._session.post(self.url + path, json={"spec": spec}) as answer:
            body: dict[str, Any] = await answer.json()
        file = self.folder / f"{user.namespace}-{user.name}.kubeconfig"
        self._write_kubeconfig(file, body["status"]["token"])
        return file

    def node_kubeconfig(self, node: str) -> Path:
        """The kubeconfig of that node's kubelet, one of the ``nodes``."""
        return self.folder / f"{node}.kubeconfig"

    def connect(self) -> AsyncClient:
        """A client of the administrator; close it with ``async with``."""
        return connect(load_config(self.admin_kubeconfig))

    async def wipe(self) -> None:
        """Remove every object that was not there when the cluster was fresh, whatever holds it.

        The administrator's kubeconfig is as it was, too: ``kubectl config`` may have changed it.
        """
        self._write_kubeconfig(self.admin_kubeconfig, self._admin_token)
        for key in await self._keys() - self._fresh_keys:
            await self._etcd("deleterange", {"key": key})

    async def _keys(self) -> set[str]:
        """The keys of all objects, in base64."""
        prefix, after = (base64.b64encode(text).decode() for text in (b"/registry/", b"/registry0"))
        found = await self._etcd("range", {"key": prefix, "range_end": after, "keys_only": True})
        return {entry["key"] for entry in found.get("kvs", ())}

    async def _etcd(self, operation: str, request: Mapping[str, object]) -> dict[str, Any]:
        url = f"http://{_HOST}:{self._etcd_port}/v3/kv/{operation}"
        async with self._session.post(url, json=request) as answer:
            body: dict[str, Any] = await answer.json()
        return body

    async def restart_api_server(self) -> None:
        """End the API server as a crash would, and start it again at the same address."""
        await self._api_server.kill()
        await self._start_api_server()

    async def _start(self) -> None:
        self._write_credentials()
        self._write_kubeconfig(self.admin_kubeconfig, self._admin_token)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trusting(self._identity.ca_pem.decode())),
                headers={"Authorization": f"Bearer {self._admin_token}"},
                timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
                raise_for_status=True,
            )
        )
        await self._start_etcd()
        await self._start_api_server()
        await self._start_controller_manager()
        if self._nodes is not None:
            flags = {
                "kubeconfig": self.folder / "scheduler.kubeconfig",
                "leader-elect": "false",
                "secure-port": 0,
            }
            await self._run("kube-scheduler", flags)
        self._fresh_keys = await self._keys()

    async def _start_etcd(self) -> None:
        url, peer_url = (f"http://{_HOST}:{port}" for port in (self._etcd_port, self._peer_port))
        etcd = await self._run(
            "etcd",
            {
                "data-dir": self.folder / "etcd",
                "listen-client-urls": url,
                "advertise-client-urls": url,
                "listen-peer-urls": peer_url,
                "initial-advertise-peer-urls": peer_url,
                "initial-cluster": f"default={peer_url}",
                "unsafe-no-fsync": "true",
                "log-level": "warn",
            },
        )
        await self._wait_for(etcd, f"{url}/health")

    async def _start_api_server(self) -> None:
        self._api_server = await self._run(
            "kube-apiserver",
            {
                "etcd-servers": f"http://{_HOST}:{self._etcd_port}",
                "bind-address": self._host,
                "secure-port": self._port,
                "tls-cert-file": self.folder / "server.pem",
                "tls-private-key-file": self.folder / "server.pem",
                "token-auth-file": self.folder / "tokens.csv",
                "authorization-mode": "RBAC" if self._nodes is None else "Node,RBAC",
                "service-account-issuer": _ISSUER,
                "service-account-key-file": self.folder / "service-account.pub",
                "service-account-signing-key-file": self.folder / "service-account.key",
                "service-cluster-ip-range": self._nodes.services if self._nodes else "10.0.0.0/24",
                "kubelet-preferred-address-types": "InternalIP",
                "kubelet-client-certificate": self.folder / "kubelet-client.pem",
                "kubelet-client-key": self.folder / "kubelet-client.pem",
                # OpenShift has it too: who sets blockOwnerDeletion must be allowed to delay the owner's end.
                "enable-admission-plugins": "OwnerReferencesPermissionEnforcement,NodeRestriction",
                # A loopback address must not become the endpoint of the service "kubernetes".
                "endpoint-reconciler-type": "none",
                "allow-privileged": "true",
                **self._api_server_flags,
            },
        )
        await self._wait_for(self._api_server, f"{self.url}/readyz")

    async def _start_controller_manager(self) -> None:
        manager = await self._run(
            "kube-controller-manager",
            {
                "kubeconfig": self.folder / "controller-manager.kubeconfig",
                "controllers": _CONTROLLERS + ("" if self._nodes else _NODES_UNJUDGED),
                "leader-elect": "false",
                "secure-port": 0,
                "root-ca-file": self.ca_file,
                "service-account-private-key-file": self.folder / "service-account.key",
                "use-service-account-credentials": "true",
                # By default its binder, not kube-efs, would be what a test of 100 claims measures.
                "kube-api-qps": 200,
                "kube-api-burst": 400,
            },
        )
        # What the controllers give to every namespace shows that they work.
        namespace = f"{self.url}/api/v1/namespaces/default"
        await self._wait_for(manager, f"{namespace}/serviceaccounts/default")
        await self._wait_for(manager, f"{namespace}/configmaps/kube-root-ca.crt")

    async def _run(self, program: str, flags: Mapping[str, object]) -> ChildProcess:
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        log_file = self.folder / f"{program}.log"
        process = await ChildProcess.start(
            str(self._programs / program), *arguments, log_file=log_file, environment=self._environment
        )
        # What it would leave behind in order is thrown away, so nobody waits for an orderly end.
        self._stack.push_async_callback(process.kill)
        return process

    async def _wait_for(self, process: ChildProcess, url: str) -> None:
        """Return when that address answers well; raises PlatformError when it does not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_SECONDS):
                while process.running:
                    if await self._answers(url):
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        raise process.failure(f"did not come so far that {url} answers")

    async def _answers(self, url: str) -> bool:
        try:
            async with self._session.get(url) as answer:
                return answer.ok
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _write_credentials(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        users = {"controller-manager": _CONTROLLER_MANAGER, "scheduler": _SCHEDULER}
        nodes = self._nodes.names if self._nodes else ()
        users |= {node: f"system:node:{node}" for node in nodes}
        tokens = f"{self._admin_token},admin,admin,system:masters\n"
        for name, user in users.items():
            token = secrets.token_urlsafe(32)
            tokens += f"{token},{user},{user}{',system:nodes' if name in nodes else ''}\n"
            self._write_kubeconfig(self.folder / f"{name}.kubeconfig", token)
        for name, content in {
            "ca.crt": self._identity.ca_pem,
            "server.pem": self._identity.secret_pem,
            "kubelet-client.pem": self._identity.client_pem,
            "service-account.key": private,
            "service-account.pub": public,
            "tokens.csv": tokens.encode(),
        }.items():
            with os.fdopen(
                os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as file:
                file.write(content)

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        write_kubeconfig(path, render_kubeconfig(url=self.url, ca_pem=self._identity.ca_pem, token=token))


class ControlPlanes:
    """One control plane for everybody who wants a fresh one, one after the other: it is wiped in between.

    Starting the programs takes far longer than removing what a module has left.
    """

    def __init__(
        self,
        folder: Path,
        programs: Path,
        api_server_flags: Mapping[str, object] | None = None,
        *,
        many_objects: bool = False,
    ) -> None:
        self._plane = RealControlPlane(folder, programs, api_server_flags, many_objects=many_objects)
        self._running = False

    async def fresh(self) -> RealControlPlane:
        """The control plane as after its start."""
        if self._running:
            await self._plane.wipe()
        else:
            await self._plane.__aenter__()
            self._running = True
        return self._plane

    async def stop(self) -> None:
        """End it, if it was ever started."""
        if self._running:
            await self._plane.__aexit__(None, None, None)
