"""The objects of the demo are those of the older systems' READMEs."""

import yaml
from tests.scenarios.csi_steps import SEED_CLAIM, SEED_CLASS, SEED_POD

from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs_lab.cluster import DIRECTORY_PROVISIONER
from kube_efs_lab.manifests import (
    ACCESS_POINT_CLAIM,
    ACCESS_POINT_CLASS,
    ACCESS_POINT_POD,
    CSI_DRIVER,
    DIRECTORY_CLAIM,
    DIRECTORY_CLASS,
    EXAMPLE_CLAIM,
    STORAGE_CLASS,
    claim_like_example,
)


def test_the_class_and_the_claim_are_complete_documents() -> None:
    storage_class, claim = yaml.safe_load(STORAGE_CLASS), yaml.safe_load(EXAMPLE_CLAIM)
    assert storage_class["provisioner"] == "gnuthought.com/efs-stunnel"
    assert claim["spec"]["storageClassName"] == storage_class["metadata"]["name"]


def test_a_claim_like_the_example_differs_in_name_and_labels_only() -> None:
    example = yaml.safe_load(EXAMPLE_CLAIM)
    other = yaml.safe_load(claim_like_example("other", volume_name="kept", reclaim_policy="Retain"))
    assert other["metadata"] == {"name": "other"}
    assert other["spec"].pop("selector") == {
        "matchLabels": {"volume_name": "kept", "reclaim_policy": "Retain"}
    }
    example["spec"].pop("selector")
    assert other["spec"] == example["spec"]


def test_the_class_of_directory_volumes_is_that_of_the_readme() -> None:
    storage_class, claim = yaml.safe_load(DIRECTORY_CLASS), yaml.safe_load(DIRECTORY_CLAIM)
    assert storage_class["provisioner"] == DIRECTORY_PROVISIONER == "example.com/aws-efs"
    assert storage_class["parameters"] == {"gidMin": "40000", "gidMax": "50000", "gidAllocate": "true"}
    assert claim["spec"]["storageClassName"] == storage_class["metadata"]["name"]


def test_the_objects_of_the_csi_driver_are_those_of_its_users() -> None:
    for ours, theirs in (
        (ACCESS_POINT_CLASS, SEED_CLASS),
        (ACCESS_POINT_CLAIM, SEED_CLAIM),
        (ACCESS_POINT_POD, SEED_POD),
    ):
        assert ours.strip() == theirs.strip()


def test_the_driver_s_object_is_that_of_an_installation() -> None:
    rendered = render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=True))
    [driver] = [one for one in rendered if one["kind"] == "CSIDriver"]
    ours = yaml.safe_load(CSI_DRIVER)
    assert (ours["metadata"]["name"], ours["spec"]) == (driver["metadata"]["name"], driver["spec"])
