"""The cluster-wide watches, by kopf: claims, volumes and classes become values and go to their controllers.

Only low-level event handlers are registered. They need no finalizer and no annotation, so kopf leaves no
trace on users' objects; what it would keep there (progress, last state) is the business of the queues.
"""

from pathlib import Path
from typing import Protocol

import kopf
from lightkube.config.kubeconfig import SingleConfig

from kube_efs.kube.reading import read_claim, read_storage_class, read_volume
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.volumes import Volume

_DELETED = "DELETED"
_WATCH_SECONDS = 300.0


class Observer(Protocol):
    """Whoever is told what changes in the cluster."""

    def claim_seen(self, claim: Claim) -> None:
        """A claim is new or has changed."""

    def claim_gone(self, claim: Claim) -> None:
        """A claim is gone."""

    def volume_seen(self, volume: Volume) -> None:
        """A volume is new or has changed."""

    def volume_gone(self, volume: Volume) -> None:
        """A volume is gone."""

    def class_seen(self, storage_class: StorageClass) -> None:
        """A storage class is new or has changed."""

    def class_gone(self, storage_class: StorageClass) -> None:
        """A storage class is gone."""


async def watch(observer: Observer, config: SingleConfig) -> None:
    """Tell the observer everything there is and every change, until cancelled or signalled to stop."""
    await kopf.operator(
        registry=_registry(observer, config), settings=_settings(), clusterwide=True, standalone=True
    )


def _registry(observer: Observer, config: SingleConfig) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: object) -> kopf.ConnectionInfo:
        return connection_info(config)

    async def on_claim(event: kopf.RawEvent, **_: object) -> None:
        claim = read_claim(event["object"])
        (observer.claim_gone if event["type"] == _DELETED else observer.claim_seen)(claim)

    async def on_volume(event: kopf.RawEvent, **_: object) -> None:
        volume = read_volume(event["object"])
        (observer.volume_gone if event["type"] == _DELETED else observer.volume_seen)(volume)

    async def on_class(event: kopf.RawEvent, **_: object) -> None:
        storage_class = read_storage_class(event["object"])
        (observer.class_gone if event["type"] == _DELETED else observer.class_seen)(storage_class)

    kopf.on.login(registry=registry)(login)
    kopf.on.event("", "v1", "persistentvolumeclaims", registry=registry)(on_claim)
    kopf.on.event("", "v1", "persistentvolumes", registry=registry)(on_volume)
    kopf.on.event("storage.k8s.io", "v1", "storageclasses", registry=registry)(on_class)
    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # The three kinds are known and always there; scanning for others would need more permissions.
    settings.scanning.disabled = True
    # A watch must not outlive a connection that died without a word.
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = None
    return settings


def connection_info(config: SingleConfig) -> kopf.ConnectionInfo:
    """The same way to the cluster that the client takes, in kopf's words; tokens are read anew each time."""
    cluster, user = config.cluster, config.user
    return kopf.ConnectionInfo(
        server=cluster.server,
        ca_path=config.abs_file(cluster.certificate_auth) if cluster.certificate_auth else None,
        ca_data=cluster.certificate_auth_data,
        insecure=cluster.insecure,
        token=_token(config),
        scheme="Bearer",
        username=user.username if user else None,
        password=user.password if user else None,
        certificate_path=config.abs_file(user.client_cert) if user and user.client_cert else None,
        certificate_data=user.client_cert_data if user else None,
        private_key_path=config.abs_file(user.client_key) if user and user.client_key else None,
        private_key_data=user.client_key_data if user else None,
    )


def _token(config: SingleConfig) -> str | None:
    user = config.user
    if user is None:
        return None
    if user.token_file:
        return Path(user.token_file).read_text(encoding="utf-8").strip()
    return user.token
