"""The ways to install and upgrade kube-efs: manifests with kubectl, the chart with Helm, and the operator.

Each does what its page says. The commands are those of an administrator with one node.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from tests.conformance.helm import CHART, helm
from tests.conformance.installing import render
from tests.kubelet import installing
from tests.kubelet.cluster import NAMES, NODE, PATIENCE, Cluster
from tests.kubelet.installing import DRIVER
from tests.scenarios.steps import eventually

OPERATOR = "deployment/kube-efs-operator"
DAEMON_SETS = {"tunnel": NAMES.tunnel, "node": NAMES.node}
_IN_NAMESPACE = ("-n", NAMES.namespace)
_REGION = "us-east-1"
# Of a rollout of all processes, one after the other, on a busy machine.
_SECONDS = 600.0
_REQUEST = {
    "apiVersion": "operator.openshift.io/v1",
    "kind": "ClusterCSIDriver",
    "metadata": {"name": DRIVER},
    "spec": {"managementState": "Managed"},
}

Settings = Mapping[str, Mapping[str, str]]
"""Variables of the processes, by ``tunnel`` and ``node``."""


class Way(Protocol):
    """A way to install kube-efs. A method returns when all pods run what it has asked for."""

    async def install(self, cluster: Cluster, image: str) -> None:
        """Install kube-efs with the CSI driver."""

    async def upgrade(self, cluster: Cluster, image: str) -> None:
        """Change the image."""

    async def change_settings(self, cluster: Cluster, settings: Settings) -> None:
        """Set variables of the processes of nodes."""

    async def make_daemon_sets(self, cluster: Cluster) -> None:
        """Make the deleted DaemonSets again."""

    async def roll_back(self, cluster: Cluster, image: str) -> None:
        """Go back to the state after the installation, with this image."""

    async def remove(self, cluster: Cluster) -> None:
        """Remove kube-efs, and what its removal leaves."""


class Manifests:
    """``kube-efs render`` and ``kubectl apply``, as on docs/install.md."""

    async def install(self, cluster: Cluster, image: str) -> None:
        await cluster.kubectl("apply", "-f", "-", stdin=installing.manifests(image))
        await _rolled_out(cluster)

    async def upgrade(self, cluster: Cluster, image: str) -> None:
        manifests = installing.manifests(image)
        await cluster.kubectl("apply", "-f", "-", "-l", f"component!={NAMES.tunnel}", stdin=manifests)
        await _rolled_out(cluster, f"daemonset/{NAMES.node}")
        await cluster.kubectl("apply", "-f", "-", stdin=manifests)
        await _rolled_out(cluster)

    async def change_settings(self, cluster: Cluster, settings: Settings) -> None:
        for process, variables in settings.items():
            given = [f"{name}={value}" for name, value in variables.items()]
            await cluster.kubectl("set", "env", *_IN_NAMESPACE, f"daemonset/{DAEMON_SETS[process]}", *given)
        await _rolled_out(cluster)

    async def make_daemon_sets(self, cluster: Cluster) -> None:
        await _count_no_pod_as_updated(cluster)
        await cluster.kubectl("apply", "-f", "-", stdin=installing.manifests(cluster.newer_image))

    async def roll_back(self, cluster: Cluster, image: str) -> None:
        await self.upgrade(cluster, image)

    async def remove(self, cluster: Cluster) -> None:
        await installing.uninstall(cluster)


class Chart:
    """The chart with Helm, as on docs/helm.md."""

    async def install(self, cluster: Cluster, image: str) -> None:
        repository, _, tag = image.rpartition(":")
        values = {"region": _REGION, "image.repository": repository, "image.tag": tag}
        options = ("--create-namespace", "--set", "csi.enabled=true")
        await self._helm(cluster, "install", str(CHART), *options, values=values)
        await _rolled_out(cluster)

    async def upgrade(self, cluster: Cluster, image: str) -> None:
        await self._upgrade(cluster, {"image.tag": image.rpartition(":")[2]})
        await _rolled_out(cluster)

    async def change_settings(self, cluster: Cluster, settings: Settings) -> None:
        values = {
            f"{process}.env.{name}": value
            for process, variables in settings.items()
            for name, value in variables.items()
        }
        await self._upgrade(cluster, values)
        await _rolled_out(cluster)

    async def make_daemon_sets(self, cluster: Cluster) -> None:
        await _count_no_pod_as_updated(cluster)
        await self._upgrade(cluster, {})

    async def roll_back(self, cluster: Cluster, image: str) -> None:
        await self._helm(cluster, "rollback", "1")
        await _rolled_out(cluster)

    async def remove(self, cluster: Cluster) -> None:
        await installing.end_controller(cluster)
        await self._helm(cluster, "uninstall")
        # What Helm keeps.
        await cluster.kubectl("delete", "crd", "sharedvolumes.aws-efs.managed.openshift.io")
        await cluster.kubectl("delete", "namespace", NAMES.namespace, PATIENCE)
        await _no_driver(cluster)

    async def _upgrade(self, cluster: Cluster, values: Mapping[str, str]) -> None:
        await self._helm(cluster, "upgrade", str(CHART), "--reset-then-reuse-values", values=values)

    async def _helm(
        self, cluster: Cluster, verb: str, *arguments: str, values: Mapping[str, str] | None = None
    ) -> None:
        given = [
            word for name, value in (values or {}).items() for word in ("--set-string", f"{name}={value}")
        ]
        command = (verb, "kube-efs", *arguments, "--namespace", NAMES.namespace, *given)
        answer = await helm(*command, kubeconfig=cluster.kubectl.kubeconfig)
        assert answer.status == 0, answer.errors


class Operator:
    """The operator, as on docs/operator.md."""

    async def install(self, cluster: Cluster, image: str) -> None:
        await self._apply(cluster, image)
        await _rolled_out(cluster, OPERATOR)
        await cluster.apply(_REQUEST)
        await self._has_settled(cluster, image)

    async def upgrade(self, cluster: Cluster, image: str) -> None:
        await self._apply(cluster, image)
        await self._has_settled(cluster, image)

    async def change_settings(self, cluster: Cluster, settings: Settings) -> None:
        given = {
            f"KUBE_EFS_{process.upper()}_SETTINGS={json.dumps(dict(variables))}": process
            for process, variables in settings.items()
        }
        await cluster.kubectl("set", "env", *_IN_NAMESPACE, OPERATOR, *given)

        async def look() -> bool:
            found = [await variables_of(cluster, one) for one in settings]
            wanted = [{**have, **settings[one]} for have, one in zip(found, settings, strict=True)]
            return found == wanted

        await eventually(look, what="the operator sets the variables", seconds=_SECONDS)
        await self._has_settled(cluster, cluster.newer_image)

    async def make_daemon_sets(self, cluster: Cluster) -> None:
        for name in DAEMON_SETS.values():
            where = (f"daemonset/{name}", *_IN_NAMESPACE)
            await cluster.kubectl("wait", *where, "--for=create", PATIENCE)

    async def roll_back(self, cluster: Cluster, image: str) -> None:
        await self.upgrade(cluster, image)

    async def remove(self, cluster: Cluster) -> None:
        await cluster.kubectl("delete", "clustercsidriver", DRIVER, PATIENCE)
        await cluster.kubectl(
            "delete", "--ignore-not-found", PATIENCE, "-f", "-", stdin=self._manifests(cluster.image)
        )
        # What the operator keeps.
        await cluster.kubectl("delete", "storageclass", NAMES.storage_class)
        await cluster.kubectl("delete", "crd", "sharedvolumes.aws-efs.managed.openshift.io")
        await _no_driver(cluster)

    async def _apply(self, cluster: Cluster, image: str) -> None:
        await cluster.kubectl("apply", "-f", "-", stdin=self._manifests(image))

    def _manifests(self, image: str) -> str:
        return render("--for", "kubernetes", "--operator", "--image", image)

    async def _has_settled(self, cluster: Cluster, image: str) -> None:
        async def look() -> bool:
            driver = await cluster.get("clustercsidriver", DRIVER)
            conditions = {
                one["type"]: one["status"] for one in driver.get("status", {}).get("conditions", ())
            }
            has_settled = (conditions.get("Available"), conditions.get("Progressing")) == ("True", "False")
            controller = await cluster.kubectl(
                *("get", f"deployment/{NAMES.controller}", *_IN_NAMESPACE, "--ignore-not-found", "-o"),
                "jsonpath={.spec.template.spec.containers[0].image}",
            )
            return has_settled and controller == image

        await eventually(look, what=f"the operator has installed {image}", seconds=_SECONDS)
        await _rolled_out(cluster)


WAYS: Mapping[str, Way] = {"manifests": Manifests(), "chart": Chart(), "operator": Operator()}


async def pods_of(cluster: Cluster, process: str) -> list[Any]:
    """The pods of ``tunnel`` or ``node``."""
    found = await cluster.get("pods", *_IN_NAMESPACE, "-l", f"component={DAEMON_SETS[process]}")
    return list(found["items"])


async def variables_of(cluster: Cluster, process: str) -> dict[str, str]:
    """The variables that the DaemonSet of ``tunnel`` or ``node`` gives its pods."""
    daemon_set = await cluster.get("daemonset", DAEMON_SETS[process], *_IN_NAMESPACE)
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


async def _count_no_pod_as_updated(cluster: Cluster) -> None:
    """As docs/install.md says: the pods have a number that the next template of a new DaemonSet may get."""
    for name in DAEMON_SETS.values():
        pods = ("pods", *_IN_NAMESPACE, "-l", f"component={name}")
        await cluster.kubectl("label", *pods, "pod-template-generation-")


async def _rolled_out(cluster: Cluster, *workloads: str) -> None:
    """Wait until these workloads, or all of kube-efs, run their newest templates."""
    for workload in workloads or installing.WORKLOADS:

        async def look(workload: str = workload) -> bool:
            command = ("rollout", "status", workload, *_IN_NAMESPACE, PATIENCE)
            return (await cluster.kubectl.run(*command)).status == 0

        await eventually(look, what=f"{workload} is rolled out", seconds=_SECONDS)


async def _no_driver(cluster: Cluster) -> None:
    """Wait until the driver is no longer registered."""

    async def look() -> bool:
        return not (await cluster.get("csinode", NODE))["spec"]["drivers"]

    await eventually(look, what="the node has no driver", seconds=600)
