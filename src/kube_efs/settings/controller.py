"""The settings of the controller."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kube_efs.model.efs.ids import FileSystemId, parse_file_system_id
from kube_efs.model.volumes import DRIVER
from kube_efs.settings.base import AwsSettings, CommonSettings, own_image
from kube_efs.settings.csi import CsiSettings
from kube_efs.settings.directories import (
    BackendName,
    DirectoryProvisionerSettings,
    WorkerMounts,
    read_backends,
    read_base_directory,
    read_provisioner_name,
    read_provisioners,
    read_server,
)
from kube_efs.settings.fields import (
    count,
    found,
    matching,
    one_of,
    read_dns_name,
    read_path,
    seconds,
    setting,
    switch,
    whole_seconds,
)
from kube_efs.settings.secure_metrics import SecureMetricsSettings
from kube_efs.settings.shared_volumes import SharedVolumeSettings
from kube_efs.settings.status_page import StatusPageSettings
from kube_efs.settings.usage import UsageSettings

DEFAULT_PROVISIONER = "gnuthought.com/efs-stunnel"
DEFAULT_LEASE = "kube-efs-controller"
# How long efs-provisioner waits for a renewal; it ignores the duration in the object.
_OLDER_LEASE_SECONDS = 15.0


def efs_provisioner_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings with which a controller works like efs-provisioner, except those in the environment."""
    defaults = {
        "KUBE_EFS_BACKENDS": BackendName.DIRECTORY,
        "KUBE_EFS_OLDER_PERMISSIONS": "true",
        # The name of the older system's lock.
        "KUBE_EFS_LEASE_NAME": environment.get("PROVISIONER_NAME", "").replace("/", "-"),
    }
    return {name: value for name, value in defaults.items() if value and not environment.get(name)}


@dataclass(frozen=True, kw_only=True)
class ControllerSettings(
    SecureMetricsSettings,
    StatusPageSettings,
    UsageSettings,
    SharedVolumeSettings,
    CsiSettings,
    CommonSettings,
    AwsSettings,
):
    """The process ``kube-efs controller``."""

    health_port: int = count(
        "KUBE_EFS_HEALTH_PORT",
        9810,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 selects a free one.",
        least=0,
        most=65535,
    )
    base_stunnel_port: int = count(
        "BASE_STUNNEL_PORT",
        20490,
        "First loopback port for file systems.",
        least=1024,
        most=65535,
    )
    polling_interval_seconds: float = seconds(
        "EFS_POLLING_INTERVAL", 300, "Seconds between two discoveries of file systems."
    )
    provision_backoff_seconds: float = seconds(
        "PROVISION_BACKOFF_INTERVAL",
        60,
        "Seconds until a failed attempt for a claim is repeated; a change can repeat it earlier.",
    )
    backends: tuple[BackendName, ...] = setting(
        "KUBE_EFS_BACKENDS",
        (BackendName.TUNNEL, BackendName.DIRECTORY),
        "Kinds of volumes that this controller creates.",
        read=read_backends,
        accepts=f"one or more of {', '.join(f'`{one}`' for one in BackendName)}, with commas between them",
        shown="`tunnel,directory`",
    )
    provisioner_name: str = setting(
        "STORAGE_PROVISIONER_NAME",
        DEFAULT_PROVISIONER,
        "Provisioner of the StorageClasses of tunnel volumes; also written to annotations.",
        read=read_provisioner_name,
        accepts="a name such as `example.com/efs`",
    )
    directory_provisioner_name: str | None = setting(
        "PROVISIONER_NAME",
        None,
        "Provisioner of the StorageClasses of directory volumes; also written to annotations.",
        read=read_provisioner_name,
        accepts="a name such as `example.com/aws-efs`",
        shown="none",
    )
    directory_file_system_id: FileSystemId | None = setting(
        "FILE_SYSTEM_ID",
        None,
        "File system of the directory volumes.",
        read=parse_file_system_id,
        accepts="an ID such as `fs-47a2c22e`",
        shown="none",
    )
    directory_dns_name: str | None = setting(
        "DNS_NAME",
        None,
        "NFS server of directory volumes.",
        read=read_server,
        accepts="a DNS name",
        shown="the file system's own",
    )
    directory_path: str | None = setting(
        "KUBE_EFS_DIRECTORY_PATH",
        None,
        "Directory of the file system that contains the directory volumes. A mount from the file system's own"
        " name takes precedence.",
        read=read_base_directory,
        accepts="an absolute path",
        shown="what is mounted in this pod, else `/`",
    )
    directory_mount: Path | None = setting(
        "KUBE_EFS_DIRECTORY_MOUNT",
        None,
        "Path at which this pod has that directory mounted.",
        read=read_path,
        accepts="an absolute path",
        shown="the mount of the server in `/proc/self/mountinfo`; without one, worker pods do the work",
    )
    more_directory_provisioners: tuple[DirectoryProvisionerSettings, ...] = setting(
        "KUBE_EFS_DIRECTORY_PROVISIONERS",
        (),
        "More provisioners of directory volumes, each with `name`, `file_system_id` and optionally"
        " `dns_name`, `path` and `mount`.",
        read=read_provisioners,
        accepts="a list in JSON or YAML",
        shown="none",
    )
    mount_timeout_seconds: float = seconds(
        "KUBE_EFS_MOUNT_TIMEOUT_SECONDS",
        60,
        "Timeout in seconds of one operation on a file system that is mounted in this pod.",
        least=1,
    )
    worker_image: str = found(
        "WORKER_IMAGE",
        own_image,
        "Image of the worker pods; it must contain the command `kube-efs`.",
        read=matching(r"[A-Za-z0-9][\w.:/@-]*", "is not a valid image"),
        accepts="an image's name",
        shown="`quay.io/kube-efs/kube-efs:<version>`",
    )
    worker_service_account: str | None = setting(
        "KUBE_EFS_WORKER_SERVICE_ACCOUNT",
        None,
        "Service account of the worker pods.",
        read=read_dns_name,
        accepts="a service account's name",
        shown="`efs-worker`, or the one of `KUBE_EFS_NAMES`",
    )
    worker_mounts: WorkerMounts | None = setting(
        "KUBE_EFS_WORKER_MOUNTS",
        None,
        "How worker pods mount the root of a file system: through its port on the node, which is open all the"
        " time, or with the CSI driver, only while a pod needs it.",
        read=one_of(WorkerMounts),
        accepts="`tunnel` or `csi`",
        shown="`tunnel` if `KUBE_EFS_BACKENDS` contains it, otherwise `csi`",
    )
    worker_timeout_seconds: float = seconds(
        "KUBE_EFS_WORKER_TIMEOUT_SECONDS",
        300,
        "Seconds after which a worker pod that has not ended counts as failed.",
        least=1,
    )
    worker_batch: int = count(
        "KUBE_EFS_WORKER_BATCH",
        500,
        "Maximum number of directories that one worker pod creates or removes.",
        least=1,
        most=10000,
    )
    leader_election: bool = switch(
        "KUBE_EFS_LEADER_ELECTION",
        True,
        "Whether only the holder of a Lease is active. If false, run only one controller. The chart and the"
        " operator refuse it.",
    )
    lease_name: str = setting(
        "KUBE_EFS_LEASE_NAME",
        DEFAULT_LEASE,
        "Lease that the leader holds; controllers that serve different provisioners in one namespace need"
        " different ones. The Role must name it.",
        read=read_dns_name,
        accepts="a Lease's name",
    )
    older_permissions: bool = switch(
        "KUBE_EFS_OLDER_PERMISSIONS",
        False,
        "Whether the controller has only the permissions of efs-provisioner: its leader holds an Endpoints"
        " object instead of a Lease, and new volumes get no finalizer. Only for directory volumes.",
    )
    lease_duration_seconds: int = whole_seconds(
        "KUBE_EFS_LEASE_DURATION_SECONDS",
        15,
        "Seconds without a renewal after which another controller may take the Lease.",
        most=3600,
        also=", more than `KUBE_EFS_LEASE_RENEW_SECONDS`",
    )
    lease_renew_seconds: float = seconds(
        "KUBE_EFS_LEASE_RENEW_SECONDS",
        10,
        "Seconds without a renewal after which the leader stops working.",
        most=3600,
        also=", more than `KUBE_EFS_LEASE_RETRY_SECONDS`",
    )
    lease_retry_seconds: float = seconds(
        "KUBE_EFS_LEASE_RETRY_SECONDS",
        2,
        "Seconds between two attempts to get or renew the Lease.",
        most=3600,
    )
    aws_concurrency: int = count(
        "KUBE_EFS_AWS_CONCURRENCY", 8, "Maximum number of concurrent calls to AWS.", least=1, most=100
    )
    aws_driver_metrics: bool = switch(
        "KUBE_EFS_AWS_DRIVER_METRICS",
        False,
        "Whether `/metrics` also contains the metrics `aws_efs_csi_api_request_*` of the AWS driver.",
    )

    @property
    def has_workers(self) -> bool:
        """Whether worker pods run.

        With csi-provisioner they run only on request: its manifests do not give the permissions.
        """
        is_enough = self.worker_mounts is WorkerMounts.CSI or self.csi_endpoint is None
        return BackendName.TUNNEL in self.backends or (BackendName.CSI in self.backends and is_enough)

    @property
    def workers_use_driver(self) -> bool:
        """Whether worker pods mount with the CSI driver."""
        default = WorkerMounts.TUNNEL if BackendName.TUNNEL in self.backends else WorkerMounts.CSI
        return (self.worker_mounts or default) is WorkerMounts.CSI

    @property
    def directory_provisioners(self) -> tuple[DirectoryProvisionerSettings, ...]:
        """Every provisioner of directory volumes: the one with its own variables, and those of the list."""
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

    @property
    def served_provisioners(self) -> list[str]:
        """The names of the provisioners whose claims and volumes this controller serves."""
        names = [one.name for one in self.directory_provisioners]
        if BackendName.TUNNEL in self.backends:
            names.append(self.provisioner_name)
        if BackendName.CSI in self.backends:
            names.append(DRIVER)
        return names

    @classmethod
    def gaps(cls, given: Mapping[str, str]) -> list[str]:
        """The missing variables of directory volumes."""
        names = ("FILE_SYSTEM_ID", "PROVISIONER_NAME")
        missing = [name for name in names if not given.get(name)]
        is_only = given.get("KUBE_EFS_BACKENDS", "").strip(" ,") == BackendName.DIRECTORY
        is_needed = is_only and not given.get("KUBE_EFS_DIRECTORY_PROVISIONERS")
        if missing and (is_needed or len(missing) < len(names)):
            return [f"{' and '.join(missing)} must be set for directory volumes"]
        return []

    def faults(self) -> list[str]:
        """The problems of names, workers, lease and permissions."""
        return [
            *self._shared_names(),
            *self._worker_faults(),
            *self._lease_faults(),
            *self._permission_faults(),
        ]

    def _shared_names(self) -> Iterator[str]:
        served = self.served_provisioners
        twice = sorted({name for name in served if served.count(name) > 1})
        if twice:
            yield f"each provisioner needs a unique name; {', '.join(twice)} is given twice"

    def _worker_faults(self) -> Iterator[str]:
        if self.worker_mounts is WorkerMounts.TUNNEL and BackendName.TUNNEL not in self.backends:
            yield "KUBE_EFS_WORKER_MOUNTS is tunnel, so KUBE_EFS_BACKENDS must contain tunnel"
        if self.delete_access_point_root_dir and not self.has_workers:
            yield (
                "KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR needs worker pods: put tunnel into KUBE_EFS_BACKENDS,"
                " or set KUBE_EFS_WORKER_MOUNTS to csi"
            )

    def _permission_faults(self) -> Iterator[str]:
        if self.older_permissions and set(self.backends) != {BackendName.DIRECTORY}:
            yield "KUBE_EFS_OLDER_PERMISSIONS needs KUBE_EFS_BACKENDS: directory, and no other kind"
        if self.older_permissions and self.lease_renew_seconds >= _OLDER_LEASE_SECONDS:
            yield (
                f"KUBE_EFS_LEASE_RENEW_SECONDS must be less than {_OLDER_LEASE_SECONDS:g} with"
                " KUBE_EFS_OLDER_PERMISSIONS: an efs-provisioner leads after so many seconds without a"
                f" renewal; it is {self.lease_renew_seconds:g}"
            )

    def _lease_faults(self) -> Iterator[str]:
        # A leader must stop before another one can start, and must retry before it stops.
        if not self.lease_duration_seconds > self.lease_renew_seconds > self.lease_retry_seconds:
            yield (
                "KUBE_EFS_LEASE_DURATION_SECONDS must be more than KUBE_EFS_LEASE_RENEW_SECONDS, and that"
                f" more than KUBE_EFS_LEASE_RETRY_SECONDS; they are {self.lease_duration_seconds:g},"
                f" {self.lease_renew_seconds:g} and {self.lease_retry_seconds:g}"
            )
