"""Certificates of tunnels: created once, renewed in time from the same source, kept despite failures."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.serving import answering, serving

from kube_efs.aws.connection import LoadedCredentials
from kube_efs.aws.credential_sources import (
    CredentialOptions,
    CredentialSource,
    IamOptions,
    ProfileFiles,
    ServiceAccountIdentity,
    SourceKind,
)
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.errors import AwsDenied, InvalidValue, KubeEfsError, TunnelNotReady
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.files import write_atomically
from kube_efs.tunnels.on_demand.certificate import IAM_OID, ClientKey
from kube_efs.tunnels.on_demand.renewal import ClientCertificates
from kube_efs.tunnels.options import ClientInfo, OnDemandOptions, TunnelOptions
from kube_efs.tunnels.reservations import Reservation, TunnelSpec

FS = FileSystemId("fs-0123456789abcdef0")
PLAIN = TunnelSpec(file_system_id=FS)
SIGNED = TunnelSpec(file_system_id=FS, iam=IamOptions(profile="team"))
START = datetime(2026, 11, 21, 12, tzinfo=UTC)
KEYS = "[team]\naws_access_key_id = {id}\naws_secret_access_key = hidden\n"


class Node:
    """Certificates with a simulated clock."""

    def __init__(self, folder: Path, pod_identity_endpoint: str = "") -> None:
        self.now = START
        self.renewed = 0
        self.profiles = folder / "credentials"
        self.registry = CollectorRegistry()
        self.options = TunnelOptions(region=Region("us-east-1"), conf_path=folder / "stunnel.conf")
        on_demand = OnDemandOptions(
            socket_path=folder / "tunnel.sock",
            node="node-1",
            credentials=CredentialOptions(
                region=Region("us-east-1"),
                files=ProfileFiles(credentials=self.profiles, config=folder / "config"),
                pod_identity_endpoint=pod_identity_endpoint,
                attempts=1,
            ),
            client_info=ClientInfo.of("k8s", "1.0"),
        )
        metrics = TunnelMetrics(self.registry)
        duties = Duties(self.registry)
        self.certificates = ClientCertificates(
            self.options, on_demand, metrics, self._count, duties, lambda: self.now
        )

    def _count(self) -> None:
        self.renewed += 1

    def keys(self, access_key_id: str) -> None:
        self.profiles.write_text(KEYS.format(id=access_key_id))

    def certificate(self, spec: TunnelSpec) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificates.files[spec.name].path.read_bytes())

    def signer(self, spec: TunnelSpec) -> bytes:
        return self.certificate(spec).extensions.get_extension_for_oid(IAM_OID).value.public_bytes()

    def duty_failures(self) -> float | None:
        labels = {"duty": "certificate renewal"}
        return self.registry.get_sample_value("kube_efs_duty_failures_total", labels)

    def outcomes(self) -> tuple[float, float]:
        name = "kube_efs_certificate_renewals_total"
        ok, bad = (self.registry.get_sample_value(name, {"outcome": one}) for one in ("succeeded", "failed"))
        return ok or 0, bad or 0


@pytest.fixture(scope="module", autouse=True)
def all_agents_get_one_key() -> Iterator[None]:
    """A generated key costs a third of a second; test_certificate.py tests the generation."""
    key = asyncio.run(ClientKey.generate())

    async def given() -> ClientKey:
        return key

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientKey, "generate", given)
        yield


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def tunnel(spec: TunnelSpec, source: CredentialSource | None = None) -> Reservation:
    return Reservation(spec=spec, port=22049, source=source)


@pytest.mark.parametrize("spec", [PLAIN, SIGNED])
async def test_expired_certificate_is_renewed_before_a_mount(tmp_path: Path, spec: TunnelSpec) -> None:
    """The node was off for a day, and the kubelet publishes its volumes before the first renewal."""
    earlier, node = Node(tmp_path), Node(tmp_path)
    earlier.keys("AKIAONE")
    source = await earlier.certificates.ensure(spec, None)
    node.now = START + timedelta(days=1)
    node.certificates.take_over([tunnel(spec, source)])
    await node.certificates.ensure(spec, source)
    assert node.certificate(spec).not_valid_after_utc > node.now
    assert node.renewed == 1


async def test_mount_with_an_expired_certificate_says_why_there_are_no_credentials(tmp_path: Path) -> None:
    earlier, node = Node(tmp_path), Node(tmp_path)
    earlier.keys("AKIAONE")
    source = await earlier.certificates.ensure(SIGNED, None)
    node.now = START + timedelta(days=1)
    node.certificates.take_over([tunnel(SIGNED, source)])
    node.profiles.unlink()
    with pytest.raises(KubeEfsError, match="profile"):
        await node.certificates.ensure(SIGNED, source)
    # stunnel refuses a configuration that names a missing file.
    assert node.certificate(SIGNED).not_valid_after_utc < node.now


async def test_concurrent_calls_share_one_certificate(node: Node) -> None:
    assert await node.certificates.ensure(PLAIN, None) is None
    first = node.certificate(PLAIN)
    assert await node.certificates.ensure(PLAIN, None) is None
    assert node.certificate(PLAIN) == first
    assert first.not_valid_after_utc == START + timedelta(hours=3)
    assert node.outcomes() == (1, 0)


async def test_certificate_is_renewed_after_an_hour_and_not_before(node: Node) -> None:
    await node.certificates.ensure(PLAIN, None)
    first, renewed = node.certificates.files[PLAIN.name], node.renewed
    node.now += timedelta(minutes=59)
    assert await node.certificates.renew_due([tunnel(PLAIN)]) == START + timedelta(hours=1)
    assert node.certificates.files[PLAIN.name] == first
    node.now += timedelta(minutes=1)
    assert await node.certificates.renew_due([tunnel(PLAIN)]) == node.now + timedelta(hours=1)
    second = node.certificates.files[PLAIN.name]
    assert (second.path, second.not_after) == (first.path, node.now + timedelta(hours=3))
    assert second.serial != first.serial
    assert node.renewed == renewed + 1


async def test_later_credentials_come_from_the_first_source(node: Node) -> None:
    node.keys("AKIAONE")
    source = await node.certificates.ensure(SIGNED, None)
    assert source == CredentialSource(kind=SourceKind.PROFILE, target="team")
    assert b"AKIAONE" in node.signer(SIGNED)
    node.keys("AKIATWO")
    node.now += timedelta(hours=1)
    await node.certificates.renew_due([tunnel(SIGNED, source)])
    assert b"AKIATWO" in node.signer(SIGNED)


async def test_failures_keep_the_old_certificate_and_are_retried_with_growing_delays(node: Node) -> None:
    node.keys("AKIAONE")
    source = await node.certificates.ensure(SIGNED, None)
    before = node.certificates.files[SIGNED.name]
    node.profiles.write_text("[other]\n")
    node.now += timedelta(hours=1)
    waits = []
    for _ in range(7):
        due = await node.certificates.renew_due([tunnel(SIGNED, source)])
        waits.append((due - node.now).total_seconds())
        node.now = due
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    assert node.certificates.files[SIGNED.name] == before
    assert node.outcomes() == (1, 7)
    node.keys("AKIATWO")
    assert await node.certificates.renew_due([tunnel(SIGNED, source)]) == node.now + timedelta(hours=1)
    assert b"AKIATWO" in node.signer(SIGNED)


async def test_certificate_requires_credentials(node: Node) -> None:
    with pytest.raises(KubeEfsError, match="profile team"):
        await node.certificates.ensure(SIGNED, None)
    assert dict(node.certificates.files) == {}
    assert node.outcomes() == (0, 1)


async def test_certificate_of_an_earlier_agent_is_used_until_its_renewal(tmp_path: Path) -> None:
    first, second = Node(tmp_path), Node(tmp_path)
    await first.certificates.ensure(PLAIN, None)
    second.now += timedelta(minutes=5)
    second.certificates.take_over([tunnel(PLAIN)])
    assert second.certificates.files == first.certificates.files
    assert await second.certificates.renew_due([tunnel(PLAIN)]) == START + timedelta(hours=1)
    assert (second.certificates.files, second.renewed) == (first.certificates.files, 0)
    second.now = START + timedelta(hours=1)
    await second.certificates.renew_due([tunnel(PLAIN)])
    assert second.certificates.files[PLAIN.name].not_after == second.now + timedelta(hours=3)


async def test_certificate_with_credentials_is_renewed_at_once_by_the_next_agent(tmp_path: Path) -> None:
    first, second = Node(tmp_path), Node(tmp_path)
    first.keys("AKIAONE")
    source = await first.certificates.ensure(SIGNED, None)
    second.certificates.take_over([tunnel(SIGNED, source)])
    before = dict(second.certificates.files)
    await second.certificates.renew_due([tunnel(SIGNED, source)])
    assert before == first.certificates.files
    assert second.certificates.files[SIGNED.name] != before[SIGNED.name]


@pytest.mark.parametrize("ahead", [timedelta(minutes=16), timedelta(days=365)], ids=["a little", "much"])
async def test_certificate_from_a_wrong_clock_is_renewed_at_once_by_the_next_agent(
    tmp_path: Path, ahead: timedelta
) -> None:
    first, second = Node(tmp_path), Node(tmp_path)
    first.now += ahead
    await first.certificates.ensure(PLAIN, None)
    second.certificates.take_over([tunnel(PLAIN)])
    assert await second.certificates.renew_due([tunnel(PLAIN)]) == START + timedelta(hours=1)
    assert second.certificate(PLAIN).not_valid_after_utc == START + timedelta(hours=3)


@pytest.mark.parametrize("spec", [PLAIN, SIGNED], ids=["plain", "with credentials"])
async def test_certificate_from_a_fast_clock_is_renewed_when_the_clock_is_right(
    node: Node, spec: TunnelSpec
) -> None:
    node.keys("AKIAONE")
    node.now += timedelta(days=365)
    source = await node.certificates.ensure(spec, None)
    await node.certificates.renew_due([tunnel(spec, source)])
    node.now = START
    assert await node.certificates.renew_due([tunnel(spec, source)]) <= START + timedelta(hours=1)
    assert node.certificate(spec).not_valid_after_utc == START + timedelta(hours=3)


async def test_certificate_that_is_not_valid_yet_is_renewed_before_a_mount(node: Node) -> None:
    node.now += timedelta(minutes=16)
    await node.certificates.ensure(PLAIN, None)
    node.now = START
    await node.certificates.ensure(PLAIN, None)
    assert node.certificate(PLAIN).not_valid_before_utc < START


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=365)], ids=["a little", "much"])
async def test_retry_scheduled_by_a_fast_clock_happens_when_the_clock_is_right(
    node: Node, ahead: timedelta
) -> None:
    node.keys("AKIAONE")
    source = await node.certificates.ensure(SIGNED, None)
    node.now += ahead
    node.keys("")
    await node.certificates.renew_due([tunnel(SIGNED, source)])
    node.now = START + timedelta(minutes=1)
    node.keys("AKIATWO")
    await node.certificates.renew_due([tunnel(SIGNED, source)])
    assert node.certificate(SIGNED).not_valid_after_utc == node.now + timedelta(hours=3)


@pytest.mark.parametrize(
    "content", [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
async def test_missing_or_invalid_certificate_is_created_again(content: bytes | None, node: Node) -> None:
    path = node.options.certificates_path / f"{PLAIN.name}.pem"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    node.certificates.take_over([tunnel(PLAIN)])
    assert dict(node.certificates.files) == {}
    await node.certificates.renew_due([tunnel(PLAIN)])
    assert node.certificate(PLAIN)


async def test_certificate_of_a_tunnel_requested_again_is_kept(node: Node) -> None:
    await node.certificates.ensure(PLAIN, None)
    node.certificates.keep_only([])
    await node.certificates.ensure(PLAIN, None)
    node.certificates.remove_unused_files([])
    assert node.certificate(PLAIN)


async def test_file_of_a_closed_tunnel_is_removed_when_stunnel_has_unloaded_it(node: Node) -> None:
    await node.certificates.ensure(PLAIN, None)
    path = node.certificates.files[PLAIN.name].path
    node.certificates.keep_only([])
    node.certificates.remove_unused_files([PLAIN.name])
    assert path.exists()
    node.certificates.remove_unused_files([])
    assert not path.exists()
    assert dict(node.certificates.files) == {}
    assert await node.certificates.renew_due([]) == START + timedelta(hours=1)


@pytest.mark.parametrize("is_asked_again", [False, True])
async def test_certificate_written_after_its_tunnel_closed_is_removed(
    is_asked_again: bool, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(path: Path, text: str, **options: Any) -> None:
        began.set()
        assert may_end.wait(30)
        write_atomically(path, text, **options)

    monkeypatch.setattr("kube_efs.tunnels.on_demand.renewal.write_atomically", slow)
    asking = asyncio.create_task(node.certificates.ensure(PLAIN, None))
    assert await asyncio.to_thread(began.wait, 30)
    asking.cancel()
    asyncio.get_running_loop().call_soon(may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await asking
    if is_asked_again:
        await node.certificates.ensure(PLAIN, None)
    node.certificates.remove_unused_files([])
    left = list(node.options.certificates_path.iterdir())
    assert left == [one.path for one in node.certificates.files.values()]
    assert bool(left) is is_asked_again


async def test_new_file_is_not_removed_with_the_old_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.certificates.ensure(PLAIN, None)
    node.certificates.keep_only([])
    loop = asyncio.get_running_loop()

    def look_meanwhile(path: Path, text: str, **options: Any) -> None:
        write_atomically(path, text, **options)
        # Before the loop comes to know that it is written.
        asyncio.run_coroutine_threadsafe(look(), loop).result(30)

    async def look() -> None:
        node.certificates.remove_unused_files([])

    monkeypatch.setattr("kube_efs.tunnels.on_demand.renewal.write_atomically", look_meanwhile)
    await node.certificates.ensure(PLAIN, None)
    assert node.certificate(PLAIN)


async def test_directory_that_is_not_writable_is_an_error(node: Node) -> None:
    node.options.certificates_path.write_text("in the way")
    with pytest.raises(TunnelNotReady, match=r"certificate: .* cannot be written"):
        await node.certificates.ensure(PLAIN, None)


async def test_error_in_one_renewal_is_reported_and_affects_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unforeseen(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
        del source, options
        raise KeyError("planted-secret")

    node.keys("AKIAONE")
    source = await node.certificates.ensure(SIGNED, None)
    await node.certificates.ensure(PLAIN, None)
    before = dict(node.certificates.files)
    node.now += timedelta(hours=1)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr("kube_efs.aws.credential_loading.load_credentials", unforeseen)
        due = await node.certificates.renew_due([tunnel(SIGNED, source), tunnel(PLAIN)])

    assert due == node.now + timedelta(seconds=10)
    assert node.certificates.files[SIGNED.name] == before[SIGNED.name]
    assert node.certificates.files[PLAIN.name] != before[PLAIN.name]
    problem = "certificate not renewed: internal error (KeyError)"
    assert node.certificates.problems == {SIGNED.name: problem}
    assert node.outcomes() == (3, 1)
    assert node.duty_failures() == 1
    assert [line["event"] for line in logs] == ["certificate-not-renewed", "duty-failed"]
    assert "planted-secret" not in str(logs)

    node.now = due
    await node.certificates.renew_due([tunnel(SIGNED, source), tunnel(PLAIN)])
    assert node.certificates.files[SIGNED.name] != before[SIGNED.name]
    assert node.certificates.problems == {}


async def test_renewals_restart_after_an_unexpected_error(node: Node) -> None:
    asked = 0

    def tunnels() -> list[Reservation]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError
        return [tunnel(PLAIN)]

    await node.certificates.ensure(PLAIN, None)
    before = node.certificates.files[PLAIN.name]
    node.now += timedelta(hours=1)
    running = asyncio.create_task(node.certificates.run(tunnels))
    async with asyncio.timeout(10):
        while node.certificates.files[PLAIN.name] == before:  # noqa: ASYNC110 - a file sends no event
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.duty_failures() == 1


async def test_failed_renewal_of_a_closed_tunnel_is_not_retried(node: Node) -> None:
    node.keys("AKIAONE")
    source = await node.certificates.ensure(SIGNED, None)
    node.profiles.write_text("[other]\n")
    node.now += timedelta(hours=1)
    await node.certificates.renew_due([tunnel(SIGNED, source)])
    assert "certificate not renewed: profile team" in node.certificates.problems[SIGNED.name]
    node.certificates.keep_only([])
    assert node.certificates.problems == {}


async def test_failed_key_generation_is_retried(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unforeseen() -> ClientKey:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ClientKey, "generate", unforeseen)
        with pytest.raises(MemoryError):
            await node.certificates.ensure(PLAIN, None)
    await node.certificates.ensure(PLAIN, None)
    assert node.certificate(PLAIN)
    assert node.outcomes() == (1, 1)


# Service accounts of pods

OF_POD = TunnelSpec(file_system_id=FS, iam=ServiceAccountIdentity(namespace="team", name="web"))


class PodIdentityAgent:
    """An agent on the node that accepts some tokens; the key is the number of the accepted request."""

    def __init__(self) -> None:
        self.accepted = {"first", "second"}
        self.requests: list[str] = []
        self.life = timedelta(hours=6)
        self.node: PodNode | None = None

    async def handle(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"]
        self.requests.append(token)
        if token not in self.accepted or self.node is None:
            return web.Response(status=400, text=f"refused {token}")
        return web.json_response(
            {
                "AccessKeyId": f"ASIA{len(self.requests)}",
                "SecretAccessKey": "hidden",
                "Token": "session",
                "Expiration": (self.node.now + self.life).isoformat(),
            }
        )


class PodNode(Node):
    """A node with that agent."""

    def __init__(self, folder: Path, url: str, agent: PodIdentityAgent) -> None:
        super().__init__(folder, url)
        self.agent = agent
        agent.node = self
        self._places = folder, url

    async def ensure(self, token: str, *, is_holder: bool = True) -> None:
        await self.certificates.ensure_for_pod(OF_POD, token, is_holder=is_holder)

    async def renew_due(self) -> datetime:
        return await self.certificates.renew_due([tunnel(OF_POD)])

    @property
    def key(self) -> str:
        """The access key in the certificate."""
        return next(one for one in self.signer(OF_POD).decode("latin-1").split() if "ASIA" in one)

    def restarted(self) -> "PodNode":
        node = PodNode(*self._places, self.agent)
        node.now = self.now
        node.certificates.take_over([tunnel(OF_POD)])
        return node


@pytest.fixture
async def pod_node(tmp_path: Path) -> AsyncIterator[PodNode]:
    agent = PodIdentityAgent()
    async with serving(answering(agent.handle)) as url:
        yield PodNode(tmp_path, url, agent)


async def test_certificate_of_a_service_account_is_renewed_with_the_last_token(pod_node: PodNode) -> None:
    await pod_node.ensure("first", is_holder=False)
    await pod_node.ensure("first")
    await pod_node.ensure("second")
    assert pod_node.agent.requests == ["first"]
    pod_node.now += timedelta(hours=1)
    assert await pod_node.renew_due() == pod_node.now + timedelta(hours=1)
    assert pod_node.agent.requests == ["first", "second"]
    assert "ASIA2" in pod_node.key


async def test_session_that_ends_sooner_is_renewed_sooner(pod_node: PodNode) -> None:
    pod_node.agent.life = timedelta(minutes=15)
    await pod_node.ensure("first", is_holder=False)
    pod_node.now += timedelta(minutes=7.5)
    await pod_node.renew_due()
    assert pod_node.agent.requests == ["first", "first"]


async def test_short_session_from_a_fast_clock_is_renewed_when_the_clock_is_right(pod_node: PodNode) -> None:
    """It was due within the longest interval, but EFS would not accept it before."""
    pod_node.agent.life = timedelta(hours=1)  # the default of sts:AssumeRoleWithWebIdentity
    pod_node.now += timedelta(minutes=29)
    await pod_node.ensure("first", is_holder=False)
    pod_node.now = START
    await pod_node.renew_due()
    assert pod_node.certificate(OF_POD).not_valid_before_utc < START
    assert await pod_node.renew_due() == START + timedelta(minutes=30)


async def test_failed_renewal_by_a_fast_clock_is_tried_again_with_the_same_token(pod_node: PodNode) -> None:
    await pod_node.ensure("first", is_holder=False)
    pod_node.agent.accepted = set()
    pod_node.now += timedelta(hours=1)
    await pod_node.renew_due()
    pod_node.agent.accepted = {"first"}
    pod_node.now = START + timedelta(minutes=1)
    await pod_node.ensure("first")
    assert pod_node.certificates.problems == {}


async def test_new_holder_needs_a_token_that_aws_accepts(pod_node: PodNode) -> None:
    await pod_node.ensure("first", is_holder=False)
    before = pod_node.certificates.files[OF_POD.name]
    with pytest.raises(AwsDenied):
        await pod_node.ensure("forged", is_holder=False)
    await pod_node.ensure("second", is_holder=False)
    assert pod_node.agent.requests == ["first", "forged", "second"]
    # Others are not affected: neither the certificate nor its next renewal.
    assert pod_node.certificates.files[OF_POD.name] == before
    assert pod_node.certificates.problems == {}
    pod_node.now += timedelta(hours=1)
    await pod_node.renew_due()
    assert pod_node.agent.requests[-1] == "second"


async def test_token_is_required(pod_node: PodNode) -> None:
    with pytest.raises(InvalidValue, match="token of service account team/web: is missing"):
        await pod_node.ensure("", is_holder=False)
    assert pod_node.agent.requests == []


async def test_refused_renewal_is_an_error_of_each_call_until_a_token_is_accepted(pod_node: PodNode) -> None:
    await pod_node.ensure("first", is_holder=False)
    before = pod_node.certificates.files[OF_POD.name]
    pod_node.agent.accepted = set()
    pod_node.now += timedelta(hours=1)
    await pod_node.renew_due()
    # The same token is not tried again before the next attempt is due.
    with pytest.raises(TunnelNotReady, match="certificate not renewed: service account team/web"):
        await pod_node.ensure("first")
    assert pod_node.agent.requests == ["first", "first"]
    with pytest.raises(AwsDenied):
        await pod_node.ensure("second")
    assert pod_node.certificates.files[OF_POD.name] == before
    pod_node.agent.accepted = {"third"}
    await pod_node.ensure("third")
    assert pod_node.certificates.problems == {}
    assert pod_node.certificates.files[OF_POD.name] != before
    await pod_node.ensure("third")
    assert pod_node.agent.requests == ["first", "first", "second", "third"]


async def test_same_token_is_tried_again_when_it_is_due(pod_node: PodNode) -> None:
    await pod_node.ensure("first", is_holder=False)
    pod_node.agent.accepted = set()
    pod_node.now += timedelta(hours=1)
    await pod_node.renew_due()
    pod_node.agent.accepted = {"first"}
    pod_node.now += timedelta(seconds=10)
    await pod_node.ensure("first")
    assert pod_node.certificates.problems == {}


async def test_restarted_agent_keeps_the_certificate_until_the_kubelet_sends_a_token(
    pod_node: PodNode,
) -> None:
    await pod_node.ensure("first", is_holder=False)
    later = pod_node.restarted()
    before = later.certificates.files[OF_POD.name]
    assert await later.renew_due() == later.now + timedelta(minutes=5)
    assert later.certificates.problems == {}
    await later.ensure("second")
    assert later.certificates.files[OF_POD.name] != before
    assert pod_node.agent.requests == ["first", "second"]


async def test_missing_tokens_after_a_restart_are_a_problem_after_five_minutes(pod_node: PodNode) -> None:
    await pod_node.ensure("first", is_holder=False)
    later = pod_node.restarted()
    later.now += timedelta(minutes=5)
    await later.renew_due()
    [problem] = later.certificates.problems.values()
    assert "service account team/web: has given no token of a pod since the agent started" in problem
    assert "requiresRepublish" in problem
    assert OF_POD.name in later.certificates.files
    await later.ensure("second")
    assert later.certificates.problems == {}


async def test_token_of_a_closed_tunnel_is_forgotten(pod_node: PodNode) -> None:
    await pod_node.ensure("first", is_holder=False)
    pod_node.certificates.keep_only([])
    await pod_node.ensure("second", is_holder=False)
    pod_node.now += timedelta(hours=1)
    await pod_node.renew_due()
    assert pod_node.agent.requests == ["first", "second", "second"]


async def test_neither_files_nor_logs_contain_a_token(pod_node: PodNode) -> None:
    pod_node.agent.accepted = {"secret-token"}
    with capture_logs() as logs:
        await pod_node.ensure("secret-token", is_holder=False)
        pod_node.agent.accepted = set()
        pod_node.now += timedelta(hours=1)
        await pod_node.renew_due()
    assert pod_node.agent.requests == ["secret-token", "secret-token"]
    assert "secret-token" not in str(logs)
    [file] = pod_node.certificates.files.values()
    content = [path.read_bytes() for path in file.path.parent.iterdir()]
    assert content
    assert not any(b"secret-token" in one for one in content)


async def test_pod_without_a_role_does_not_look_like_a_failed_renewal(pod_node: PodNode) -> None:
    for _ in range(3):
        with pytest.raises(KubeEfsError):
            await pod_node.ensure("forged", is_holder=False)
    assert pod_node.outcomes() == (0, 0)
