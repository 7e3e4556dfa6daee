"""Every metric of every process, in one place.

Each group registers itself in the given registry. Nothing uses the global registry of the library, so that
one test can contain the metrics of two processes. Names contain units
(https://prometheus.io/docs/practices/naming/).
"""

from enum import StrEnum
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from kube_efs.telemetry.read_gauge import ReadGauge


class Outcome(StrEnum):
    """How an attempt ended; the values of every label ``outcome``."""

    SUCCEEDED = "succeeded"
    REFUSED = "refused"
    RETRIED = "retried"
    FAILED = "failed"


# A claim takes from some 10 ms (an access point) to minutes (a worker pod's image is pulled first).
_PROVISIONING_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# A NULL call on loopback takes 1 ms, to another zone 2 ms; the probe gives up after some seconds.
_PROBE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
# An API server answers in some ms; a busy one holds requests back for seconds.
_API_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30)
# Those of aws-efs-csi-driver, which are the defaults of the Go library; those of the Python library differ.
_AWS_DRIVER_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# A cached answer takes 1 ms, an access point takes some 100 ms, a mount of a sick server minutes.
_CSI_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 180)


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of this process and the version of kube-efs."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    Info("kube_efs_build", "Version of kube-efs", registry=registry).info({"version": version("kube-efs")})
    return registry


class DutyMetrics:
    """The duties of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failures = Counter(
            "kube_efs_duty_failures",
            "Unexpected errors in a duty of the process, or with one object of it; it is tried again",
            ["duty"],
            registry=registry,
        )


class ApiServerMetrics:
    """Requests to the Kubernetes API server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "kube_efs_api_requests",
            "Requests to the API server, each retry counted; code is that of the response, or none without "
            "one",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "kube_efs_api_request_seconds",
            "Time until the API server's response begins",
            ["verb", "resource"],
            registry=registry,
            buckets=_API_SECONDS,
        )


class AwsDriverMetrics:
    """HTTP requests to EFS and S3 Files, with the names and labels of aws-efs-csi-driver; retries count.

    ``service`` is ``efs`` or ``s3files``. Requests that got no answer have a duration, and are in no counter.
    """

    # The durations of these to EFS exist from the start; those of other operations after the first request.
    OPERATIONS: Final = (
        "CreateAccessPoint",
        "DeleteAccessPoint",
        "DescribeAccessPoints",
        "DescribeFileSystems",
        "DescribeMountTargets",
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        self.request_seconds = Histogram(
            "aws_efs_csi_api_request_duration_seconds",
            "Time until the answer to a request to EFS or S3 Files (KUBE_EFS_AWS_DRIVER_METRICS)",
            ["request", "service"],
            registry=registry,
            buckets=_AWS_DRIVER_SECONDS,
        )
        self.errors = Counter(
            "aws_efs_csi_api_request_errors",
            "Requests to EFS and S3 Files with an error, except throttled ones (KUBE_EFS_AWS_DRIVER_METRICS)",
            ["request", "service", "code"],
            registry=registry,
        )
        self.throttles = Counter(
            "aws_efs_csi_api_request_throttles",
            "Requests that EFS or S3 Files throttled (KUBE_EFS_AWS_DRIVER_METRICS)",
            ["request", "service"],
            registry=registry,
        )
        for operation in self.OPERATIONS:
            self.request_seconds.labels(operation, "efs")


class AwsMetrics:
    """Calls to AWS, and the age of the discovered state.

    ``aws_driver`` counts requests again under the names of aws-efs-csi-driver; None: not.
    """

    def __init__(self, registry: CollectorRegistry, aws_driver: AwsDriverMetrics | None = None) -> None:
        self.aws_driver = aws_driver
        self.calls = Counter(
            "kube_efs_aws_calls",
            "Calls to AWS (pages count one each) by operation; outcome is succeeded or the error's code",
            ["operation", "outcome"],
            registry=registry,
        )
        self.call_seconds = Histogram(
            "kube_efs_aws_call_seconds",
            "Duration of calls to AWS, including the client's own retries",
            ["operation"],
            registry=registry,
        )
        self.file_systems = Gauge(
            "kube_efs_file_systems", "File systems known from the last discovery", registry=registry
        )
        self.discovery_age_seconds = Gauge(
            "kube_efs_discovery_age_seconds",
            "Time since the file systems were last listed successfully, before the first time since this"
            " replica began to lead; NaN in a replica that does not lead",
            registry=registry,
        )
        self.discovery_failures = Counter(
            "kube_efs_discovery_failures",
            "Failed parts of discoveries: file_systems (the listing) or mount_targets (of one file system)",
            ["part"],
            registry=registry,
        )
        self.unfinished_file_systems = Gauge(
            "kube_efs_unfinished_file_systems",
            "File systems of this cluster that were created for claims and were not ready after five minutes",
            registry=registry,
        )
        self.access_points = ReadGauge(
            "kube_efs_access_points",
            "Access points of a file system in use by the CSI driver, including those of other creators",
            ["file_system"],
            registry=registry,
        )
        self.access_point_quota = ReadGauge(
            "kube_efs_access_point_quota",
            "Access points that the file system may have (KUBE_EFS_ACCESS_POINT_QUOTA)",
            ["file_system"],
            registry=registry,
        )


class ControllerMetrics:
    """Claims, volumes and worker pods of the controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leader = Gauge(
            "kube_efs_leader", "1 while this process is the leader, else 0", registry=registry
        )
        self.provisionings = Counter(
            "kube_efs_provisionings",
            "Attempts to provision a volume",
            ["provisioner", "outcome"],
            registry=registry,
        )
        self.provisioning_seconds = Histogram(
            "kube_efs_provisioning_seconds",
            "Time from the first sight of a claim to its volume",
            ["provisioner"],
            buckets=_PROVISIONING_SECONDS,
            registry=registry,
        )
        self.deletions = Counter(
            "kube_efs_deletions",
            "Attempts to delete a released volume",
            ["provisioner", "outcome"],
            registry=registry,
        )
        self.claims_waiting = Gauge(
            "kube_efs_claims_waiting",
            "Claims of the served provisioners that have no volume yet",
            registry=registry,
        )
        self.gids_in_use = Gauge(
            "kube_efs_gids_in_use",
            "Group IDs that volumes or directories of the cluster hold",
            registry=registry,
        )
        self.gids_shared = Gauge(
            "kube_efs_gids_shared",
            "Group IDs of volumes that other data has too",
            registry=registry,
        )
        self.gid_range_size = ReadGauge(
            "kube_efs_gid_range_size",
            "Group IDs available for the volumes of a class",
            ["storage_class"],
            registry=registry,
        )
        self.gid_range_used = ReadGauge(
            "kube_efs_gid_range_used",
            "Group IDs of the range of the class that are in use, also by volumes of other classes",
            ["storage_class"],
            registry=registry,
        )
        self.gid_range_full = Counter(
            "kube_efs_gid_range_full",
            "Attempts that failed because every group ID of the class was in use",
            ["storage_class"],
            registry=registry,
        )
        self.copies = Counter(
            "kube_efs_copies",
            "Copies of directories for new volumes and snapshots that ended; a failed one is continued",
            ["outcome"],
            registry=registry,
        )
        self.copied_bytes = Counter(
            "kube_efs_copied_bytes",
            "Bytes that complete copies have written; without those of their earlier attempts",
            registry=registry,
        )
        self.directories_without_volume = Gauge(
            "kube_efs_directories_without_volume",
            "Directories of a provisioner that no volume uses; they are not removed",
            ["provisioner"],
            registry=registry,
        )
        self.worker_pods_overdue = ReadGauge(
            "kube_efs_worker_pods_overdue",
            "Worker pods that exceeded their timeout and still run; each blocks its directories",
            ["file_system"],
            registry=registry,
        )
        self.volumes_of_unknown_port = Gauge(
            "kube_efs_volumes_of_unknown_port",
            "Volumes at a loopback port that belongs to no known file system, or to another than they name",
            registry=registry,
        )
        self.targets_bytes = Gauge(
            "kube_efs_targets_bytes",
            "Size of the data of the ConfigMap with the tunnel targets, which must not exceed 1 MiB",
            registry=registry,
        )
        self.trash_entries = ReadGauge(
            "kube_efs_trash_entries",
            "Entries in the trash of a file system when it was last emptied; each is a removed directory",
            ["file_system"],
            registry=registry,
        )
        self.trash_stuck = ReadGauge(
            "kube_efs_trash_stuck",
            "Entries of the trash that cannot be removed; they are retried",
            ["file_system"],
            registry=registry,
        )
        self.worker_pods = Counter(
            "kube_efs_worker_pods", "Worker pods that ended", ["outcome"], registry=registry
        )


class OperatorMetrics:
    """The installation that the operator keeps in place."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leader = Gauge(
            "kube_efs_operator_leader", "1 while this process is the leader, else 0", registry=registry
        )
        self.requested = Gauge(
            "kube_efs_operator_driver_requested",
            "1 if there is a ClusterCSIDriver efs.csi.aws.com, else 0; NaN before that is known",
            registry=registry,
        )
        self.requested.set(float("nan"))
        self.degraded = Gauge(
            "kube_efs_operator_degraded",
            "1 while the installation is degraded, else 0",
            registry=registry,
        )
        self.changes = Counter(
            "kube_efs_operator_changes",
            "Objects created, updated and deleted, including corrected drift",
            ["kind", "change"],
            registry=registry,
        )


class SharedVolumeMetrics:
    """SharedVolumes and their objects."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Its name and labels are those of aws-efs-operator.
        self.info = Gauge(
            "sharedvolume_info",
            "Always 1: this SharedVolume exists",
            ["namespace", "sharedvolume"],
            registry=registry,
        )
        self.phases = Gauge(
            "kube_efs_shared_volumes", "SharedVolumes by their phase", ["phase"], registry=registry
        )
        self.edits_undone = Counter(
            "kube_efs_shared_volume_edits_undone",
            "Specs that were reset to the access point of their volume",
            registry=registry,
        )
        self.objects_made = Counter(
            "kube_efs_shared_volume_objects_made",
            "Volumes and claims that were created or recreated for SharedVolumes",
            ["kind"],
            registry=registry,
        )


class UsageMetrics:
    """The usage of volumes, if it is measured."""

    def __init__(self, registry: CollectorRegistry) -> None:
        volume = ["volume", "claim_namespace", "claim", "file_system"]
        self.used = ReadGauge(
            "kube_efs_volume_used_bytes",
            "Bytes in the volume when it was last measured; a lower bound if that took too long",
            volume,
            registry=registry,
        )
        self.requested = ReadGauge(
            "kube_efs_volume_requested_bytes",
            "Bytes that the volume's claim requests",
            volume,
            registry=registry,
        )
        self.over = ReadGauge(
            "kube_efs_volume_over_request",
            "1 after the volume exceeds the request of its claim, until it is clearly below; else 0",
            volume,
            registry=registry,
        )
        self.measurements = Counter(
            "kube_efs_usage_measurements",
            "Volumes measured; a failed one is retried in the next round",
            ["outcome"],
            registry=registry,
        )
        self.round_seconds = Gauge(
            "kube_efs_usage_round_seconds", "Duration of the last round of measuring", registry=registry
        )


class TunnelMetrics:
    """The tunnels of one node."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.configured = Gauge(
            "kube_efs_tunnels_configured", "Tunnels that the data planes serve", registry=registry
        )
        self.data_plane = Gauge(
            "kube_efs_data_plane",
            "Always 1: the data plane of new tunnels, stunnel or kernel",
            ["data_plane"],
            registry=registry,
        )
        self.relay_processes = Gauge(
            "kube_efs_relay_processes",
            "Running relays of the kernel's data plane, also those that only carry older connections",
            registry=registry,
        )
        self.relay_restarts = Counter(
            "kube_efs_relay_restarts",
            "Restarts of the relay after it ended unexpectedly",
            registry=registry,
        )
        self.connections = Counter(
            "kube_efs_tunnel_connections",
            "Connections that this tunnel has carried, probes included",
            ["tunnel", "file_system"],
            registry=registry,
        )
        self.sent_bytes = Counter(
            "kube_efs_tunnel_sent_bytes",
            "Bytes from mounts to the mount target, probes included",
            ["tunnel", "file_system"],
            registry=registry,
        )
        self.received_bytes = Counter(
            "kube_efs_tunnel_received_bytes",
            "Bytes from the mount target to mounts, probes included",
            ["tunnel", "file_system"],
            registry=registry,
        )
        self.up = Gauge(
            "kube_efs_tunnel_up",
            "1 if the last probe of this tunnel was answered, else 0; absent while EFS denies this tunnel",
            ["file_system"],
            registry=registry,
        )
        self.denied = Gauge(
            "kube_efs_tunnel_denied",
            "1 if nothing uses this tunnel and EFS denies clients without an identity, else 0",
            ["file_system"],
            registry=registry,
        )
        self.mount_target = Gauge(
            "kube_efs_tunnel_mount_target",
            "Always 1: the mount target that this tunnel leads to",
            ["file_system", "address", "zone"],
            registry=registry,
        )
        self.in_own_zone = Gauge(
            "kube_efs_tunnel_in_own_zone",
            "1 if the mount target in use is in the node's own zone, else 0",
            ["file_system"],
            registry=registry,
        )
        self.failed_over = Gauge(
            "kube_efs_tunnel_failed_over",
            "1 while this tunnel leads to a mount target although a nearer one exists, else 0",
            ["file_system"],
            registry=registry,
        )
        self.fail_overs = Counter(
            "kube_efs_tunnel_fail_overs",
            "Changes of a tunnel's mount target because the one in use did not answer",
            ["file_system"],
            registry=registry,
        )
        self.probe_seconds = Histogram(
            "kube_efs_tunnel_probe_seconds",
            "Duration of answered probes (an NFS NULL call through the tunnel)",
            ["file_system"],
            buckets=_PROBE_SECONDS,
            registry=registry,
        )
        self.processes = Gauge("kube_efs_stunnel_processes", "Running stunnels", registry=registry)
        self.restarts = Counter(
            "kube_efs_stunnel_restarts", "Restarts of stunnel after it ended unexpectedly", registry=registry
        )
        self.reloads = Counter(
            "kube_efs_stunnel_reloads", "Reloads of the configuration of a running stunnel", registry=registry
        )
        self.rejected_entries = Gauge(
            "kube_efs_tunnel_rejected_entries",
            "Entries of the tunnel targets that are ignored because they are malformed",
            registry=registry,
        )
        self.on_demand_up = Gauge(
            "kube_efs_demanded_tunnel_up",
            "1 if the last probe of this tunnel on demand was answered, else 0",
            ["tunnel", "file_system"],
            registry=registry,
        )
        self.on_demand_failed_over = Gauge(
            "kube_efs_demanded_tunnel_failed_over",
            "1 while this tunnel on demand leads to a mount target although a nearer one exists, else 0",
            ["tunnel", "file_system"],
            registry=registry,
        )
        self.holders = Gauge(
            "kube_efs_demanded_tunnel_holders",
            "Mounts that hold this tunnel on demand",
            ["tunnel", "file_system"],
            registry=registry,
        )
        self.certificate_expiry = Gauge(
            "kube_efs_certificate_expiry_seconds",
            "When the client certificate of this tunnel on demand expires, in Unix time",
            ["tunnel", "file_system"],
            registry=registry,
        )
        self.certificate_renewals = Counter(
            "kube_efs_certificate_renewals",
            "Attempts to create a client certificate for a tunnel on demand, including the first one",
            ["outcome"],
            registry=registry,
        )


class CsiMetrics:
    """Calls to a process's CSI services; ``method`` is the whole name, such as /csi.v1.Node/NodeGetInfo."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "kube_efs_csi_calls",
            "Calls that ended, by the name of their gRPC status code",
            ["method", "code"],
            registry=registry,
        )
        self.call_seconds = Histogram(
            "kube_efs_csi_call_seconds",
            "Duration of calls, also of failed ones",
            ["method"],
            buckets=_CSI_SECONDS,
            registry=registry,
        )
        self.running = Gauge(
            "kube_efs_csi_calls_running", "Calls that have not ended yet", ["method"], registry=registry
        )
