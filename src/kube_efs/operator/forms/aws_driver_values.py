"""The values of the chart of aws-efs-csi-driver (4.4.1, driver 3.4.1) that this chart takes too.

A value has the name and the meaning that it has there, or ``aws_driver_refusals`` refuses it.
"""

from collections.abc import Iterator

from kube_efs.operator.forms.aws_driver_refusals import REFUSALS
from kube_efs.operator.forms.value_schemas import (
    OBJECT,
    OBJECTS,
    SWITCH,
    TEXT,
    TEXTS,
    Schema,
    Value,
    first_object,
    one_of,
)

_WHOLE: Schema = {"type": "integer", "minimum": 0}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_DURATION: Schema = {"type": "string", "pattern": "^$|^[1-9][0-9]*[sm]$"}
_NAME: Schema = {"type": "string", "pattern": r"^$|^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}
_DNS_POLICY: Schema = one_of("", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")


def _optional(schema: Schema) -> Schema:
    """The schema of a value that has no default."""
    return {**schema, "type": [schema["type"], "null"]}


def aws_driver_values() -> Iterator[Value]:
    """The served values, then the refused ones."""
    yield from _of_all()
    yield from _of_controller()
    yield from _of_node()
    yield from (one.value for one in REFUSALS)


def _of_all() -> Iterator[Value]:
    yield Value(
        path="nameOverride",
        default="",
        meaning="The label `app.kubernetes.io/name` of the workloads and their pods",
        schema={"type": "string", "pattern": "^$|^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"},
    )
    yield Value(
        path="imagePullSecrets",
        default=[],
        meaning="Names of Secrets for pulling the image, in addition to `image.pullSecrets`",
        schema={"type": "array", "items": {"type": "string", "minLength": 1}},
    )
    yield Value(
        path="useFIPS",
        default=False,
        meaning="Whether to use FIPS endpoints of AWS, and FIPS mode in the tunnels"
        " ([fips.md](../../../docs/fips.md))",
        schema=SWITCH,
    )
    yield Value(
        path="debugLogs", default=False, meaning="Whether all processes log debug messages", schema=SWITCH
    )
    yield Value(
        path="portRangeUpperBound",
        default="",
        meaning="The last loopback port of tunnels for CSI mounts; the first one is 22049. Empty, and"
        " `21049`, the default of the AWS driver: 23048",
        schema={"type": ["string", "integer"], "pattern": "^$|^[0-9]{5}$", "maximum": 65535},
    )
    storage_class: Schema = {
        "type": "object",
        "required": ["name"],
        "additionalProperties": False,
        "properties": {
            "name": TEXT,
            "annotations": TEXTS,
            "mountOptions": {"type": "array", "items": TEXT},
            "parameters": {"type": "object", "additionalProperties": {"type": ["string", "boolean"]}},
            "reclaimPolicy": one_of("Delete", "Retain"),
            "volumeBindingMode": one_of("Immediate", "WaitForFirstConsumer"),
        },
    }
    yield Value(
        path="storageClasses",
        default=[],
        meaning="StorageClasses of the CSI driver, each with `name`, and optionally `annotations`,"
        " `mountOptions`, `parameters`, `reclaimPolicy` and `volumeBindingMode`",
        schema={"type": "array", "items": storage_class},
    )
    yield Value(
        path="useHelmHooksForCSIDriver",
        default=False,
        meaning="Whether a hook of Helm creates the CSIDriver, as in the chart of the AWS driver, and the"
        " removal of the release keeps it",
        schema=SWITCH,
    )


def _of_controller() -> Iterator[Value]:
    yield Value(
        path="controller.create", default=True, meaning="Whether to create the controller", schema=SWITCH
    )
    yield Value(
        path="controller.replicaCount",
        default=None,
        meaning="The same as `controller.replicas`, and takes precedence",
        schema=_optional(_WHOLE),
    )
    yield Value(
        path="controller.enableMetrics",
        default=False,
        meaning="Whether the controller also serves the metrics `aws_efs_csi_api_request_*`"
        " ([metrics.md](../../../docs/metrics.md#metrics-of-the-aws-driver)), with a Service"
        " `efs-csi-controller`, port 3301",
        schema=SWITCH,
    )
    yield Value(
        path="controller.enablePrometheusAnnotations",
        default=True,
        meaning="Whether the pods of the controller then have the annotations `prometheus.io/*`",
        schema=SWITCH,
    )
    yield Value(
        path="controller.serviceMonitor.enabled",
        default=False,
        meaning="Whether there is then a ServiceMonitor `efs-csi-controller` for the Prometheus operator",
        schema=SWITCH,
    )
    yield Value(
        path="controller.logLevel",
        default=2,
        meaning="5 or more: the controller logs debug messages",
        schema=_WHOLE,
    )
    yield Value(
        path="controller.tags",
        default={},
        meaning="Additional tags of every access point. A backslash escapes a blank, a colon or a backslash",
        schema=TEXTS,
    )
    yield Value(
        path="controller.deleteAccessPointRootDir",
        default=False,
        meaning="Whether the directory of an access point and its contents are removed with its volume",
        schema=SWITCH,
    )
    yield Value(
        path="controller.regionalStsEndpoints",
        default=False,
        meaning="Whether the controller calls the STS endpoint of its region",
        schema=SWITCH,
    )
    yield Value(
        path="controller.leaderElectionLeaseDuration",
        default="",
        meaning="Time without a renewal after which another controller may take the Lease, such as `15s`",
        schema=_DURATION,
    )
    yield Value(
        path="controller.leaderElectionRenewDeadline",
        default="",
        meaning="Time without a renewal after which the leader stops working, such as `10s`",
        schema=_DURATION,
    )
    yield Value(
        path="controller.hostNetwork",
        default=False,
        meaning="Whether the controller uses the host network. Not on OpenShift",
        schema=SWITCH,
    )
    yield Value(
        path="controller.rollingUpdate",
        default={},
        meaning="`maxUnavailable` and `maxSurge` of rolling updates. Empty: all controllers end before new"
        " ones start",
        schema=OBJECT,
    )
    yield Value(
        path="controller.topologySpreadConstraints",
        default=[],
        meaning="Topology spread constraints without label selector, instead of one for nodes",
        schema=OBJECTS,
    )
    yield Value(
        path="controller.containerSecurityContext",
        default={},
        meaning="The security context of the container. `{privileged: true}`, the default of the AWS driver,"
        " is ignored",
        schema=OBJECT,
    )
    yield Value(
        path="controller.podDisruptionBudget.enabled",
        default=False,
        meaning="Whether to create a PodDisruptionBudget of the controller",
        schema=SWITCH,
    )
    for name in ("minAvailable", "maxUnavailable"):
        yield Value(
            path=f"controller.podDisruptionBudget.{name}",
            default=None,
            meaning=f"`{name}` of the PodDisruptionBudget, which accepts one of both. Without both values,"
            " `minAvailable` is 1",
            schema={"type": ["integer", "string", "null"]},
        )
    yield Value(
        path="controller.podDisruptionBudget.unhealthyPodEvictionPolicy",
        default="IfHealthyBudget",
        meaning="Whether pods that are not ready can be evicted",
        schema=one_of("", "IfHealthyBudget", "AlwaysAllow"),
    )
    yield Value(path="controller.affinity", default={}, meaning="Affinity of the controller", schema=OBJECT)
    yield from _of_account("controller", "the controller")
    yield from _of_pods("controller", "the controller", "the pods of the controller")


def _of_node() -> Iterator[Value]:
    yield Value(
        path="node.kubeletPath",
        default="",
        meaning="The same as `csi.kubeletDirectory`, and takes precedence",
        schema={"type": "string", "pattern": "^$|^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+/?$"},
    )
    yield Value(
        path="node.logLevel",
        default=2,
        meaning="5 or more: the CSI driver and the tunnel agent log debug messages",
        schema=_WHOLE,
    )
    yield Value(
        path="node.volMetricsOptIn",
        default=False,
        meaning="Whether the kubelet gets the used bytes of volumes, which the driver counts in the"
        " background ([csi-node.md](../../../docs/csi-node.md#usage-of-a-volume))",
        schema=SWITCH,
    )
    yield Value(
        path="node.volMetricsRefreshPeriod",
        default=None,
        meaning="Minutes after which a volume is counted again. Empty: 240",
        schema={"type": ["number", "null"], "exclusiveMinimum": 0},
    )
    yield Value(
        path="node.volMetricsFsRateLimit",
        default=None,
        meaning="The number of volumes of a file system that a node counts at the same time. Empty: 5",
        schema={"type": ["integer", "null"], "minimum": 1},
    )
    yield Value(
        path="node.maxInflightMountCallsOptIn",
        default=False,
        meaning="Whether `node.maxInflightMountCalls` applies",
        schema=SWITCH,
    )
    yield Value(
        path="node.maxInflightMountCalls",
        default=10,
        meaning="Maximum number of concurrent mounts of a node",
        schema={"type": "integer", "minimum": 1},
    )
    yield Value(
        path="node.volumeAttachLimitOptIn",
        default=False,
        meaning="Whether `node.volumeAttachLimit` applies",
        schema=SWITCH,
    )
    yield Value(
        path="node.volumeAttachLimit",
        default=20,
        meaning="Maximum number of volumes that Kubernetes places on a node",
        schema={"type": "integer", "minimum": 1},
    )
    yield Value(
        path="node.forceUnmountAfterTimeout",
        default=False,
        meaning="Whether to force an unmount after `node.unmountTimeout`. Data that is not"
        " yet written is lost",
        schema=SWITCH,
    )
    yield Value(
        path="node.unmountTimeout",
        default="",
        meaning="Timeout of one call of umount, such as `30s`",
        schema=_DURATION,
    )
    yield Value(
        path="node.hostAliases",
        default={},
        meaning="Addresses of file systems for the CSI driver and the tunnel agent: for each ID, `ip` and"
        " `region`",
        schema={
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["ip", "region"],
                "additionalProperties": False,
                "properties": {"ip": TEXT, "region": TEXT},
            },
        },
    )
    yield Value(
        path="node.rollingUpdate",
        default={},
        meaning="`maxUnavailable` and `maxSurge` of updates of the CSI driver. Empty: 10 % of the nodes",
        schema=OBJECT,
    )
    yield Value(
        path="node.affinity",
        default={},
        meaning="`nodeAffinity` of the CSI driver and the tunnel agent. It is merged with the default: each"
        " of its required terms also excludes Fargate and hybrid nodes",
        # Other affinities are the chart's: without its anti-affinity, two drivers would use one socket.
        schema={"type": "object", "additionalProperties": False, "properties": {"nodeAffinity": OBJECT}},
    )
    yield from _of_account("node", "the tunnel agent, with which it signs mounts with the option `iam`")
    yield Value(
        path="node.serviceAccount.disableMutation",
        default=False,
        meaning="Whether the CSI driver leaves the startup taint on its node, and may not change nodes",
        schema=SWITCH,
    )
    yield from _of_pods("node", "the CSI driver", "the pods of the CSI driver and of the tunnel agent")


def _of_account(name: str, words: str) -> Iterator[Value]:
    yield Value(
        path=f"{name}.serviceAccount.create",
        default=True,
        meaning="Whether to create this service account. If not, it must exist",
        schema=SWITCH,
    )
    yield Value(
        path=f"{name}.serviceAccount.name",
        default="",
        meaning=f"The name of the service account of {words}; `efs-csi-{name}-sa` in the chart of the AWS"
        " driver. Empty: the name of `kube-efs render`",
        schema=_NAME,
    )
    yield Value(
        path=f"{name}.serviceAccount.annotations",
        default={},
        meaning="Annotations of this service account, such as `eks.amazonaws.com/role-arn`",
        schema=TEXTS,
    )


def _of_pods(name: str, words: str, network_words: str) -> Iterator[Value]:
    """The values of pods; those with ``network_words`` apply to more pods than the others."""
    asset = first_object(name)
    pod = asset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # Of the labels in a release of the AWS driver, `app` distinguishes its pods from those of kube-efs.
    own = sorted({*asset["metadata"]["labels"], "app"})
    reserved: Schema = {**TEXTS, "propertyNames": {"not": {"enum": own}}}
    yield Value(
        path=f"{name}.additionalLabels",
        default={},
        meaning=f"Additional labels of the workload of {words}",
        schema=reserved,
    )
    yield Value(
        path=f"{name}.podLabels",
        default={},
        meaning=f"Additional labels of the pods of {words}",
        schema=reserved,
    )
    yield Value(
        path=f"{name}.priorityClassName",
        default=pod["priorityClassName"],
        meaning=f"The priority class of {words}",
    )
    yield Value(
        path=f"{name}.revisionHistoryLimit",
        default=None,
        meaning=f"The number of old revisions of {words} that Kubernetes keeps. Empty: 10",
        schema=_optional(_WHOLE),
    )
    yield Value(
        path=f"{name}.dnsPolicy",
        default="",
        meaning=f"The DNS policy of {network_words}. Empty: the default of Kubernetes",
        schema=_DNS_POLICY,
    )
    yield Value(
        path=f"{name}.dnsConfig",
        default={},
        meaning=f"DNS settings of {network_words}",
        schema=OBJECT,
    )
    (health,) = container["ports"]
    yield Value(
        path=f"{name}.healthPort",
        default=health["containerPort"],
        meaning=f"The port of `/healthz`, `/readyz` and `/metrics` of {words}",
        schema=_PORT,
    )
    for probe in ("liveness", "readiness", "startup"):
        yield Value(
            path=f"{name}.{probe}Probe",
            default={},
            meaning=f"The {probe} probe of {words}. Empty: the probe of `kube-efs render`",
            schema=OBJECT,
        )
    ignored = (
        ". User and group 0 with `runAsNonRoot: false`, the default of the AWS driver, is ignored"
        if name == "controller"
        else ""
    )
    yield Value(
        path=f"{name}.securityContext",
        default={},
        meaning=f"The security context of the pods of {words}{ignored}",
        schema=OBJECT,
    )
    yield Value(
        path=f"{name}.volumes",
        default=[],
        meaning=f"Additional volumes of the pods of {words}",
        schema=OBJECTS,
    )
    yield Value(
        path=f"{name}.volumeMounts",
        default=[],
        meaning=f"Where {words} mounts them",
        schema=OBJECTS,
    )
