import ipaddress
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from lightkube.config.kubeconfig import SingleConfig
from lightkube.resources.core_v1 import ConfigMap, Namespace
from tests.unit.plain_certificates import make_strict, plain_certificates

from kube_efs.kube.client import connect, load_config
from kube_efs.kube.errors import translated
from kube_efs.model.errors import InvalidSetting, KubeDenied, KubeUnavailable


def kubeconfig(**changes: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    } | changes


def written(folder: Path, document: object) -> Path:
    path = folder / "config"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    return path


async def test_current_context_is_used(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, kubeconfig()))
    assert (config.cluster.server, config.namespace) == ("http://127.0.0.1:1", "team")
    async with connect(config) as client:
        assert client.namespace == "team"


async def test_context_without_a_user_is_accepted(tmp_path: Path) -> None:
    contexts = [{"name": "x", "context": {"cluster": "c"}}]
    config = load_config(written(tmp_path, kubeconfig(contexts=contexts, users=None)))
    async with connect(config) as client:
        assert client.namespace == "default"


def test_environment_is_used_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path, kubeconfig())))
    assert load_config().context_name == "x"


@pytest.mark.parametrize(
    "document",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="not YAML"),
        pytest.param("[]", id="a list"),
        pytest.param({}, id="empty document"),
        pytest.param(kubeconfig(clusters=[{"name": "c"}]), id="a cluster without content"),
        pytest.param(kubeconfig(clusters=[{"name": "c", "cluster": {"server": 7}}]), id="a number as server"),
        pytest.param(kubeconfig(clusters=[]), id="context without a cluster"),
        pytest.param(kubeconfig(users=[]), id="context without a user"),
        pytest.param(kubeconfig(**{"current-context": "y"}), id="missing context"),
        pytest.param(kubeconfig(**{"current-context": None}), id="no current context"),
    ],
)
def test_unusable_file_is_refused(tmp_path: Path, document: object) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load_config(written(tmp_path, document))
    assert caught.value.field == "KUBECONFIG"
    assert caught.value.problem.startswith("cannot be used (")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load_config(tmp_path / "none")
    assert f"{tmp_path}/none not found" in caught.value.problem


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({"server": "http://host:port"}, id="invalid address"),
        pytest.param(
            {"server": "https://x", "certificate-authority": "gone.crt"}, id="missing authority file"
        ),
    ],
)
def test_invalid_cluster_is_refused(tmp_path: Path, cluster: dict[str, str]) -> None:
    config = load_config(written(tmp_path, kubeconfig(clusters=[{"name": "c", "cluster": cluster}])))
    with pytest.raises(InvalidSetting) as caught:
        connect(config)
    assert caught.value.problem.startswith("cannot be used (")


def test_first_of_several_files_counts_and_paths_are_relative_to_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    cluster = {"server": "https://second", "certificate-authority": "ca.crt"}
    files = [
        written(
            first, {"contexts": kubeconfig()["contexts"], "users": [{"name": "u", "user": {"token": "a"}}]}
        ),
        tmp_path / "missing",
        written(second, kubeconfig(clusters=[{"name": "c", "cluster": cluster}])),
    ]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    config = load_config()
    assert config.user
    assert (config.user.token, config.cluster.server) == ("a", "https://second")
    assert config.cluster.certificate_auth == str(second / "ca.crt")


class Server:
    """An API server without objects; ``tokens`` are those that it accepts, None accepts all."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[web.BaseRequest] = []
        self.tokens: list[str] | None = None

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(request)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        return web.json_response({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x"}})


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    runner = web.ServerRunner(web.Server(server.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0]
    server.url = f"{'https' if tls else 'http'}://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


async def ask(file: Path, times: int = 1) -> None:
    async with connect(load_config(file)) as client:
        for _ in range(times):
            with translated("x"):
                await client.get(ConfigMap, "x", namespace="x")


def config_of(server: Server, folder: Path, *, user: object = None, **cluster: str) -> Path:
    return written(
        folder,
        kubeconfig(
            clusters=[{"name": "c", "cluster": {"server": server.url, **cluster}}],
            users=[{"name": "u", "user": user or {"token": "t"}}],
        ),
    )


async def test_impersonated_user_is_sent_with_each_request(tmp_path: Path, server: Server) -> None:
    """Without it, a command would have all permissions of the person who wants to have fewer."""
    user = {
        "token": "t",
        "as": "restricted",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"example.com/Scope": ["x"]},
    }
    await ask(config_of(server, tmp_path, user=user))
    headers = server.requests[0].headers
    assert headers.getall("Impersonate-User") == ["restricted"]
    assert headers.getall("Impersonate-Uid") == ["7"]
    assert headers.getall("Impersonate-Group") == ["a", "b"]
    assert headers.getall("Impersonate-Extra-example.com%2fscope") == ["x"]


async def test_requests_go_through_the_proxy_of_the_cluster(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")  # which is only for the proxies of the environment
    cluster = {"server": "http://only.the.proxy.knows", "proxy-url": server.url}
    await ask(written(tmp_path, kubeconfig(clusters=[{"name": "c", "cluster": cluster}])))
    assert [request.headers["Host"] for request in server.requests] == ["only.the.proxy.knows"]


async def test_server_has_the_certificate_of_its_tls_name(cluster: SingleConfig, tmp_path: Path) -> None:
    def named(name: str) -> Path:
        address = {"server": cluster.cluster.server, "tls-server-name": name}
        trust = {"certificate-authority-data": cluster.cluster.certificate_auth_data}
        token = cluster.user and cluster.user.token
        users = [{"name": "u", "user": {"token": token}}]
        return written(
            tmp_path, kubeconfig(clusters=[{"name": "c", "cluster": address | trust}], users=users)
        )

    async with connect(load_config(named("kubernetes.default.svc"))) as client:
        assert [found async for found in client.list(Namespace)]
    with pytest.raises(KubeUnavailable, match="certificate"), translated("x"):
        async with connect(load_config(named("other.example")), patience_seconds=0) as client:
            await client.get(Namespace, "default")


async def test_authority_needs_no_extensions_that_kubectl_does_not_require(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Python 3.13, as in the image, no process could reach the API server of many EKS clusters."""
    certificates = plain_certificates(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.server)
    make_strict(monkeypatch, ssl, "create_default_context")
    async with serving(tls) as server:
        await ask(config_of(server, tmp_path, **{"certificate-authority": str(certificates.authority)}))
    assert len(server.requests) == 1


@pytest.mark.parametrize("proxy", ["socks5://name:word@127.0.0.1:1", "name:word@127.0.0.1:1"])
def test_proxy_that_cannot_be_used_is_refused_without_its_password(
    tmp_path: Path, server: Server, proxy: str
) -> None:
    config = load_config(config_of(server, tmp_path, **{"proxy-url": proxy}))
    with pytest.raises(InvalidSetting, match="proxy-url") as caught:
        connect(config)
    assert "word" not in str(caught.value)


def test_paths_are_relative_to_a_file_with_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"server": "https://x", "certificate-authority": "ca.crt"}
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./program"}}
    users = [{"name": "u", "user": user}]
    written(tmp_path, kubeconfig(clusters=[{"name": "c", "cluster": cluster}], users=users))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    monkeypatch.setenv("KUBECONFIG", "empty:config")
    config = load_config()
    assert config.cluster.certificate_auth == str(tmp_path / "ca.crt")
    assert config.user
    assert config.user.exec
    assert config.user.exec.command == str(tmp_path / "program")


def program(folder: Path, source: str, **fields: object) -> dict[str, object]:
    """A user whose token comes from that Python program, which can count its runs."""
    (folder / "program.py").write_text(source)
    version = "client.authentication.k8s.io/v1"
    args = [str(folder / "program.py"), str(folder / "runs")]
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": args, **fields}}


_GIVES_TOKENS = """
import json, os, pathlib, sys
runs = pathlib.Path(sys.argv[1])
count = len(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text("x" * count)
runs.with_name("info").write_text(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({"kind": "ExecCredential", "status": {"token": f"token-{count}"}}))
"""


async def test_token_of_a_program_is_used_until_the_server_refuses_it(tmp_path: Path, server: Server) -> None:
    server.tokens = ["token-1"]
    file = config_of(server, tmp_path, user=program(tmp_path, _GIVES_TOKENS, provideClusterInfo=True))
    async with connect(load_config(file)) as client:
        for _ in range(2):
            await client.get(ConfigMap, "x", namespace="x")
        server.tokens = ["token-2"]
        await client.get(ConfigMap, "x", namespace="x")
    assert (tmp_path / "runs").read_text() == "xx"
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == "client.authentication.k8s.io/v1"
    assert info["spec"]["cluster"]["server"] == server.url


async def test_refused_token_of_a_program_is_an_error(tmp_path: Path, server: Server) -> None:
    server.tokens = []
    with pytest.raises(KubeDenied):
        await ask(config_of(server, tmp_path, user=program(tmp_path, _GIVES_TOKENS)))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("source", "fields", "problem"),
    [
        (
            "",
            {"command": "aws-is-missing", "installHint": "install it"},
            "aws-is-missing.*cannot be run.*install it",
        ),
        ("import sys; sys.exit(3)", {}, "ended with exit status 3"),
        ("print('{')", {}, "did not print a credential"),
        ("print('[]')", {}, "did not print a credential"),
        ('print(\'{"status": {"clientCertificateData": "x"}}\')', {}, "gives no token"),
        ("", {"apiVersion": "client.authentication.k8s.io/v9"}, "apiVersion.*v9"),
    ],
)
async def test_program_that_gives_no_token_is_refused(
    tmp_path: Path, server: Server, source: str, fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        await ask(config_of(server, tmp_path, user=program(tmp_path, source, **fields)))
