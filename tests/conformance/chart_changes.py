"""For each value of the chart, a value to try and its effect on the objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kube_efs.model.names import NEW_INSTALLATION

CSI: Mapping[str, Any] = {"csi": {"enabled": True}}
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
NAMES = NEW_INSTALLATION.names
MANAGER, TUNNEL, NODE = (
    f"Deployment/{NAMES.controller}",
    f"DaemonSet/{NAMES.tunnel}",
    f"DaemonSet/{NAMES.node}",
)
ACCOUNTS = (NAMES.controller_account, NAMES.tunnel_account, NAMES.worker_account, NAMES.node_account)
CONTROLLER_ACCOUNT, TUNNEL_ACCOUNT = (f"ServiceAccount/{one}" for one in ACCOUNTS[:2])
CLASS = f"StorageClass/{NAMES.storage_class}"
DRIVER = "CSIDriver/efs.csi.aws.com"
SERVICE, BUDGET = "Service/efs-csi-controller", f"PodDisruptionBudget/{NAMES.controller}"
WITH_BUDGET: Mapping[str, Any] = {"controller": {"podDisruptionBudget": {"enabled": True}}}
ROLE = "eks.amazonaws.com/role-arn"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
POD = "spec.template.spec"
WORKER_IMAGE = f"{MANAGER}.{POD}.containers.0.env.5.value"
# How many variables the manifests themselves set.
VARIABLES = {MANAGER: 6, TUNNEL: 5}
VARIABLES_WITH_CSI = {MANAGER: 9, TUNNEL: 7, NODE: 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The changes of a value, by object and path; None for a removed field.

    ``base`` are the other values. ``whole``: an object comes or goes, and only its name is compared.
    """

    value: Any
    gives: Mapping[str, Any]
    base: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False


def _of_workload(name: str, target: str, account: str, base: Mapping[str, Any]) -> dict[str, Change]:
    pod = f"{target}.{POD}"
    count = {"controller": 6, "tunnel": 5, "node": 7}[name]
    added = {"key": "dedicated", "operator": "Exists"}
    tolerated = {"key": "dedicated", "operator": "Exists"} if name == "controller" else added
    return {
        f"{name}.env": Change(
            value={"LOGGING_LEVEL": 'a "b"\n{{ c }}'},
            gives={
                f"{pod}.containers.0.env.{count}.name": "LOGGING_LEVEL",
                f"{pod}.containers.0.env.{count}.value": 'a "b"\n{{ c }}',
            },
            base=base,
        ),
        f"{name}.serviceAccountAnnotations": Change(
            value={"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/efs"},
            gives={
                f"ServiceAccount/{account}.metadata.annotations.eks.amazonaws.com/role-arn": (
                    "arn:aws:iam::1:role/efs"
                )
            },
            base=base,
        ),
        f"{name}.podAnnotations": Change(
            value={"team": "storage"},
            gives={f"{target}.spec.template.metadata.annotations.team": "storage"},
            base=base,
        ),
        f"{name}.nodeSelector": Change(
            value={"pool": "a"}, gives={f"{pod}.nodeSelector.pool": "a"}, base=base
        ),
        f"{name}.tolerations": Change(
            value=[tolerated],
            gives={
                **({} if name != "controller" else {f"{pod}.tolerations.0.operator": "Exists"}),
                f"{pod}.tolerations.0.key": "dedicated",
            },
            base=base,
        ),
        f"{name}.resources": Change(
            value={"limits": {"memory": "1Gi"}},
            gives={f"{pod}.containers.0.resources.limits.memory": "1Gi"},
            base=base,
        ),
    }


def variable(target: str, name: str, value: str, position: Mapping[str, int]) -> dict[str, str]:
    """The leaves of an additional variable, at that position."""
    found = f"{target}.{POD}.containers.0.env.{position[target]}"
    return {f"{found}.name": name, f"{found}.value": value}


def _of_aws_driver_pods(name: str, target: str, base: Mapping[str, Any]) -> dict[str, Change]:
    """The values of the AWS driver's chart that its controller and its nodes have alike."""
    pod = f"{target}.{POD}"
    # The tunnel agent does a part of the work of the pod on a node.
    network = [pod] if name == "controller" else [pod, f"{TUNNEL}.{POD}"]
    host = {} if name == "controller" else {"host": "127.0.0.1"}
    given = {"httpGet": {"path": "/healthz", "port": "healthz"}, "periodSeconds": 77}
    volumes = {"controller": 1, "node": 5}[name]

    def change(
        value: Any, gives: Mapping[str, Any], more: Mapping[str, Any] = MappingProxyType({})
    ) -> Change:
        return Change(value=value, gives=gives, base={**base, **more})

    def probe(field: str, replaced: Mapping[str, Any]) -> Change:
        start = f"{pod}.containers.0.{field}"
        return change(
            given, {f"{start}.periodSeconds": 77, **{f"{start}.{key}": to for key, to in replaced.items()}}
        )

    ports = [
        f"{pod}.containers.0.ports.0.{port}" for port in ("containerPort", *(["hostPort"] if host else []))
    ]
    return {
        f"{name}.additionalLabels": change({"team": "a"}, {f"{target}.metadata.labels.team": "a"}),
        f"{name}.podLabels": change({"team": "a"}, {f"{target}.spec.template.metadata.labels.team": "a"}),
        f"{name}.priorityClassName": change("high", {f"{pod}.priorityClassName": "high"}),
        f"{name}.revisionHistoryLimit": change(0, {f"{target}.spec.revisionHistoryLimit": 0}),
        f"{name}.dnsPolicy": change("None", {f"{one}.dnsPolicy": "None" for one in network}),
        f"{name}.dnsConfig": change(
            {"nameservers": ["169.254.169.253"]},
            {f"{one}.dnsConfig.nameservers.0": "169.254.169.253" for one in network},
        ),
        f"{name}.healthPort": change(
            9909,
            {
                **dict.fromkeys(ports, 9909),
                **variable(target, "KUBE_EFS_HEALTH_PORT", "9909", VARIABLES_WITH_CSI if host else VARIABLES),
                **(
                    variable(TUNNEL, "KUBE_EFS_DRIVER_HEALTH_PORT", "9909", VARIABLES_WITH_CSI)
                    if host
                    else {}
                ),
            },
        ),
        f"{name}.livenessProbe": probe("livenessProbe", {"timeoutSeconds": None, "failureThreshold": None}),
        f"{name}.readinessProbe": probe(
            "readinessProbe", {"timeoutSeconds": None, "httpGet.path": "/healthz"}
        ),
        f"{name}.startupProbe": probe("startupProbe", {"timeoutSeconds": None, "failureThreshold": None}),
        f"{name}.volumes": change(
            [{"name": "more", "emptyDir": {"medium": "Memory"}}],
            {
                f"{pod}.volumes.{volumes}.name": "more",
                f"{pod}.volumes.{volumes}.emptyDir.medium": "Memory",
            },
        ),
        f"{name}.volumeMounts": change(
            [{"name": "tmp", "mountPath": "/more"}],
            {
                f"{pod}.containers.0.volumeMounts.{volumes}.name": "tmp",
                f"{pod}.containers.0.volumeMounts.{volumes}.mountPath": "/more",
            },
        ),
    }


CHANGES: Mapping[str, Change] = {
    "image.repository": Change(
        value="example.com/efs",
        gives={
            f"{MANAGER}.{POD}.containers.0.image": "example.com/efs:t",
            f"{TUNNEL}.{POD}.containers.0.image": "example.com/efs:t",
            WORKER_IMAGE: "example.com/efs:t",
        },
        base={"image": {"tag": "t"}},
    ),
    "image.tag": Change(
        value="edge",
        gives={
            f"{MANAGER}.{POD}.containers.0.image": "efs:edge",
            f"{TUNNEL}.{POD}.containers.0.image": "efs:edge",
            WORKER_IMAGE: "efs:edge",
        },
        base={"image": {"repository": "efs"}},
    ),
    "image.digest": Change(
        value=DIGEST,
        gives={
            f"{MANAGER}.{POD}.containers.0.image": f"efs@{DIGEST}",
            f"{TUNNEL}.{POD}.containers.0.image": f"efs@{DIGEST}",
            WORKER_IMAGE: f"efs@{DIGEST}",
        },
        base={"image": {"repository": "efs"}},
    ),
    "image.pullPolicy": Change(
        value="Always",
        gives={
            f"{MANAGER}.{POD}.containers.0.imagePullPolicy": "Always",
            f"{TUNNEL}.{POD}.containers.0.imagePullPolicy": "Always",
            f"{TUNNEL}.{POD}.initContainers.0.imagePullPolicy": "Always",
            f"{NODE}.{POD}.containers.0.imagePullPolicy": "Always",
        },
        base=CSI,
    ),
    "image.pullSecrets": Change(
        value=[{"name": "registry"}],
        gives={f"ServiceAccount/{name}.imagePullSecrets.0.name": "registry" for name in ACCOUNTS},
        base=CSI,
    ),
    "region": Change(
        value="eu-west-1",
        gives={
            f"{MANAGER}.{POD}.containers.0.env.6.name": "AWS_REGION",
            f"{MANAGER}.{POD}.containers.0.env.6.value": "eu-west-1",
            f"{TUNNEL}.{POD}.containers.0.env.5.name": "AWS_REGION",
            f"{TUNNEL}.{POD}.containers.0.env.5.value": "eu-west-1",
        },
    ),
    "storageClass.name": Change(
        whole=True,
        value="fast",
        gives={
            f"{CLASS}.metadata.name": None,
            "StorageClass/fast.metadata.name": "fast",
        },
    ),
    "storageClass.create": Change(value=False, gives={f"{CLASS}.metadata.name": None}, whole=True),
    "storageClass.provisioner": Change(
        value="example.com/efs",
        gives={
            f"{CLASS}.provisioner": "example.com/efs",
            f"{MANAGER}.{POD}.containers.0.env.4.value": "example.com/efs",
        },
    ),
    "storageClass.parameters": Change(
        value={"default_file_system_id": "fs-1"},
        gives={f"{CLASS}.parameters.default_file_system_id": "fs-1"},
    ),
    "storageClass.reclaimPolicy": Change(value="Retain", gives={f"{CLASS}.reclaimPolicy": "Retain"}),
    "storageClass.annotations": Change(
        value={"storageclass.kubernetes.io/is-default-class": "true"},
        gives={f"{CLASS}.metadata.annotations.storageclass.kubernetes.io/is-default-class": "true"},
    ),
    "controller.replicas": Change(value=1, gives={f"{MANAGER}.spec.replicas": 1}),
    "tunnel.updateStrategy": Change(
        value={"type": "OnDelete", "rollingUpdate": None},
        gives={
            f"{TUNNEL}.spec.updateStrategy.type": "OnDelete",
            f"{TUNNEL}.spec.updateStrategy.rollingUpdate.maxUnavailable": None,
        },
    ),
    "tunnel.volumes": Change(
        value=[{"name": "authorities", "configMap": {"name": "authorities"}}],
        gives={
            f"{TUNNEL}.{POD}.volumes.3.name": "authorities",
            f"{TUNNEL}.{POD}.volumes.3.configMap.name": "authorities",
        },
        base=CSI,
    ),
    "tunnel.volumeMounts": Change(
        value=[{"name": "authorities", "mountPath": "/authorities"}],
        gives={
            f"{TUNNEL}.{POD}.containers.0.volumeMounts.1.name": "authorities",
            f"{TUNNEL}.{POD}.containers.0.volumeMounts.1.mountPath": "/authorities",
        },
    ),
    **_of_workload("controller", MANAGER, NAMES.controller_account, {}),
    **_of_workload("tunnel", TUNNEL, NAMES.tunnel_account, {}),
    **_of_workload("node", NODE, NAMES.node_account, CSI),
    **_of_aws_driver_pods("controller", MANAGER, {}),
    **_of_aws_driver_pods("node", NODE, CSI),
    "nameOverride": Change(
        value="aws-efs-csi-driver",
        gives={
            f"{target}.{at}.app.kubernetes.io/name": "aws-efs-csi-driver"
            for target in (MANAGER, NODE)
            for at in ("metadata.labels", "spec.template.metadata.labels")
        },
        base=CSI,
    ),
    "imagePullSecrets": Change(
        value=["registry"],
        gives={f"ServiceAccount/{name}.imagePullSecrets.0.name": "registry" for name in ACCOUNTS},
        base=CSI,
    ),
    "useFIPS": Change(
        value=True,
        gives={
            **variable(MANAGER, "AWS_USE_FIPS_ENDPOINT", "true", VARIABLES),
            **variable(TUNNEL, "AWS_USE_FIPS_ENDPOINT", "true", VARIABLES),
        },
    ),
    "debugLogs": Change(
        value=True,
        gives={
            **variable(MANAGER, "LOGGING_LEVEL", "DEBUG", VARIABLES_WITH_CSI),
            **variable(TUNNEL, "LOGGING_LEVEL", "DEBUG", VARIABLES_WITH_CSI),
            **variable(NODE, "LOGGING_LEVEL", "DEBUG", VARIABLES_WITH_CSI),
        },
        base=CSI,
    ),
    "portRangeUpperBound": Change(
        value="25049", gives=variable(TUNNEL, "KUBE_EFS_TUNNEL_PORTS", "22049-25049", VARIABLES)
    ),
    "storageClasses": Change(
        value=[
            {
                "name": "efs-sc",
                "annotations": {"team": "a"},
                "mountOptions": ["tls"],
                "parameters": {"provisioningMode": "efs-ap", "ensureUniqueDirectory": True},
                "reclaimPolicy": "Retain",
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        ],
        gives={
            "StorageClass/efs-sc.apiVersion": "storage.k8s.io/v1",
            "StorageClass/efs-sc.kind": "StorageClass",
            "StorageClass/efs-sc.metadata.name": "efs-sc",
            "StorageClass/efs-sc.metadata.annotations.team": "a",
            "StorageClass/efs-sc.provisioner": "efs.csi.aws.com",
            "StorageClass/efs-sc.parameters.provisioningMode": "efs-ap",
            "StorageClass/efs-sc.parameters.ensureUniqueDirectory": "true",
            "StorageClass/efs-sc.mountOptions.0": "tls",
            "StorageClass/efs-sc.reclaimPolicy": "Retain",
            "StorageClass/efs-sc.volumeBindingMode": "WaitForFirstConsumer",
        },
        base=CSI,
    ),
    "csi.podTokens": Change(
        value=False,
        gives={
            f"{DRIVER}.spec.tokenRequests.0.audience": None,
            f"{DRIVER}.spec.tokenRequests.1.audience": None,
            f"{DRIVER}.spec.requiresRepublish": False,
        },
        base=CSI,
    ),
    "useHelmHooksForCSIDriver": Change(
        value=True,
        gives={
            f"{DRIVER}.metadata.annotations.helm.sh/hook": "pre-install,pre-upgrade",
            f"{DRIVER}.metadata.annotations.helm.sh/hook-delete-policy": "before-hook-creation",
            f"{DRIVER}.metadata.annotations.helm.sh/resource-policy": "keep",
        },
        base=CSI,
    ),
    "controller.create": Change(value=False, gives={f"{MANAGER}.metadata.name": None}, whole=True),
    "controller.replicaCount": Change(value=0, gives={f"{MANAGER}.spec.replicas": 0}),
    "controller.enableMetrics": Change(
        value=True,
        gives={
            **variable(MANAGER, "KUBE_EFS_AWS_DRIVER_METRICS", "true", VARIABLES),
            f"{MANAGER}.spec.template.metadata.annotations.prometheus.io/scrape": "true",
            f"{MANAGER}.spec.template.metadata.annotations.prometheus.io/port": "9810",
            f"{SERVICE}.apiVersion": "v1",
            f"{SERVICE}.kind": "Service",
            f"{SERVICE}.metadata.name": "efs-csi-controller",
            f"{SERVICE}.metadata.namespace": NAMES.namespace,
            f"{SERVICE}.metadata.labels.app": "efs-csi-controller",
            f"{SERVICE}.metadata.labels.app.kubernetes.io/part-of": "kube-efs",
            f"{SERVICE}.spec.selector.component": NAMES.controller,
            f"{SERVICE}.spec.ports.0.name": "metrics",
            f"{SERVICE}.spec.ports.0.port": 3301,
            f"{SERVICE}.spec.ports.0.targetPort": "health",
            f"{SERVICE}.spec.ports.0.protocol": "TCP",
        },
    ),
    "controller.enablePrometheusAnnotations": Change(
        value=False,
        gives={
            f"{MANAGER}.spec.template.metadata.annotations.prometheus.io/scrape": None,
            f"{MANAGER}.spec.template.metadata.annotations.prometheus.io/port": None,
        },
        base={"controller": {"enableMetrics": True}},
    ),
    "controller.serviceMonitor.enabled": Change(
        value=True,
        gives={"ServiceMonitor/efs-csi-controller.metadata.name": "efs-csi-controller"},
        base={"controller": {"enableMetrics": True}},
        whole=True,
    ),
    "controller.logLevel": Change(value=5, gives=variable(MANAGER, "LOGGING_LEVEL", "DEBUG", VARIABLES)),
    "controller.tags": Change(
        value={"team": "a", "cost": "7"},
        gives=variable(MANAGER, "KUBE_EFS_ACCESS_POINT_TAGS", "cost:7 team:a", VARIABLES),
    ),
    "controller.deleteAccessPointRootDir": Change(
        value=True, gives=variable(MANAGER, "KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR", "true", VARIABLES)
    ),
    "controller.regionalStsEndpoints": Change(
        value=True, gives=variable(MANAGER, "AWS_STS_REGIONAL_ENDPOINTS", "regional", VARIABLES)
    ),
    "controller.leaderElectionLeaseDuration": Change(
        value="2m", gives=variable(MANAGER, "KUBE_EFS_LEASE_DURATION_SECONDS", "120", VARIABLES)
    ),
    "controller.leaderElectionRenewDeadline": Change(
        value="12s", gives=variable(MANAGER, "KUBE_EFS_LEASE_RENEW_SECONDS", "12", VARIABLES)
    ),
    "controller.hostNetwork": Change(value=True, gives={f"{MANAGER}.{POD}.hostNetwork": True}),
    "controller.rollingUpdate": Change(
        value={"maxSurge": 2},
        gives={
            f"{MANAGER}.spec.strategy.type": "RollingUpdate",
            f"{MANAGER}.spec.strategy.rollingUpdate.maxSurge": 2,
        },
    ),
    "controller.topologySpreadConstraints": Change(
        value=[{"maxSkew": 3, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}],
        gives={
            f"{MANAGER}.{POD}.topologySpreadConstraints.0.maxSkew": 3,
            f"{MANAGER}.{POD}.topologySpreadConstraints.0.whenUnsatisfiable": "DoNotSchedule",
        },
    ),
    "controller.affinity": Change(
        value={"nodeAffinity": {"x": 1}}, gives={f"{MANAGER}.{POD}.affinity.nodeAffinity.x": 1}
    ),
    "controller.securityContext": Change(
        value={"runAsNonRoot": True, "runAsUser": 7, "seccompProfile": {"type": "RuntimeDefault"}},
        gives={
            f"{MANAGER}.{POD}.securityContext.runAsUser": 7,
            f"{MANAGER}.{POD}.securityContext.runAsGroup": None,
        },
    ),
    "controller.containerSecurityContext": Change(
        value={"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        gives={f"{MANAGER}.{POD}.containers.0.securityContext.readOnlyRootFilesystem": None},
    ),
    "controller.podDisruptionBudget.enabled": Change(
        value=True,
        gives={
            f"{BUDGET}.apiVersion": "policy/v1",
            f"{BUDGET}.kind": "PodDisruptionBudget",
            f"{BUDGET}.metadata.name": NAMES.controller,
            f"{BUDGET}.metadata.namespace": NAMES.namespace,
            f"{BUDGET}.metadata.labels.component": NAMES.controller,
            f"{BUDGET}.metadata.labels.app.kubernetes.io/part-of": "kube-efs",
            f"{BUDGET}.spec.selector.matchLabels.component": NAMES.controller,
            f"{BUDGET}.spec.minAvailable": 1,
            f"{BUDGET}.spec.unhealthyPodEvictionPolicy": "IfHealthyBudget",
        },
    ),
    "controller.podDisruptionBudget.minAvailable": Change(
        value="50%", gives={f"{BUDGET}.spec.minAvailable": "50%"}, base=WITH_BUDGET
    ),
    "controller.podDisruptionBudget.maxUnavailable": Change(
        value=0,
        gives={f"{BUDGET}.spec.maxUnavailable": 0, f"{BUDGET}.spec.minAvailable": None},
        base=WITH_BUDGET,
    ),
    "controller.podDisruptionBudget.unhealthyPodEvictionPolicy": Change(
        value="AlwaysAllow",
        gives={f"{BUDGET}.spec.unhealthyPodEvictionPolicy": "AlwaysAllow"},
        base=WITH_BUDGET,
    ),
    "controller.serviceAccount.create": Change(
        value=False, gives={f"{CONTROLLER_ACCOUNT}.metadata.name": None}, whole=True
    ),
    "controller.serviceAccount.annotations": Change(
        value={ROLE: "arn:aws:iam::1:role/efs"},
        gives={f"{CONTROLLER_ACCOUNT}.metadata.annotations.{ROLE}": "arn:aws:iam::1:role/efs"},
    ),
    "node.serviceAccount.create": Change(
        value=False,
        gives={f"{TUNNEL_ACCOUNT}.metadata.name": None},
        base=CSI,
        whole=True,
    ),
    "node.serviceAccount.annotations": Change(
        value={ROLE: "arn:aws:iam::1:role/efs"},
        gives={f"{TUNNEL_ACCOUNT}.metadata.annotations.{ROLE}": "arn:aws:iam::1:role/efs"},
        base=CSI,
    ),
    "node.serviceAccount.disableMutation": Change(
        value=True,
        gives={
            "ClusterRole/kube-efs-node.rules.0.verbs.1": None,
            **variable(NODE, "KUBE_EFS_REMOVE_STARTUP_TAINT", "false", VARIABLES_WITH_CSI),
        },
        base=CSI,
    ),
    "node.kubeletPath": Change(
        value="/data/kubelet/",
        gives={
            f"{NODE}.{POD}.containers.0.env.3.value": "/data/kubelet/plugins/efs.csi.aws.com/csi.sock",
            f"{NODE}.{POD}.containers.0.volumeMounts.1.mountPath": "/data/kubelet/pods",
            f"{NODE}.{POD}.volumes.1.hostPath.path": "/data/kubelet/pods",
            f"{NODE}.{POD}.volumes.2.hostPath.path": "/data/kubelet/plugins/efs.csi.aws.com",
            f"{NODE}.{POD}.volumes.3.hostPath.path": "/data/kubelet/plugins_registry",
        },
        base=CSI,
    ),
    "node.logLevel": Change(
        value=6,
        gives={
            **variable(TUNNEL, "LOGGING_LEVEL", "DEBUG", VARIABLES_WITH_CSI),
            **variable(NODE, "LOGGING_LEVEL", "DEBUG", VARIABLES_WITH_CSI),
        },
        base=CSI,
    ),
    "node.volMetricsOptIn": Change(
        value=True,
        gives={
            **variable(NODE, "KUBE_EFS_VOLUME_METRICS", "true", VARIABLES_WITH_CSI),
            **variable(
                NODE, "KUBE_EFS_VOLUME_METRICS_COUNT_FILES", "true", {NODE: VARIABLES_WITH_CSI[NODE] + 1}
            ),
        },
        base=CSI,
    ),
    "node.volMetricsRefreshPeriod": Change(
        value=0.5,
        gives=variable(NODE, "KUBE_EFS_VOLUME_METRICS_COUNT_REFRESH_SECONDS", "30", VARIABLES_WITH_CSI),
        base=CSI,
    ),
    "node.volMetricsFsRateLimit": Change(
        value=3,
        gives=variable(NODE, "KUBE_EFS_VOLUME_METRICS_COUNT_RATE_LIMIT", "3", VARIABLES_WITH_CSI),
        base=CSI,
    ),
    "node.maxInflightMountCallsOptIn": Change(
        value=True, gives=variable(NODE, "KUBE_EFS_MAX_INFLIGHT_MOUNTS", "10", VARIABLES_WITH_CSI), base=CSI
    ),
    "node.maxInflightMountCalls": Change(
        value=3,
        gives={f"{NODE}.{POD}.containers.0.env.7.value": "3"},
        base={**CSI, "node": {"maxInflightMountCallsOptIn": True}},
    ),
    "node.volumeAttachLimitOptIn": Change(
        value=True, gives=variable(NODE, "KUBE_EFS_VOLUME_ATTACH_LIMIT", "20", VARIABLES_WITH_CSI), base=CSI
    ),
    "node.volumeAttachLimit": Change(
        value=7,
        gives={f"{NODE}.{POD}.containers.0.env.7.value": "7"},
        base={**CSI, "node": {"volumeAttachLimitOptIn": True}},
    ),
    "node.forceUnmountAfterTimeout": Change(
        value=True,
        gives=variable(NODE, "KUBE_EFS_FORCE_UNMOUNT_AFTER_TIMEOUT", "true", VARIABLES_WITH_CSI),
        base=CSI,
    ),
    "node.unmountTimeout": Change(
        value="45s",
        gives=variable(NODE, "KUBE_EFS_UNMOUNT_TIMEOUT_SECONDS", "45", VARIABLES_WITH_CSI),
        base=CSI,
    ),
    "node.hostAliases": Change(
        value={"fs-1": {"ip": "10.10.2.2", "region": "us-east-2"}},
        gives={
            key: value
            for target in (NODE, TUNNEL)
            for key, value in {
                f"{target}.{POD}.hostAliases.0.ip": "10.10.2.2",
                f"{target}.{POD}.hostAliases.0.hostnames.0": "fs-1.efs.us-east-2.amazonaws.com",
            }.items()
        },
        base=CSI,
    ),
    "node.rollingUpdate": Change(
        value={"maxUnavailable": "20%"},
        gives={f"{NODE}.spec.updateStrategy.rollingUpdate.maxUnavailable": "20%"},
        base=CSI,
    ),
    "node.securityContext": Change(
        value={"supplementalGroups": [7]},
        gives={f"{NODE}.{POD}.securityContext.supplementalGroups.0": 7},
        base=CSI,
    ),
    "node.affinity": Change(
        value={"nodeAffinity": {PREFERRED: [{"weight": 7}]}},
        gives={f"{target}.{POD}.affinity.nodeAffinity.{PREFERRED}.0.weight": 7 for target in (NODE, TUNNEL)},
        base=CSI,
    ),
}
# Whole objects, and the whole installation; the tests above and below are about them.
ELSEWHERE = {
    "platform",
    "names",
    "csi.enabled",
    "csi.only",
    "csi.kubeletDirectory",
    "csi.classReferences",
    "controller.observing",
    "controller.serviceAccount.name",
    "node.serviceAccount.name",
    "monitoring.enabled",
}
