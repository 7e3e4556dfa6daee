"""Every environment variable of the long-running processes, with its default, range and meaning.

One class for each process, over bases that they share. ``docs/settings.md`` is made from this module
(``scripts/settings_table.py``). Variables without the prefix ``KUBE_EFS_`` have the names that
openshift-efs-stunnel, efs-provisioner, AWS's own tools and Kubernetes gave them. An empty variable counts
as not set.
"""

import re
import socket
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kube_efs.model.directories import Directory, parse_directory
from kube_efs.model.errors import InvalidSetting, InvalidValue
from kube_efs.model.ids import (
    FileSystemId,
    Region,
    SubnetId,
    ZoneName,
    parse_file_system_id,
    parse_region,
    parse_subnet_id,
    parse_zone_name,
)

DEFAULT_NAMESPACE = "openshift-efs-stunnel"
DEFAULT_PROVISIONER = "gnuthought.com/efs-stunnel"
DEFAULT_LEASE = "kube-efs-controller"
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"


def _setting(
    name: str, default: object, meaning: str, *, accepts: str, shown: str = "", **limits: Any
) -> Any:
    """A field that is read from the variable ``name``.

    ``accepts`` is the range in words, and the remedy when a value is outside of it; ``shown`` describes a
    default that depends on the machine. Both are Markdown.
    """
    source = {"default_factory": default} if callable(default) else {"default": default}
    return Field(
        validation_alias=name,
        description=meaning,
        json_schema_extra={"accepts": accepts, "shown": shown or f"`{default}`"},
        **source,
        **limits,
    )


def _count(name: str, default: int, meaning: str, *, least: int, most: int) -> Any:
    """A whole number from ``least`` to ``most``."""
    return _setting(name, default, meaning, accepts=f"{least} to {most}", ge=least, le=most)


def _seconds(
    name: str, default: float, meaning: str, *, least: float = 0.1, most: int = 86400, also: str = ""
) -> Any:
    """A time in seconds from ``least`` to ``most``."""
    accepts = f"{least} to {most} seconds{also}"
    return _setting(name, default, meaning, accepts=accepts, shown=f"`{default:g}`", ge=least, le=most)


def _own_namespace() -> str:
    try:
        return _SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return DEFAULT_NAMESPACE


def own_image() -> str:
    """The image of this version, which every process of kube-efs runs from."""
    return f"quay.io/kube-efs/kube-efs:{version('kube-efs')}"


def _level(text: str) -> str:
    level = "WARNING" if text.upper() == "WARN" else text.upper()
    if level not in _LEVELS:
        raise ValueError("is no level")
    return level


def _matching(pattern: str, problem: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(problem)
        return text

    return AfterValidator(check)


def _parsed(parse: Callable[[object], object]) -> AfterValidator:
    """The model's own parser; its error becomes one that pydantic collects with the others."""

    def check(text: str) -> object:
        try:
            return parse(text)
        except InvalidValue as error:
            raise ValueError(error.problem) from error

    return AfterValidator(check)


def _yaml(value: object) -> object:
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise ValueError("is no YAML") from error


def _items(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


LabelName = Annotated[str, _matching(_DNS_LABEL, "is no name of letters, digits and dashes")]
DnsName = Annotated[str, _matching(_DNS_NAME, "is no DNS name")]
CommaList = Annotated[
    tuple[Annotated[SubnetId, _parsed(parse_subnet_id)], ...], NoDecode, BeforeValidator(_items)
]


ProvisionerName = Annotated[str, _matching(rf"{_DNS_NAME}(/[A-Za-z0-9._-]+)?", "is no provisioner")]
BaseDirectory = Annotated[str, _parsed(lambda text: str(parse_directory(text)))]


class BackendName(StrEnum):
    """The kinds of volumes that a controller makes."""

    TUNNEL = "tunnel"
    DIRECTORY = "directory"


class DirectoryProvisionerSettings(BaseModel):
    """One provisioner of directory volumes; ``dns_name`` None is AWS's own name of the file system.

    ``mount`` is where the file system's ``path`` is mounted in this pod.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ProvisionerName
    file_system_id: Annotated[FileSystemId, _parsed(parse_file_system_id)]
    dns_name: DnsName | None = None
    path: BaseDirectory | None = None
    mount: Path | None = None

    @property
    def base(self) -> Directory | None:
        """The directory of the file system that volumes' directories are made in, if it is given."""
        return None if self.path is None else parse_directory(self.path)


Backends = Annotated[tuple[BackendName, ...], NoDecode, BeforeValidator(_items)]
Provisioners = Annotated[tuple[DirectoryProvisionerSettings, ...], NoDecode, BeforeValidator(_yaml)]


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True, case_sensitive=True, env_ignore_empty=True, validate_by_name=True, validate_by_alias=True
    )


class CommonSettings(_Environment):
    """What every long-running process of kube-efs is told."""

    logging_level: Annotated[str, AfterValidator(_level)] = _setting(
        "LOGGING_LEVEL", "INFO", "Least severe message that is logged.", accepts=", ".join(_LEVELS)
    )
    health_host: str = _setting(
        "KUBE_EFS_HEALTH_HOST",
        "0.0.0.0",  # noqa: S104 — the kubelet and Prometheus come from outside of the pod
        "Address that `/healthz`, `/readyz` and `/metrics` are served on.",
        accepts="an address of this host",
    )
    kubeconfig: FilePath | None = _setting(
        "KUBECONFIG",
        None,
        "How to reach the cluster.",
        accepts="a file that exists",
        shown="the pod's service account",
    )
    namespace: LabelName = _setting(
        "POD_NAMESPACE",
        _own_namespace,
        "Namespace of the ConfigMap, the root claims, the worker pods and the Lease.",
        accepts="a namespace's name",
        shown=f"the service account's, else `{DEFAULT_NAMESPACE}`",
    )
    identity: DnsName = _setting(
        "POD_NAME",
        socket.gethostname,
        "Name of this process in Leases and events.",
        accepts="a pod's name",
        shown="the host's name",
    )
    node_name: DnsName = _setting(
        "NODE_NAME",
        socket.gethostname,
        "Name of the node that this process runs on.",
        accepts="a node's name",
        shown="the host's name",
    )


class AwsSettings(_Environment):
    """Where this process is in AWS; what is not set comes from the instance's metadata."""

    region: Annotated[Region, _parsed(parse_region)] | None = _setting(
        "AWS_REGION",
        None,
        "Region of the file systems.",
        accepts="a name such as `us-east-1`",
        shown="instance metadata",
    )
    zone: Annotated[ZoneName, _parsed(parse_zone_name)] | None = _setting(
        "KUBE_EFS_ZONE",
        None,
        "Availability zone of this node.",
        accepts="a name such as `us-east-1a`",
        shown="instance metadata",
    )
    subnets: CommaList = _setting(
        "KUBE_EFS_SUBNETS",
        (),
        "Subnets of this node, the preferred one first.",
        accepts="ids such as `subnet-0a1b2c3d`, with commas between them",
        shown="instance metadata",
    )
    endpoint_url: Annotated[str, _matching(r"https?://[^\s/]+(/\S*)?", "is no URL")] | None = _setting(
        "AWS_ENDPOINT_URL",
        None,
        "Address of the AWS APIs, for private endpoints and for tests.",
        accepts="an http or https URL",
        shown="AWS's own",
    )
    metadata_endpoint: Annotated[str, _matching(r"https?://\S+", "is no URL")] = _setting(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "http://169.254.169.254",
        "Address of the instance metadata service.",
        accepts="an http or https URL",
    )
    dns_suffix: DnsName | None = _setting(
        "EFS_DNS_SUFFIX",
        None,
        "Domain in the names of file systems: `<id>.efs.<region>.<suffix>`.",
        accepts="a domain such as `amazonaws.com`",
        shown="the region's",
    )


class ControllerSettings(CommonSettings, AwsSettings):
    """The process ``kube-efs controller``."""

    health_port: int = _count(
        "KUBE_EFS_HEALTH_PORT",
        9810,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 takes a free one.",
        least=0,
        most=65535,
    )
    base_stunnel_port: int = _count(
        "BASE_STUNNEL_PORT",
        20490,
        "First loopback port that is given to a file system.",
        least=1024,
        most=65535,
    )
    polling_interval_seconds: float = _seconds(
        "EFS_POLLING_INTERVAL", 300, "Seconds between two discoveries of file systems."
    )
    provision_backoff_seconds: float = _seconds(
        "PROVISION_BACKOFF_INTERVAL", 60, "Least seconds between two tries for one claim after a failure."
    )
    backends: Backends = _setting(
        "KUBE_EFS_BACKENDS",
        (BackendName.TUNNEL, BackendName.DIRECTORY),
        "Kinds of volumes that this controller makes.",
        accepts="`tunnel`, `directory`, or both with a comma between them",
        shown="`tunnel,directory`",
        min_length=1,
    )
    provisioner_name: ProvisionerName = _setting(
        "STORAGE_PROVISIONER_NAME",
        DEFAULT_PROVISIONER,
        "Provisioner that StorageClasses of tunnel volumes name, also written to annotations.",
        accepts="a name such as `example.com/efs`",
    )
    directory_provisioner_name: ProvisionerName | None = _setting(
        "PROVISIONER_NAME",
        None,
        "Provisioner that StorageClasses of directory volumes name, also written to annotations.",
        accepts="a name such as `example.com/aws-efs`",
        shown="none",
    )
    directory_file_system_id: Annotated[FileSystemId, _parsed(parse_file_system_id)] | None = _setting(
        "FILE_SYSTEM_ID",
        None,
        "File system of the directory volumes.",
        accepts="an id such as `fs-47a2c22e`",
        shown="none",
    )
    directory_dns_name: DnsName | None = _setting(
        "DNS_NAME",
        None,
        "Server that directory volumes are mounted from.",
        accepts="a DNS name",
        shown="the file system's own",
    )
    directory_path: BaseDirectory | None = _setting(
        "KUBE_EFS_DIRECTORY_PATH",
        None,
        "Directory of the file system that directory volumes are made in. A mount from the file system's own"
        " name knows it better, and wins.",
        accepts="an absolute path",
        shown="what is mounted in this pod, else `/`",
    )
    directory_mount: Path | None = _setting(
        "KUBE_EFS_DIRECTORY_MOUNT",
        None,
        "Where this pod has that directory mounted.",
        accepts="an absolute path",
        shown="where `/proc/self/mountinfo` shows the server; worker pods do the work if it is nowhere",
    )
    more_directory_provisioners: Provisioners = _setting(
        "KUBE_EFS_DIRECTORY_PROVISIONERS",
        (),
        "More provisioners of directory volumes, each with `name`, `file_system_id` and, if need be,"
        " `dns_name`, `path` and `mount`.",
        accepts="a list in JSON or YAML",
        shown="none",
    )
    mount_timeout_seconds: float = _seconds(
        "KUBE_EFS_MOUNT_TIMEOUT_SECONDS",
        60,
        "Seconds that a file system mounted in this pod has for one piece of work.",
        least=1,
    )
    worker_image: Annotated[str, _matching(r"[A-Za-z0-9][\w.:/@-]*", "is no image")] = _setting(
        "WORKER_IMAGE",
        own_image,
        "Image of the worker pods; it must hold the command `kube-efs`.",
        accepts="an image's name",
        shown="`quay.io/kube-efs/kube-efs:<version>`",
    )
    worker_service_account: DnsName = _setting(
        "KUBE_EFS_WORKER_SERVICE_ACCOUNT",
        "efs-worker",
        "Service account of the worker pods.",
        accepts="a service account's name",
    )
    worker_timeout_seconds: float = _seconds(
        "KUBE_EFS_WORKER_TIMEOUT_SECONDS",
        300,
        "Seconds after which a worker pod that has not ended counts as failed.",
        least=1,
    )
    worker_batch: int = _count(
        "KUBE_EFS_WORKER_BATCH",
        500,
        "Most directories that one worker pod makes or removes.",
        least=1,
        most=10000,
    )
    leader_election: bool = _setting(
        "KUBE_EFS_LEADER_ELECTION",
        True,
        "Whether only the holder of a Lease works; without it there must be one controller only.",
        accepts="true or false",
        shown="`true`",
    )
    lease_name: DnsName = _setting(
        "KUBE_EFS_LEASE_NAME",
        DEFAULT_LEASE,
        "Lease that the leader holds; controllers that serve different provisioners in one namespace need"
        " different ones.",
        accepts="a Lease's name",
    )
    lease_duration_seconds: int = _seconds(
        "KUBE_EFS_LEASE_DURATION_SECONDS",
        15,
        "Seconds after which another controller may take a Lease that was not renewed.",
        least=1,
        most=3600,
        also=", whole, more than `KUBE_EFS_LEASE_RENEW_SECONDS`",
    )
    lease_renew_seconds: float = _seconds(
        "KUBE_EFS_LEASE_RENEW_SECONDS",
        10,
        "Seconds without a renewal after which the leader stops working.",
        most=3600,
        also=", more than `KUBE_EFS_LEASE_RETRY_SECONDS`",
    )
    lease_retry_seconds: float = _seconds(
        "KUBE_EFS_LEASE_RETRY_SECONDS", 2, "Seconds between two tries to get or renew the Lease.", most=3600
    )
    aws_concurrency: int = _count(
        "KUBE_EFS_AWS_CONCURRENCY", 8, "Most calls to AWS at the same time.", least=1, most=100
    )

    @property
    def directory_provisioners(self) -> tuple[DirectoryProvisionerSettings, ...]:
        """Every provisioner of directory volumes: the one that has variables of its own, and the list's."""
        if BackendName.DIRECTORY not in self.backends:
            return ()
        if self.directory_provisioner_name is None or self.directory_file_system_id is None:
            return self.more_directory_provisioners
        single = DirectoryProvisionerSettings(
            name=self.directory_provisioner_name,
            file_system_id=self.directory_file_system_id,
            dns_name=self.directory_dns_name,
            path=self.directory_path,
            mount=self.directory_mount,
        )
        return (single, *self.more_directory_provisioners)

    @model_validator(mode="after")
    def _provisioners_fit(self) -> Self:
        given = (self.directory_file_system_id, self.directory_provisioner_name)
        is_needed = self.backends == (BackendName.DIRECTORY,) and not self.more_directory_provisioners
        names = ("FILE_SYSTEM_ID", "PROVISIONER_NAME")
        missing = [name for name, value in zip(names, given, strict=True) if value is None]
        if missing and (is_needed or len(missing) < len(names)):
            raise ValueError(f"{' and '.join(missing)} must be set for directory volumes")
        served = [one.name for one in self.directory_provisioners]
        if BackendName.TUNNEL in self.backends:
            served.append(self.provisioner_name)
        twice = sorted({name for name in served if served.count(name) > 1})
        if twice:
            raise ValueError(f"each provisioner needs a name of its own; {', '.join(twice)} is there twice")
        return self

    @model_validator(mode="after")
    def _lease_times_fit(self) -> Self:
        # A leader must give up before another may take over, and must have tried again by then.
        if not self.lease_duration_seconds > self.lease_renew_seconds > self.lease_retry_seconds:
            raise ValueError(
                "KUBE_EFS_LEASE_DURATION_SECONDS must be more than KUBE_EFS_LEASE_RENEW_SECONDS, and that"
                f" more than KUBE_EFS_LEASE_RETRY_SECONDS; they are {self.lease_duration_seconds:g},"
                f" {self.lease_renew_seconds:g} and {self.lease_retry_seconds:g}"
            )
        return self


class TunnelSettings(CommonSettings, AwsSettings):
    """The process ``kube-efs tunnel``."""

    health_port: int = _count(
        "KUBE_EFS_HEALTH_PORT",
        9811,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 takes a free one.",
        least=0,
        most=65535,
    )
    stunnel_conf_path: Path = _setting(
        "STUNNEL_CONF_PATH",
        Path("/tmp/stunnel.conf"),  # noqa: S108 — the older system's default; inside the pod
        "File that stunnel's configuration is written to.",
        accepts="a path in a folder that can be written",
    )
    stunnel_path: Path | None = _setting(
        "STUNNEL_PATH",
        None,
        "The stunnel program.",
        accepts="the path of a program",
        shown="the first of `/usr/local/bin/stunnel`, `/usr/bin/stunnel`",
    )
    ca_file: Path = _setting(
        "KUBE_EFS_CA_FILE",
        Path("/etc/amazon/efs/efs-utils.crt"),
        "Certificate authorities, one of which must have signed a mount target's certificate.",
        accepts="the path of a PEM file",
    )
    probe_interval_seconds: float = _seconds(
        "KUBE_EFS_PROBE_INTERVAL_SECONDS", 10, "Seconds between two probes of each tunnel.", most=3600
    )
    connect_timeout_seconds: float = _seconds(
        "KUBE_EFS_CONNECT_TIMEOUT_SECONDS",
        2,
        "Seconds that a mount target has to accept a connection before another is tried.",
        most=60,
    )


_Settings = TypeVar("_Settings", bound=_Environment)


def load(kind: type[_Settings]) -> _Settings:
    """The settings of this process's environment; raises InvalidSetting that names every bad variable."""
    try:
        return kind()
    except ValidationError as error:
        raise _invalid(kind, error.errors(include_url=False)) from error


def _invalid(kind: type[_Environment], details: list[ErrorDetails]) -> InvalidSetting:
    accepts = {
        str(field.validation_alias): str(field.json_schema_extra["accepts"])
        for field in kind.model_fields.values()
        if isinstance(field.json_schema_extra, dict)
    }
    faults = [_fault(detail, accepts) for detail in details]
    if len(faults) == 1:
        return faults[0]
    return InvalidSetting(f"{len(faults)} settings are not acceptable:" + "".join(f"\n  {f}" for f in faults))


def _fault(detail: ErrorDetails, accepts: dict[str, str]) -> InvalidSetting:
    problem = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("Path ")
    if not detail["loc"]:  # a rule over several variables; its message names them
        return InvalidSetting(problem)
    name, *inside = map(str, detail["loc"])
    # A list's own value says which one it is; a structure's needs its name.
    inside = inside if len(inside) > 1 else []
    return InvalidSetting(
        problem[0].lower() + problem[1:],
        field=".".join([name, *inside]),
        value=detail["input"],
        remedy=f"use {accepts[name].replace('`', '')}",
    )
