"""The operator's own manifests, and its bundle for OLM."""

import re
from dataclasses import replace

import pytest
import yaml
from lightkube.core.resource import api_info
from packaging.version import Version
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from kube_efs.model.names import NameSet
from kube_efs.operator.bundle import render_bundle
from kube_efs.operator.cluster_facts import InstallationFacts
from kube_efs.operator.desired_objects import (
    ALL_OPTIONAL,
    ProcessSettings,
    desired_objects,
    unrequested_objects,
)
from kube_efs.operator.kinds import KINDS
from kube_efs.operator.manifests import RenderOptions, render_manifests, text_of
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform

IMAGE = "registry.example.com/kube-efs:1.2.3"
COMMUNITY_LAST = Version("0.0.8")


class _YamlFile(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


def options(platform: Platform) -> RenderOptions:
    return RenderOptions(platform=platform, image=IMAGE, csi=True)


@pytest.mark.parametrize("platform", Platform)
def test_operator_matches_the_snapshot(platform: Platform, snapshot: SnapshotAssertion) -> None:
    text = text_of(render_operator(options(platform)), as_json=False)
    assert text == snapshot.use_extension(_YamlFile)
    assert not re.search(r"[{]\w+[}]|\$if", text)


def test_bundle_matches_the_snapshot(snapshot: SnapshotAssertion) -> None:
    files = render_bundle(options(Platform.OPENSHIFT))
    text = "".join(f"--- # {path}\n{content}" for path, content in files.items())
    assert text == snapshot.use_extension(_YamlFile)


def test_bundle_lists_its_kinds_and_images() -> None:
    files = render_bundle(options(Platform.OPENSHIFT))
    (path,) = [one for one in files if one.endswith("clusterserviceversion.yaml")]
    version = yaml.safe_load(files[path])
    brought = {yaml.safe_load(files[one])["metadata"]["name"] for one in files if one.endswith(".crd.yaml")}
    owned = version["spec"]["customresourcedefinitions"]["owned"]
    assert {one["name"] for one in owned} == brought
    (deployment,) = version["spec"]["install"]["spec"]["deployments"]
    images = set(re.findall(r"(?:image|value): (registry\S+)", yaml.safe_dump(deployment)))
    assert images == {one["image"] for one in version["spec"]["relatedImages"]} == {IMAGE}


def test_bundle_replaces_every_version_of_the_community_operator() -> None:
    files = render_bundle(options(Platform.OPENSHIFT))
    version = yaml.safe_load(files["manifests/aws-efs-operator.clusterserviceversion.yaml"])
    number = Version(version["spec"]["version"])
    assert number > COMMUNITY_LAST
    assert version["metadata"]["annotations"]["olm.skipRange"] == f"<{number}"
    annotations = yaml.safe_load(files["metadata/annotations.yaml"])["annotations"]
    for name, value in annotations.items():
        assert f"LABEL {name}={value}\n" in files["bundle.Containerfile"]


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize("installed", NameSet)
def test_operator_may_delete_every_object_that_is_not_requested_any_more(
    platform: Platform, installed: NameSet
) -> None:
    found = replace(options(platform), names=installed, csi_only=True)
    own = [rule for one in render_operator(options(platform)) for rule in one.get("rules", ())]
    for one in unrequested_objects(ProcessSettings(), found):
        info, name = api_info(KINDS[one["kind"]].resource), one["metadata"]["name"]
        assert any(
            info.resource.group in rule["apiGroups"]
            and info.plural in rule["resources"]
            and "delete" in rule["verbs"]
            and name in rule.get("resourceNames", [name])
            for rule in own
        ), one["kind"]


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize("kind", ["Role", "ClusterRole"])
@pytest.mark.parametrize("installed", NameSet)
def test_operator_has_every_permission_that_it_grants(
    platform: Platform, kind: str, installed: NameSet
) -> None:
    own = [rule for one in render_operator(options(platform)) if one["kind"] == kind for rule in one["rules"]]
    found = replace(options(platform), names=installed)
    desired = desired_objects(found, InstallationFacts(), ALL_OPTIONAL)
    for one in (*render_manifests(found), *desired):
        if one["kind"] == kind:
            assert all(rule in own for rule in one["rules"])


def test_permissions_of_the_operator_have_no_wildcard() -> None:
    for one in render_operator(options(Platform.OPENSHIFT)):
        for rule in one.get("rules", ()):
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
