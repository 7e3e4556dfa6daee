"""The client certificates of tunnels on demand: creates them, stores them for stunnel, renews them in time.

EFS refuses new connections with an expired certificate, and a mount whose connection breaks would then wait
indefinitely. The rules are:

* A certificate and its key are one file (mode 0600), which is replaced atomically. stunnel.conf contains the
  number of the certificate next to its path. A renewed certificate therefore changes the configuration, and
  is loaded as any other change.
* Each tunnel has one due time. A success sets the next one, long before the certificate or its credentials
  expire. A failure postpones it, longer each time. Until then stunnel uses the old certificate. A failure of
  one tunnel does not delay the others.
* Clocks jump. The clock is therefore read at least every half minute, and a due time that was set in the
  future counts as due.
* While a tunnel is used, the source of its first credentials gives all later ones, even if a source with a
  higher priority appears. Otherwise a mount could silently get another identity. If nothing uses the tunnel,
  the next call looks for its source again: the first one may have had to use a source of lower priority,
  with which EFS denies each mount.
* A certificate for a service account is renewed with the last token that a pod of it gave. Tokens are in
  memory only. After a restart, the old certificate serves until the kubelet publishes the volumes again,
  with new tokens, which it does about once a minute.
* The file of a closed tunnel is removed only after stunnel no longer has it loaded: stunnel refuses a
  configuration that names a missing file, with all its services.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import structlog

from kube_efs.aws.credential_sources import (
    CredentialSource,
    IamOptions,
    ServiceAccountIdentity,
    order_sources,
)
from kube_efs.model.errors import InvalidValue, KubeEfsError, TunnelNotReady
from kube_efs.run_to_completion import run_to_completion
from kube_efs.telemetry.duties import Duties, kinds_of
from kube_efs.telemetry.metrics import Outcome, TunnelMetrics
from kube_efs.tunnels.data_plane import CertificateFile
from kube_efs.tunnels.files import write_atomically
from kube_efs.tunnels.on_demand.validity import is_valid, renewal_time
from kube_efs.tunnels.options import OnDemandOptions, TunnelOptions
from kube_efs.tunnels.reservations import Reservation, TunnelSpec

if TYPE_CHECKING:
    from kube_efs.aws.connection import LoadedCredentials
    from kube_efs.tunnels.on_demand.certificate import ClientCertificate, ClientKey

log = structlog.get_logger()

_AT_ONCE: Final = 4
_FIRST_DELAY: Final = timedelta(seconds=10)
_LONGEST_DELAY: Final = timedelta(minutes=5)
# A clock that jumps, as after the node was suspended, is noticed after this time at the latest.
_LONGEST_WAIT_SECONDS: Final = 30.0
# The kubelet publishes volumes again every 60 to 90 seconds; before, there is no problem to report.
_WAIT_FOR_TOKEN: Final = timedelta(minutes=5)
_IDLE_WAIT: Final = timedelta(hours=1)
_DUTY: Final = "certificate renewal"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Renewal:
    """When the next certificate is due, when this was decided, and the delay after the next failure."""

    due: datetime
    made: datetime
    delay: timedelta = _FIRST_DELAY

    def is_due(self, now: datetime) -> bool:
        """Whether it is time, or the clock was ahead when it was decided: the certificate may be too new."""
        return self.due <= now or self.made > now


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ClientCertificates:
    """The certificates by the names of their tunnels; calls ``on_renewed`` after it has written new ones."""

    def __init__(
        self,
        options: TunnelOptions,
        on_demand: OnDemandOptions,
        metrics: TunnelMetrics,
        on_renewed: Callable[[], None],
        duties: Duties,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._duties = duties
        self._region = options.region
        self._directory = options.certificates_path
        self._on_demand = on_demand
        self._metrics = metrics
        self._on_renewed = on_renewed
        self._now = now
        self._key: asyncio.Task[ClientKey] | None = None
        self._files: dict[str, CertificateFile] = {}
        self._sources: dict[str, CredentialSource | None] = {}
        # By tunnel. A renewal must not replace a certificate that a call makes with another source meanwhile.
        self._renewing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._renewals: dict[str, _Renewal] = {}
        self._problems: dict[str, str] = {}
        self._pod_tokens: dict[str, str] = {}
        self._forgotten: set[str] = set()
        self._wake = asyncio.Event()

    @property
    def files(self) -> Mapping[str, CertificateFile]:
        """The existing certificates."""
        return MappingProxyType(self._files)

    @property
    def problems(self) -> Mapping[str, str]:
        """Why the last renewal failed, by tunnel."""
        return MappingProxyType(self._problems)

    def take_over(self, tunnels: Iterable[Reservation]) -> None:
        """Use the certificates of an earlier agent until they are renewed.

        A certificate with credentials is due at once, because it is not known when they expire; with those of
        a service account, as soon as there is a token. The others keep their due time: a renewal reloads
        stunnel, which resets connections that are being opened, and after a start all mounts connect. Files
        of no known tunnel are removed: that agent was killed before it wrote their reservation.
        """
        for tunnel in tunnels:
            path = self._path(tunnel.name)
            with suppress(OSError, ValueError):
                self._files[tunnel.name] = _describe(path, path.read_bytes())
            self._sources[tunnel.name] = tunnel.source
            now, file = self._now(), self._files.get(tunnel.name)
            due = now if file is None or tunnel.spec.iam else renewal_time(file.not_after, now=now)
            if isinstance(tunnel.spec.iam, ServiceAccountIdentity):
                due = now + _WAIT_FOR_TOKEN
            self._renewals[tunnel.name] = _Renewal(due=due, made=now)
        known = {self._path(name) for name in self._sources}
        with suppress(OSError):
            for path in set(self._directory.iterdir()) - known:
                path.unlink()

    async def ensure(
        self, spec: TunnelSpec, source: CredentialSource | None, *, is_used: bool = True
    ) -> CredentialSource | None:
        """Create a certificate unless there is a valid one; returns the source of its credentials, if any.

        If the tunnel is not used, a valid one is kept only if its source is the first choice. Raises the
        errors of finding credentials, and TunnelNotReady when the file cannot be written.
        """
        name = spec.name
        if is_used and self._is_valid(name):
            return self._sources.get(name, source)
        async with self._lock(name):
            known = self._sources.get(name, source)
            may_change = not is_used and known is not None and known != self._first_source(spec)
            if may_change or not self._is_valid(name):
                self._sources[name] = await self._renew(spec, None if may_change else known)
                self._wake.set()
                self._on_renewed()
        return self._sources.get(name, source)

    def _first_source(self, spec: TunnelSpec) -> CredentialSource | None:
        if not isinstance(spec.iam, IamOptions):
            return None
        options = self._on_demand.credentials
        [first, *_] = order_sources(spec.iam, options.environment, options.files)
        return first

    def _lock(self, name: str) -> asyncio.Lock:
        return self._renewing.setdefault(name, asyncio.Lock())

    async def ensure_for_pod(self, spec: TunnelSpec, token: str, *, is_holder: bool) -> None:
        """Ensure a certificate with credentials for this token of a pod, and use the token from now on.

        Without ``is_holder``, AWS must accept the token also if there is a certificate: the service account
        in the spec is only what the caller says. Raises AwsError, InvalidSetting, InvalidValue without a
        token, and TunnelNotReady when the last renewal failed or the file cannot be written.

        The kubelet calls this about once a minute for each mount, so most calls only store the token. The
        token of a holder is stored before AWS has seen it: its mount exists, and renewals need the newest
        token. That of a new holder is stored only after AWS has accepted it. Otherwise a pod with a wrong
        token could make the renewals for all other holders fail.
        """
        name = spec.name
        if not token:
            raise InvalidValue("is missing", field=f"token of {spec.iam}")
        has_failed = name in self._problems
        if self._is_valid(name) and name in self._pod_tokens and not has_failed:
            if not is_holder:
                await self._load(spec, None, token)
            self._pod_tokens[name] = token
            return
        if is_holder:
            # A new token is a reason to try at once. With the same one, AWS would refuse each call of the
            # kubelet again, so the time of the next attempt counts.
            is_new = token != self._pod_tokens.get(name)
            if has_failed and not is_new and not self._renewals[name].is_due(self._now()):
                raise TunnelNotReady(self._problems[name], field="tunnel", value=name)
            self._pod_tokens[name] = token
        try:
            await self._renew(spec, None, token)
        except KubeEfsError as error:
            # A failure of a new holder says nothing about the tunnel of the others.
            if is_holder:
                self._schedule_retry(name, error)
            raise
        self._pod_tokens[name] = token
        self._wake.set()
        self._on_renewed()

    def _is_valid(self, name: str) -> bool:
        """Whether the tunnel has a certificate that EFS accepts, unlike after a night without power."""
        file = self._files.get(name)
        return file is not None and is_valid(file.not_after, now=self._now())

    def keep_only(self, names: Collection[str]) -> None:
        """Remove the certificates of all other tunnels; ``remove_unused_files`` removes their files later."""
        for name in (self._files.keys() | self._renewals.keys()) - set(names):
            for known in (self._files, self._renewals, self._sources, self._problems, self._pod_tokens):
                known.pop(name, None)
            self._forgotten.add(name)

    def remove_unused_files(self, loaded: Collection[str]) -> None:
        """Remove the files of closed tunnels, except those that stunnel has ``loaded``.

        stunnel refuses a configuration that names a missing file.
        """
        for name in self._forgotten.difference(loaded):
            self._forgotten.remove(name)
            if name not in self._files:
                with suppress(OSError):
                    self._path(name).unlink()

    async def run(self, tunnels: Callable[[], Iterable[Reservation]]) -> None:
        """Renew the due certificates until cancelled; ``tunnels`` returns the current tunnels."""
        await self._duties.keep(_DUTY, lambda: self._renew_periodically(tunnels))

    async def _renew_periodically(self, tunnels: Callable[[], Iterable[Reservation]]) -> None:
        while True:
            self._wake.clear()
            next_due = await self.renew_due(tunnels())
            wait = min(_LONGEST_WAIT_SECONDS, max(0.0, (next_due - self._now()).total_seconds()))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def renew_due(self, tunnels: Iterable[Reservation]) -> datetime:
        """Renew the due certificates; returns when the next one is due. A failure is retried."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def renewed(tunnel: Reservation) -> bool:
            """Whether there is a new certificate. No error, expected or not, stops other renewals."""
            async with slots, self._lock(tunnel.name):
                try:
                    source = self._sources.get(tunnel.name, tunnel.source)
                    self._sources[tunnel.name] = await self._renew(tunnel.spec, source)
                except Exception as error:  # noqa: BLE001 - logged, counted and retried
                    self._schedule_retry(tunnel.name, error)
                    return False
                return True

        now = self._now()
        due = {name for name, renewal in self._renewals.items() if renewal.is_due(now)}
        # Most often none is due: this is called for each new tunnel, and the name of a tunnel is a digest.
        known = {tunnel.name: tunnel for tunnel in tunnels if tunnel.name in due} if due else {}
        if any(await asyncio.gather(*map(renewed, known.values()))):
            self._on_renewed()
        # A certificate is there before the reservation of its tunnel.
        unknown = due - known.keys()
        left = (renewal.due for name, renewal in self._renewals.items() if name not in unknown)
        return min(left, default=now + _IDLE_WAIT)

    def _schedule_retry(self, name: str, error: Exception) -> None:
        renewal = self._renewals.get(name)
        if renewal is None:  # closed in the meantime
            return
        now = self._now()
        self._renewals[name] = _Renewal(
            due=now + renewal.delay, made=now, delay=min(renewal.delay * 2, _LONGEST_DELAY)
        )
        again_seconds = renewal.delay.total_seconds()
        is_foreseen = isinstance(error, KubeEfsError)
        reason = str(error) if is_foreseen else f"internal error ({kinds_of(error)})"
        self._problems[name] = f"certificate not renewed: {reason}"
        known = self._files.get(name)
        log.warning(
            "certificate-not-renewed",
            tunnel=name,
            reason=reason,
            valid_until=known.not_after.isoformat() if known else None,
            again_seconds=again_seconds,
        )
        if not is_foreseen:
            self._duties.note(_DUTY, error, retry_seconds=again_seconds)

    async def _renew(
        self, spec: TunnelSpec, source: CredentialSource | None, pod_token: str | None = None
    ) -> CredentialSource | None:
        """Create a certificate; returns the source of its credentials. ``pod_token`` None is the last one."""
        try:
            source, loaded = await self._load(spec, source, pod_token or self._pod_tokens.get(spec.name))
            await self._make(spec, loaded)
        except Exception:
            # A pod whose service account has no role gets an event. It must not raise an alert of the node.
            if pod_token is None or spec.name in self._files:
                self._metrics.certificate_renewals.labels(Outcome.FAILED).inc()
            raise
        self._metrics.certificate_renewals.labels(Outcome.SUCCEEDED).inc()
        self._problems.pop(spec.name, None)
        return source

    async def _load(
        self, spec: TunnelSpec, source: CredentialSource | None, pod_token: str | None
    ) -> "tuple[CredentialSource | None, LoadedCredentials | None]":
        if spec.iam is None:
            return None, None
        # The AWS client needs 11 MB of memory, which a node without such volumes does not need.
        from kube_efs.aws.credential_loading import load_credentials, load_pod_credentials  # noqa: PLC0415
        from kube_efs.aws.credentials import find_credentials  # noqa: PLC0415

        options = replace(self._on_demand.credentials, region=spec.region or self._region)
        if isinstance(spec.iam, ServiceAccountIdentity):
            if not pod_token:
                raise TunnelNotReady(
                    "has given no token of a pod since the agent started",
                    field=str(spec.iam),
                    remedy="check that the CSIDriver efs.csi.aws.com has tokenRequests and requiresRepublish,"
                    " and that kube-efs node runs on this node",
                )
            return None, await load_pod_credentials(spec.iam, pod_token, options)
        if source is not None:
            return source, await load_credentials(source, options)
        return await find_credentials(spec.iam, options)

    async def _make(self, spec: TunnelSpec, loaded: "LoadedCredentials | None") -> None:
        from kube_efs.tunnels.on_demand.certificate import (  # noqa: PLC0415
            CertificateSubject,
            make_certificate,
        )

        subject = CertificateSubject(
            node=self._on_demand.node,
            file_system_id=spec.file_system_id,
            kind=spec.kind,
            region=spec.region or self._region,
            access_point_id=spec.access_point_id,
            client_info=self._on_demand.client_info,
        )
        key, now = await self._get_client_key(), self._now()
        certificate = make_certificate(
            subject,
            key,
            now=now,
            credentials=loaded.credentials if loaded else None,
            credentials_expire_at=loaded.expires_at if loaded else None,
        )
        path = self._path(spec.name)
        # Otherwise remove_unused_files could remove the new file before it is in _files.
        self._forgotten.discard(spec.name)
        try:
            await run_to_completion(asyncio.to_thread(_write, path, certificate))
            self._files[spec.name] = _describe(path, certificate.secret_pem)
        except OSError as error:
            raise TunnelNotReady(
                f"cannot be written ({error.strerror})", field="certificate", value=str(path)
            ) from error
        finally:
            if spec.name not in self._files:
                self._forgotten.add(spec.name)
        self._renewals[spec.name] = _Renewal(due=certificate.renew_at, made=now)

    async def _get_client_key(self) -> "ClientKey":
        """The key of this node, generated once for each agent; concurrent callers wait for the same one."""
        from kube_efs.tunnels.on_demand.certificate import ClientKey  # noqa: PLC0415

        if self._key is None or (self._key.done() and (self._key.cancelled() or self._key.exception())):
            self._key = asyncio.create_task(ClientKey.generate())
        # A caller that is cancelled must not cancel the key of the others.
        return await asyncio.shield(self._key)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.pem"


def _describe(path: Path, pem: bytes) -> CertificateFile:
    from kube_efs.tunnels.on_demand.certificate import describe_certificate  # noqa: PLC0415

    return describe_certificate(path, pem)


def _write(path: Path, certificate: "ClientCertificate") -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # Not durable: after a power failure, an unreadable certificate is created again.
    write_atomically(path, certificate.secret_pem.decode(), durable=False)
