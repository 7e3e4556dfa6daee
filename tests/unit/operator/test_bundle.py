"""The bundle, by the rules of ``operator-sdk bundle validate``: the default and the optional suite.

This is a quick check. The conformance tests run the Go libraries that have these rules.
"""

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import yaml
from packaging.version import Version

from kube_efs.operator.bundle import PACKAGE, render_bundle
from kube_efs.operator.manifests import RenderOptions
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform

BY_TAG: Final = "registry.example.com/kube-efs:1.2.3"
BY_DIGEST: Final = f"registry.example.com/kube-efs@sha256:{'0' * 64}"
# The limit of a ConfigMap, in which OLM keeps an unpacked bundle.
BUNDLE_BYTES: Final = 1 << 20
CAPABILITIES: Final = ("Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot")
# Those that OpenShift requires of each operator, as "true" or "false".
FEATURES: Final = frozenset(
    f"features.operators.openshift.io/{name}"
    for name in (
        *("disconnected", "fips-compliant", "proxy-aware", "tls-profiles", "cnf", "cni", "csi"),
        *("token-auth-aws", "token-auth-azure", "token-auth-gcp"),
    )
)
# Names whose case matters to OLM.
CASES: Final = (
    "olm.operatorGroup",
    "olm.operatorNamespace",
    "olm.targetNamespaces",
    "olm.providedAPIs",
    "olm.skipRange",
)
_SEMVER: Final = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def bundle(image: str = BY_TAG) -> Mapping[str, str]:
    return render_bundle(RenderOptions(platform=Platform.OPENSHIFT, image=image, csi=True))


@pytest.fixture(scope="module")
def service_version() -> Any:
    return read_service_version(bundle())


def read_service_version(files: Mapping[str, str]) -> Any:
    (path,) = [one for one in files if one.endswith(".clusterserviceversion.yaml")]
    return yaml.safe_load(files[path])


def definitions() -> Iterator[Any]:
    return (yaml.safe_load(text) for path, text in bundle().items() if path.endswith(".crd.yaml"))


def served_kinds() -> set[tuple[str, str, str]]:
    """Group, version and kind of each version in the definitions."""
    return {
        (one["spec"]["group"], version["name"], one["spec"]["names"]["kind"])
        for one in definitions()
        for version in one["spec"]["versions"]
    }


# --- ClusterServiceVersionValidator


def test_name_is_a_label_with_the_version(service_version: Any) -> None:
    name, number = service_version["metadata"]["name"], service_version["spec"]["version"]
    assert name == f"{PACKAGE}.v{number}"
    assert _LABEL_VALUE.fullmatch(name)
    assert _SEMVER.fullmatch(number)
    assert service_version["apiVersion"] == "operators.coreos.com/v1alpha1"
    assert service_version["kind"] == "ClusterServiceVersion"


def test_required_fields_are_not_empty(service_version: Any) -> None:
    spec = service_version["spec"]
    assert all(spec[name] for name in ("install", "displayName", "version", "description", "provider"))
    assert spec["install"]["strategy"] == "deployment"
    assert spec["install"]["spec"]["deployments"]
    assert spec["provider"]["name"].strip()


def test_every_kind_has_an_example_and_every_example_is_of_a_kind(service_version: Any) -> None:
    examples = json.loads(service_version["metadata"]["annotations"]["alm-examples"])
    found = {(*one["apiVersion"].split("/"), one["kind"]) for one in examples}
    assert found == served_kinds() != set()


def test_examples_are_valid(service_version: Any) -> None:
    schemas = {
        (one["spec"]["group"], version["name"], one["spec"]["names"]["kind"]): version["schema"][
            "openAPIV3Schema"
        ]
        for one in definitions()
        for version in one["spec"]["versions"]
    }
    for one in json.loads(service_version["metadata"]["annotations"]["alm-examples"]):
        jsonschema.validate(one, schemas[*one["apiVersion"].split("/"), one["kind"]])


def test_console_offers_the_resource_that_installs_the_driver(service_version: Any) -> None:
    annotations = service_version["metadata"]["annotations"]
    driver = json.loads(annotations["operatorframework.io/initialization-resource"])
    assert (driver["kind"], driver["metadata"]["name"]) == ("ClusterCSIDriver", "efs.csi.aws.com")
    options = RenderOptions(platform=Platform.KUBERNETES, csi=True)
    (definition,) = [one for one in render_operator(options) if one["kind"] == "CustomResourceDefinition"]
    (version,) = definition["spec"]["versions"]
    jsonschema.validate(driver, version["schema"]["openAPIV3Schema"])


def test_one_install_mode_is_supported(service_version: Any) -> None:
    modes = {one["type"]: one["supported"] for one in service_version["spec"]["installModes"]}
    assert len(modes) == len(service_version["spec"]["installModes"]) == 4
    assert [name for name, supported in modes.items() if supported] == ["AllNamespaces"]


def test_minimum_version_of_kubernetes_has_three_numbers(service_version: Any) -> None:
    least = service_version["spec"]["minKubeVersion"]
    assert _SEMVER.fullmatch(least)
    # No definition uses a version of the API that Kubernetes removed in 1.22, 1.25 or 1.26.
    assert Version(least) >= Version("1.26")
    assert {one["apiVersion"] for one in definitions()} == {"apiextensions.k8s.io/v1"}


def test_annotations_have_the_case_that_olm_reads(service_version: Any) -> None:
    cases = {one.lower(): one for one in CASES}
    names = service_version["metadata"]["annotations"]
    assert all(cases.get(one.lower(), one) == one for one in names)
    # Properties belong in a file of the bundle.
    assert "olm.properties" not in names


def test_upgrades_skip_every_earlier_version_and_replace_none(service_version: Any) -> None:
    # With skipRange alone, the newest bundle of the channel is the only one to install.
    assert (
        service_version["metadata"]["annotations"]["olm.skipRange"]
        == f"<{service_version['spec']['version']}"
    )
    assert not service_version["spec"].keys() & {"replaces", "skips"}


# --- BundleValidator, CRDValidator and ObjectValidator


def test_definitions_are_exactly_those_of_the_service_version(service_version: Any) -> None:
    owned = service_version["spec"]["customresourcedefinitions"]["owned"]
    found = {(one["name"].partition(".")[2], one["version"], one["kind"]) for one in owned}
    assert found == served_kinds()
    assert len(owned) == len(found)
    assert all(one["description"] and one["displayName"] for one in owned)
    for one in definitions():
        names = one["spec"]["names"]
        assert one["metadata"]["name"] == f"{names['plural']}.{one['spec']['group']}"
        assert [version["storage"] for version in one["spec"]["versions"]].count(True) == 1


def test_bundle_has_no_service_account_and_fits_in_a_config_map(service_version: Any) -> None:
    # OLM creates the account that the Deployment names.
    texts = bundle().values()
    assert "\nkind: ServiceAccount\n" not in "".join(texts)
    assert len(gzip.compress("".join(texts).encode())) < BUNDLE_BYTES * 0.85
    install = service_version["spec"]["install"]["spec"]
    (deployment,) = install["deployments"]
    accounts = {
        one["serviceAccountName"] for one in (*install["permissions"], *install["clusterPermissions"])
    }
    assert accounts == {deployment["spec"]["template"]["spec"]["serviceAccountName"]}


@pytest.mark.parametrize("image", [BY_TAG, BY_DIGEST])
def test_related_images_are_all_images(image: str) -> None:
    found = read_service_version(bundle(image))
    related = found["spec"]["relatedImages"]
    assert len({one["name"] for one in related}) == len(related)
    assert {one["image"] for one in related} == {image}
    (deployment,) = found["spec"]["install"]["spec"]["deployments"]
    containers = deployment["spec"]["template"]["spec"]["containers"]
    used = {one["image"] for one in containers}
    used |= {env["value"] for one in containers for env in one["env"] if env["name"].endswith("_IMAGE")}
    assert used == {image} == {found["metadata"]["annotations"]["containerImage"]}


@pytest.mark.parametrize(("image", "disconnected"), [(BY_TAG, "false"), (BY_DIGEST, "true")])
def test_only_images_by_digest_are_for_disconnected_clusters(image: str, disconnected: str) -> None:
    annotations = read_service_version(bundle(image))["metadata"]["annotations"]
    assert annotations["features.operators.openshift.io/disconnected"] == disconnected


def test_no_permission_changes_the_default_constraints_of_openshift(service_version: Any) -> None:
    install = service_version["spec"]["install"]["spec"]
    rules = [
        rule for one in (*install["permissions"], *install["clusterPermissions"]) for rule in one["rules"]
    ]
    defaults = {
        "privileged",
        "restricted",
        "anyuid",
        "hostaccess",
        "hostmount-anyuid",
        "hostnetwork",
        "nonroot",
    }
    for rule in rules:
        assert not defaults & set(rule.get("resourceNames", ()))


# --- the optional suite: operatorhub/v2, standardcapabilities, standardcategories, good-practices, multiarch


def test_icon_is_one_picture(service_version: Any) -> None:
    (icon,) = service_version["spec"]["icon"]
    assert icon["mediatype"] == "image/svg+xml"
    assert ET.fromstring(base64.b64decode(icon["base64data"])).tag == "{http://www.w3.org/2000/svg}svg"


def test_capabilities_and_categories_are_known(service_version: Any) -> None:
    annotations = service_version["metadata"]["annotations"]
    assert annotations["capabilities"] in CAPABILITIES
    assert annotations["categories"] == "Storage"


def test_maintainers_and_links_are_complete(service_version: Any) -> None:
    for one in service_version["spec"].get("maintainers", ()):
        assert one["name"]
        assert "@" in one["email"]
    for one in service_version["spec"].get("links", ()):
        assert one["name"]
        assert one["url"].startswith("https://")


def test_every_feature_of_openshift_is_stated(service_version: Any) -> None:
    annotations = service_version["metadata"]["annotations"]
    found = {name: value for name, value in annotations.items() if name.startswith("features.")}
    assert found.keys() == FEATURES
    assert set(found.values()) <= {"true", "false"}


def test_system_and_architectures_are_labels(service_version: Any) -> None:
    assert service_version["metadata"]["labels"] == {
        "operatorframework.io/arch.amd64": "supported",
        "operatorframework.io/arch.arm64": "supported",
        "operatorframework.io/os.linux": "supported",
    }
    (deployment,) = service_version["spec"]["install"]["spec"]["deployments"]
    nodes = deployment["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    required = {one["key"]: (one["operator"], one["values"]) for one in term["matchExpressions"]}
    assert required == {
        "kubernetes.io/os": ("In", ["linux"]),
        "kubernetes.io/arch": ("In", ["amd64", "arm64"]),
    }


def test_containers_request_memory_and_processor(service_version: Any) -> None:
    (deployment,) = service_version["spec"]["install"]["spec"]["deployments"]
    for one in deployment["spec"]["template"]["spec"]["containers"]:
        assert one["resources"]["requests"].keys() == {"cpu", "memory"}


def test_channel_has_a_name_of_the_convention() -> None:
    annotations = yaml.safe_load(bundle()["metadata/annotations.yaml"])["annotations"]
    channels = annotations["operators.operatorframework.io.bundle.channels.v1"].split(",")
    default = annotations["operators.operatorframework.io.bundle.channel.default.v1"]
    assert all(one.startswith(("candidate", "fast", "stable")) for one in channels)
    assert default in channels


def test_only_the_definitions_of_the_operator_may_be_created(service_version: Any) -> None:
    """The suite warns about this permission. The operator also works without OLM, and creates its kinds."""
    rules = [
        rule
        for one in service_version["spec"]["install"]["spec"]["clusterPermissions"]
        for rule in one["rules"]
        if "customresourcedefinitions" in rule["resources"] and {"create", "patch"} & set(rule["verbs"])
    ]
    (rule,) = rules
    brought = {one["metadata"]["name"] for one in definitions()}
    assert set(rule["resourceNames"]) == brought | {"clustercsidrivers.operator.openshift.io"}
