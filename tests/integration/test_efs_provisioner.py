"""The manifests of efs-provisioner, and the examples of its README on an embedded cluster with kubectl."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.efs_provisioner import (
    DEPLOY,
    Site,
    check_deployment_step_by_step,
    check_nothing_is_left,
    check_older_installation,
    check_quick_start,
    check_removal_of_the_provisioner,
    check_stateful_set,
    deploy_quick_start,
    site_on,
)

from kube_efs.operator.manifests import load_asset
from kube_efs.settings.base import own_image
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.fields import variables
from kube_efs_lab.control_plane import EmbeddedControlPlane

SINGLE = ("configmap", "rbac", "deployment", "class", "claim")

on_a_cluster = pytest.mark.skipif(
    shutil.which("kubectl") is None or os.geteuid() != 0, reason="needs kubectl, and root for a node"
)


def _documents(*names: str) -> list[Any]:
    texts = [(DEPLOY / f"{name}.yaml").read_text() for name in names]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def _deployment(name: str) -> Any:
    [found] = [document for document in _documents(name) if document["kind"] == "Deployment"]
    return found


def _container(name: str) -> Any:
    [found] = _deployment(name)["spec"]["template"]["spec"]["containers"]
    return found


def _values(name: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in _container(name)["env"] if "value" in one}


def test_manifest_combines_the_single_files_with_another_path() -> None:
    text = (DEPLOY / "manifest.yaml").read_text()
    assert text.count("path: /\n") == 1
    assert text.count("value: /\n") == 1
    text = text.replace("path: /\n", "path: /persistentvolumes\n")
    text = text.replace("value: /\n", "value: /persistentvolumes\n")
    assert text == "---\n".join((DEPLOY / f"{name}.yaml").read_text() for name in SINGLE)


@pytest.mark.parametrize("name", ["manifest", "deployment"])
def test_setting_and_volume_have_the_same_directory(name: str) -> None:
    volumes = _deployment(name)["spec"]["template"]["spec"]["volumes"]
    [path] = [volume["nfs"]["path"] for volume in volumes if "nfs" in volume]
    assert _values(name)["KUBE_EFS_DIRECTORY_PATH"] == path
    mounts = {mount["name"]: mount["mountPath"] for mount in _container(name)["volumeMounts"]}
    assert _values(name)["KUBE_EFS_DIRECTORY_MOUNT"] == mounts["pv-volume"] == "/persistentvolumes"


def test_deployment_runs_this_version_with_its_settings() -> None:
    container = _container("deployment")
    assert container["image"] == own_image()
    known = {one.name for one in variables(ControllerSettings).values()}
    given = {one["name"] for one in container["env"]}
    assert given - known == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def test_process_has_as_long_to_start_as_the_controller_of_an_installation() -> None:
    """Otherwise the liveness probe would kill it on a busy node after half a minute, again and again."""
    [controller] = load_asset("controller")
    [usual] = controller["spec"]["template"]["spec"]["containers"]
    assert _container("deployment")["startupProbe"] == usual["startupProbe"]


def test_variables_of_services_are_no_settings() -> None:
    assert _deployment("deployment")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_autoscaler_may_remove_the_node() -> None:
    template = _deployment("deployment")["spec"]["template"]
    local = [one["name"] for one in template["spec"]["volumes"] if "emptyDir" in one]
    annotation = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
    assert template["metadata"]["annotations"][annotation].split(",") == local


def test_config_map_and_secret_have_the_keys_of_efs_provisioner() -> None:
    [config_map] = _documents("configmap")
    references = [one["valueFrom"] for one in _container("deployment")["env"] if "valueFrom" in one]
    keys = [one["configMapKeyRef"] for one in references if "configMapKeyRef" in one]
    assert {key["key"] for key in keys} == config_map["data"].keys()
    assert {key["name"] for key in keys} == {config_map["metadata"]["name"]} == {"efs-provisioner"}
    assert [key["key"] for key in keys if key.get("optional")] == ["dns.name"]
    secrets = [one["secretKeyRef"] for one in references if "secretKeyRef" in one]
    assert [(key["name"], key["key"], key["optional"]) for key in secrets] == [
        ("aws-credentials", "aws-access-key-id", True),
        ("aws-credentials", "aws-secret-access-key", True),
    ]


def test_role_allows_the_configured_lease() -> None:
    [role] = [document for document in _documents("rbac") if document["kind"] == "Role"]
    names = [name for rule in role["rules"] for name in rule.get("resourceNames", [])]
    assert names == [_values("deployment")["KUBE_EFS_LEASE_NAME"]]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_on(EmbeddedControlPlane(tmp_path / "kubeconfig"), tmp_path) as running:
        yield running


@on_a_cluster
async def test_quick_start_and_stateful_set_of_the_readme_work(site: Site) -> None:
    await deploy_quick_start(site)
    await check_quick_start(site)
    await check_stateful_set(site)
    await check_nothing_is_left(site)


@on_a_cluster
async def test_older_installation_needs_only_its_own_environment(site: Site) -> None:
    await check_older_installation(site)


@on_a_cluster
async def test_commands_of_the_readme_work_in_another_namespace(site: Site) -> None:
    await check_deployment_step_by_step(site, "storage")
    await check_removal_of_the_provisioner(site)
