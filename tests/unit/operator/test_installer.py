"""Which objects are applied again, replaced or recreated."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.types import PatchType

from kube_efs.model.errors import KubeConflict, KubeInvalid
from kube_efs.operator.cluster_facts import InstallationFacts
from kube_efs.operator.desired_objects import Component, ProcessSettings, component_of, desired_objects
from kube_efs.operator.installer import (
    RESTARTED,
    Installer,
    describe_changes,
    digest_of_live,
    foreign_fields,
    must_recreate,
    replacement,
)
from kube_efs.operator.kinds import WORKLOADS, reference_of
from kube_efs.operator.manifests import Manifest, RenderOptions
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import FIELD_MANAGER, ObjectClient, manifest_of
from kube_efs.operator.platforms import Platform


def deployment(manager: str = FIELD_MANAGER, fields: str = "f:spec", **spec: Any) -> Manifest:
    entry = {"manager": manager, "fieldsV1": {fields: {}}}
    return {
        "kind": "Deployment",
        "metadata": {"name": "efs-manager", "managedFields": [entry], "resourceVersion": "7"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {}}, **spec},
    }


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        pytest.param({"status": {"replicas": 2}}, False, id="status"),
        pytest.param({"metadata": {"name": "x", "resourceVersion": "8"}}, False, id="version"),
        pytest.param({"metadata": {"name": "x", "labels": {"a": "b"}}}, True, id="label"),
        pytest.param({"spec": {"replicas": 3}}, True, id="specification"),
        pytest.param({"rules": []}, True, id="rules of a role"),
    ],
)
def test_digest_changes_with_all_fields_except_those_of_the_api_server(
    change: dict[str, Any], differs: bool
) -> None:
    before = {"kind": "Deployment", "metadata": {"name": "x", "resourceVersion": "7"}, "spec": {}}
    assert (digest_of_live(before) != digest_of_live({**before, **change})) is differs


@pytest.mark.parametrize(
    ("live", "wanted", "expected"),
    [
        pytest.param({"attachRequired": True}, {"attachRequired": False}, True, id="immutable field"),
        pytest.param({"attachRequired": False}, {"attachRequired": False}, False, id="same"),
        pytest.param({"podInfoOnMount": True}, {"podInfoOnMount": False}, False, id="mutable field"),
        pytest.param({"attachRequired": True}, {}, False, id="field that is not desired"),
    ],
)
def test_csidriver_is_recreated_only_if_an_immutable_field_differs(
    live: dict[str, bool], wanted: dict[str, bool], expected: bool
) -> None:
    before, after = [
        {"kind": "CSIDriver", "metadata": {"name": "d"}, "spec": spec} for spec in (live, wanted)
    ]
    assert must_recreate(before, after) is expected


def test_workload_with_another_selector_is_recreated() -> None:
    other = deployment(selector={"matchLabels": {"app": "other"}})
    assert must_recreate(other, deployment())
    assert not must_recreate(
        deployment(selector={"matchLabels": {"a": "b"}, "matchExpressions": None}), deployment()
    )


@pytest.mark.parametrize(
    ("manager", "fields", "expected"),
    [
        pytest.param(FIELD_MANAGER, "f:spec", False, id="operator"),
        pytest.param("kubectl-edit", "f:spec", True, id="user"),
        pytest.param("kubectl-rollout", "f:spec", False, id="restart"),
        pytest.param("kubectl-edit", "f:metadata", False, id="label of a user"),
    ],
)
def test_fields_of_others_are_found_by_their_manager(manager: str, fields: str, expected: bool) -> None:
    assert bool(foreign_fields(deployment(manager, fields))) is expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"env": [{"name": "NO_PROXY", "value": "b"}]}, "the proxy changed", id="proxy"),
        pytest.param({"image": "two"}, "the image changed", id="image"),
        pytest.param(
            {"image": "two", "env": [{"name": "NO_PROXY", "value": "a"}, {"name": "X", "value": "y"}]},
            "the image and settings changed",
            id="image and setting",
        ),
        pytest.param({"args": ["more"]}, "the manifests changed", id="something else"),
    ],
)
def test_changes_of_pods_are_named(change: dict[str, Any], expected: str) -> None:
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    defaulted = {**node, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}
    proxy = {"name": "NO_PROXY", "value": "a"}

    def workload(*variables: dict[str, Any], **fields: Any) -> Manifest:
        container = {"image": "one", **fields, "env": [*variables, *fields.get("env", [proxy])]}
        return {"spec": {"template": {"metadata": {}, "spec": {"containers": [container]}}}}

    assert describe_changes(workload(defaulted), workload(node, **change)) == expected


def test_replacement_has_the_desired_specification_and_keeps_the_restart() -> None:
    live = deployment(
        "kubectl-edit", template={"metadata": {"annotations": {RESTARTED: "now"}}, "spec": {"x": 1}}
    )
    found = replacement(live, deployment())
    assert found["metadata"] == {"name": "efs-manager", "resourceVersion": "7"}
    assert found["spec"]["template"] == {"metadata": {"annotations": {RESTARTED: "now"}}}


class InterruptedClient(ObjectClient):
    """Refuses to apply some objects, as an admission webhook does, or acts just before a write."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client)
        self.refused: set[str] = set()
        self.before_write: Callable[[], Awaitable[object]] | None = None

    async def apply(self, manifest: Manifest) -> Manifest:
        if manifest["metadata"]["name"] in self.refused:
            raise KubeInvalid("answered 422", field=str(reference_of(manifest)))
        await self._interrupt()
        return await super().apply(manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        await self._interrupt()
        return await super().replace(manifest)

    async def _interrupt(self) -> None:
        interrupt, self.before_write = self.before_write, None
        if interrupt:
            await interrupt()


def workloads(image: str, **facts: Any) -> list[Manifest]:
    """Those of the tunnels, of the driver of the nodes, and of the controller."""
    options = RenderOptions(platform=Platform.KUBERNETES, namespace="default", image=image, csi=True)
    found = desired_objects(options, InstallationFacts(**facts), ProcessSettings())
    return [one for one in found if one["kind"] in WORKLOADS]


def daemon_sets(image: str) -> tuple[Manifest, Manifest]:
    """Those of the tunnels and of the driver of the nodes."""
    tunnel, node, _ = workloads(image)
    return tunnel, node


async def test_driver_of_the_nodes_waits_for_tunnels_whose_update_failed(kube: AsyncClient) -> None:
    """The tunnels are all ready, but with the earlier specification."""
    objects, cache, installer = _installer(kube)
    tunnel, node = daemon_sets("example.com/kube-efs:1")
    first = await installer.install((tunnel, node))
    cache.add(await _set_rollout(kube, first.workloads[Component.TUNNEL], updated=1))

    objects.refused = {tunnel["metadata"]["name"]}
    update = daemon_sets("example.com/kube-efs:2")
    result = await installer.install(update)
    assert len(result.errors[Component.TUNNEL]) == 1
    reference = reference_of(node)
    (waiting,) = result.waiting[Component.NODE]
    assert waiting == f"{reference} is updated when all tunnels are updated and ready"
    live = await objects.get(reference)
    assert live
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/kube-efs:1"

    objects.refused = set()
    assert not (await installer.install(update)).errors[Component.TUNNEL]


async def test_new_image_reaches_the_controller_after_tunnels_and_nodes(kube: AsyncClient) -> None:
    """A faulty version must stop at the first node, while the earlier controller still works."""
    objects, cache, installer = _installer(kube)
    first = await installer.install(workloads("example.com/kube-efs:1"))
    for component in (Component.TUNNEL, Component.NODE):
        cache.add(await _set_rollout(kube, first.workloads[component], updated=2))

    update = workloads("example.com/kube-efs:2")
    (controller,) = [one for one in update if component_of(one) is Component.CONTROLLER]
    waits = f"{reference_of(controller)} keeps the image example.com/kube-efs:1 until"
    result = await installer.install(update)
    assert await _images(objects, update) == {
        Component.TUNNEL: "2",
        Component.NODE: "1",
        Component.CONTROLLER: "1",
    }
    (waiting,) = result.waiting[Component.CONTROLLER]
    assert waiting == f"{waits} all tunnels and the drivers of all nodes are updated and ready"

    cache.add(await _set_rollout(kube, result.workloads[Component.TUNNEL], updated=2))
    result = await installer.install(update)
    assert await _images(objects, update) == {
        Component.TUNNEL: "2",
        Component.NODE: "2",
        Component.CONTROLLER: "1",
    }
    (waiting,) = result.waiting[Component.CONTROLLER]
    assert waiting == f"{waits} the drivers of all nodes are updated and ready"

    # A tunnel that breaks after the complete rollout is that of a node, and stops nothing.
    cache.add(await _set_rollout(kube, result.workloads[Component.TUNNEL], updated=2, unavailable=1))
    cache.add(await _set_rollout(kube, result.workloads[Component.NODE], updated=2))
    result = await installer.install(update)
    assert set((await _images(objects, update)).values()) == {"2"}
    assert not any(result.waiting.values())


async def test_new_image_reaches_the_controller_of_a_cluster_without_matching_nodes(
    kube: AsyncClient,
) -> None:
    objects, cache, installer = _installer(kube)
    await installer.install(workloads("example.com/kube-efs:1"))
    update = workloads("example.com/kube-efs:2")
    result = await installer.install(update)
    for component in (Component.TUNNEL, Component.NODE):
        cache.add(await _set_rollout(kube, result.workloads[component], updated=0))
        result = await installer.install(update)
    assert set((await _images(objects, update)).values()) == {"2"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"image": "example.com/kube-efs:1", "proxy": {"NO_PROXY": "a"}}, id="settings"),
        pytest.param({"image": "example.com/kube-efs:2", "credentials_version": "2"}, id="credentials"),
    ],
)
async def test_controller_waits_for_no_rollout_with_new_settings_or_credentials(
    kube: AsyncClient, change: dict[str, Any]
) -> None:
    """Without them it may not reach AWS. The rollout of the nodes may take hours, or stop at a broken one."""
    objects, _, installer = _installer(kube)
    await installer.install(workloads("example.com/kube-efs:1", credentials_version="1"))
    update = workloads(**{"credentials_version": "1", **change})
    result = await installer.install(update)
    assert not result.waiting[Component.CONTROLLER]
    assert (await _images(objects, update))[Component.CONTROLLER] == change["image"][-1]
    assert result.waiting[Component.NODE]


async def test_controller_of_another_installation_is_updated_at_once(kube: AsyncClient) -> None:
    """As that of ``kube-efs render``: it has the name of ours, but not the annotation."""
    objects, _, installer = _installer(kube)
    update = workloads("example.com/kube-efs:2")
    (before,) = [
        one for one in workloads("example.com/kube-efs:1") if component_of(one) is Component.CONTROLLER
    ]
    await objects.apply({**before, "metadata": {**before["metadata"], "annotations": {}}})
    assert not (await installer.install(update)).waiting[Component.CONTROLLER]
    assert (await _images(objects, update))[Component.CONTROLLER] == "2"


async def test_daemon_set_that_is_made_again_does_not_count_pods_of_the_deleted_one_as_updated(
    kube: AsyncClient,
) -> None:
    """They do if they have the number of its template, and Kubernetes would begin again at 1."""
    objects = ObjectClient(kube)
    cache = ObjectCache(kube, "default", asyncio.TaskGroup(), lambda: None)
    cache._kinds.add("DaemonSet")  # no watch
    times = iter((1000.0, 2000.0))
    installer = Installer(objects, cache, lambda _reference, _change: None, lambda: next(times))
    (tunnel, _) = daemon_sets("example.com/kube-efs:1")
    numbers = []
    for _ in range(2):
        await installer.install([tunnel])
        live = await objects.get(reference_of(tunnel))
        assert live
        numbers.append(live["metadata"]["annotations"]["deprecated.daemonset.template.generation"])
        await objects.delete(live)
        installer.forget()
    assert numbers == ["1000", "2000"]


async def test_newer_object_of_the_same_name_is_not_deleted(kube: AsyncClient) -> None:
    """As by a request that an API server in trouble carries out late."""
    objects = ObjectClient(kube)
    (tunnel, _) = daemon_sets("example.com/kube-efs:1")
    earlier = await objects.apply(tunnel)
    assert await objects.delete(earlier)
    newer = await objects.apply(tunnel)
    with pytest.raises(KubeConflict):
        await objects.delete(earlier)
    assert await objects.delete(newer)
    assert not await objects.delete(newer)


async def test_edited_daemon_set_whose_pods_are_gone_is_restored_after_a_conflict(kube: AsyncClient) -> None:
    """Without pods its rollout is complete. The record of that must not make the edit the desired state."""
    objects, cache, installer = _installer(kube)
    (tunnel, _) = daemon_sets("example.com/kube-efs:1")
    name = tunnel["metadata"]["name"]
    await installer.install([tunnel])
    cache.add(await _edit(kube, name, {"nodeSelector": {"disk": "fast"}}))

    async def update_status() -> None:
        live = await objects.get(reference_of(tunnel))
        assert live
        status = {"observedGeneration": live["metadata"]["generation"], "desiredNumberScheduled": 0}
        status |= {"currentNumberScheduled": 0, "numberReady": 0, "numberMisscheduled": 0}
        patched = await kube.patch(
            DaemonSet.Status, name, {"status": status}, namespace="default", patch_type=PatchType.MERGE
        )
        cache.add(manifest_of(patched, "DaemonSet"))

    objects.before_write = update_status
    (error,) = (await installer.install([tunnel])).errors[Component.TUNNEL]
    assert "409" in error
    assert not (await installer.install([tunnel])).errors[Component.TUNNEL]
    assert "disk" not in (await _pod_spec(objects, tunnel))["nodeSelector"]


async def test_daemon_set_that_is_edited_while_it_is_applied_is_restored_by_the_next_pass(
    kube: AsyncClient,
) -> None:
    objects, _, installer = _installer(kube)
    (tunnel, _) = daemon_sets("example.com/kube-efs:1")
    name = tunnel["metadata"]["name"]
    await installer.install([tunnel])
    installer.forget()
    objects.before_write = lambda: _edit(kube, name, {"hostAliases": [{"ip": "192.0.2.1"}]})
    await installer.install([tunnel])
    await installer.install([tunnel])
    assert "hostAliases" not in await _pod_spec(objects, tunnel)


async def test_daemon_set_that_a_user_applied_with_the_same_values_is_not_written_again(
    kube: AsyncClient,
) -> None:
    """The user stays an owner of the fields, also after the operator has replaced the specification."""
    objects, cache, installer = _installer(kube)
    (tunnel, _) = daemon_sets("example.com/kube-efs:1")
    await installer.install([tunnel])
    await kube.patch(
        DaemonSet,
        tunnel["metadata"]["name"],
        dict(tunnel),
        namespace="default",
        patch_type=PatchType.APPLY,
        field_manager="user",
        force=True,
    )
    installer.forget()
    await installer.install([tunnel])

    async def fail() -> None:
        raise AssertionError("the DaemonSet is written again")

    objects.before_write = fail
    await installer.install([tunnel])
    assert foreign_fields(cache.get(reference_of(tunnel)) or {})


def _installer(kube: AsyncClient) -> tuple[InterruptedClient, ObjectCache, Installer]:
    objects = InterruptedClient(kube)
    cache = ObjectCache(kube, "default", asyncio.TaskGroup(), lambda: None)
    cache._kinds |= {"DaemonSet", "Deployment"}  # no watches
    return objects, cache, Installer(objects, cache, lambda _reference, _change: None)


async def _set_rollout(
    kube: AsyncClient, daemon_set: Manifest, *, updated: int, unavailable: int = 0
) -> Manifest:
    """Report how far the current specification is rolled out, as kube-controller-manager does."""
    ready = updated - unavailable
    status = {"observedGeneration": daemon_set["metadata"]["generation"], "numberMisscheduled": 0}
    status |= {"desiredNumberScheduled": updated, "currentNumberScheduled": updated}
    status |= {"updatedNumberScheduled": updated, "numberReady": ready, "numberAvailable": ready}
    status |= {"numberUnavailable": unavailable}
    name = daemon_set["metadata"]["name"]
    patched = await kube.patch(
        DaemonSet.Status, name, {"status": status}, namespace="default", patch_type=PatchType.MERGE
    )
    return manifest_of(patched, "DaemonSet")


async def _images(objects: ObjectClient, desired: Iterable[Manifest]) -> dict[Component, str]:
    """The tag of the image that each workload has in the cluster."""
    found = {}
    for one in desired:
        live = await objects.get(reference_of(one))
        assert live
        image = live["spec"]["template"]["spec"]["containers"][0]["image"]
        found[component_of(one)] = image.rpartition(":")[2]
    return found


async def _edit(kube: AsyncClient, name: str, pod_spec: dict[str, Any]) -> Manifest:
    """Change the pods of the DaemonSet as a user does; returns the DaemonSet after that."""
    patch = {"spec": {"template": {"spec": pod_spec}}}
    edited = await kube.patch(
        DaemonSet, name, patch, namespace="default", patch_type=PatchType.MERGE, field_manager="user"
    )
    return manifest_of(edited, "DaemonSet")


async def _pod_spec(objects: ObjectClient, daemon_set: Manifest) -> dict[str, Any]:
    live = await objects.get(reference_of(daemon_set))
    assert live
    spec: dict[str, Any] = live["spec"]["template"]["spec"]
    return spec
