"""The bundle for OLM, with the tools of the Operator Framework: validators, opm, and the resolver of OLM."""

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.conformance.programs import run_optional

from kube_efs.operator.bundle import CHANNEL, PACKAGE, render_bundle, render_service_version
from kube_efs.operator.manifests import RenderOptions
from kube_efs.operator.platforms import Platform

IMAGE: Final = f"registry.example.com/kube-efs@sha256:{'0' * 64}"
BUNDLE_IMAGE: Final = f"registry.example.com/kube-efs-bundle@sha256:{'1' * 64}"
NUMBER: Final = version("kube-efs")
NEXT: Final = "99.0.0"
KIND: Final = {"kind": "SharedVolume", "version": "v1alpha1"}
PAGE: Final = Path(__file__).parents[2] / "docs" / "operator.md"
SUITES: Final = (
    *("format", "content", "default"),
    *("operatorhub", "operatorhub/v2", "standardcapabilities", "standardcategories", "bundle-objects"),
    *("community", "alpha-deprecated-apis", "good-practices", "multiarch"),
)
# The rules of roles have no API version. The validator warns about policy/v1beta1, which nothing uses.
_BUDGETS: Final = "Migrate the API(s) for poddisruptionbudgets: "
# The only findings, by suite.
ACCEPTED: Final[Mapping[str, tuple[str, ...]]] = {
    "operatorhub": (_BUDGETS, 'The "operatorhub" validator is deprecated'),
    "operatorhub/v2": (_BUDGETS,),
    "alpha-deprecated-apis": (_BUDGETS,),
    # The operator also works without OLM, and creates its kinds. A unit test refuses permissions for others.
    "good-practices": ("CSV contains permissions to create CRD.",),
}
# The validator runs docker to find the platforms of an image. This image does not exist, so this answers.
DOCKER: Final = """#!/bin/sh
[ "$1" = pull ] || echo '{"manifests": [PLATFORMS]}'
"""


def write_bundle(directory: Path, *, image: str = IMAGE, number: str = NUMBER) -> Path:
    options = RenderOptions(platform=Platform.OPENSHIFT, image=image, csi=True)
    for path, text in render_bundle(options).items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace(NUMBER, number))
    return directory


def write_catalog(directory: Path, entries: list[dict[str, Any]], *numbers: str) -> Path:
    """A catalog with the bundles of these versions and these entries of the channel."""
    bundles = directory.with_name(f"{directory.name}-bundles")
    directory.mkdir()
    texts = []
    for number in numbers:
        bundle = write_bundle(bundles / number, number=number)
        rendered = run_optional(
            "opm", "render", bundle, "--output", "yaml", "--alpha-image-ref-template", BUNDLE_IMAGE
        )
        texts.append(rendered)
    package = {"schema": "olm.package", "name": PACKAGE, "defaultChannel": CHANNEL}
    channel = {"schema": "olm.channel", "package": PACKAGE, "name": CHANNEL, "entries": entries}
    (directory / "catalog.yaml").write_text("---\n".join([yaml.safe_dump_all([package, channel]), *texts]))
    return directory


def name_of(number: str) -> str:
    return f"{PACKAGE}.v{number}"


def entry(number: str, **more: Any) -> dict[str, Any]:
    return {"name": name_of(number), **more}


def resolve(catalog: Path, installed: str | None) -> list[str]:
    """What the resolver installs in place of this version."""
    csv = ""
    if installed is not None:
        kind = {"kind": "ClusterServiceVersion", "apiVersion": "operators.coreos.com/v1alpha1"}
        # Two operators with the same kind cannot be installed together.
        owned = {**KIND, "name": "sharedvolumes.aws-efs.managed.openshift.io"}
        spec = {"version": installed, "customresourcedefinitions": {"owned": [owned]}}
        csv = json.dumps({**kind, "metadata": {"name": name_of(installed)}, "spec": spec})
    answer = json.loads(run_optional("resolve-upgrade", catalog, PACKAGE, CHANNEL, stdin=csv))
    assert answer["error"] == ""
    if installed is not None and answer["installs"]:
        assert answer["replaces"] == name_of(installed)
    found: list[str] = answer["installs"]
    return found


def findings(directory: Path, *architectures: str) -> list[tuple[str, str, str]]:
    """Suite, severity and message of all findings, where the image has these architectures."""
    programs = directory.with_name(f"{directory.name}-programs")
    programs.mkdir()
    platforms = [{"platform": {"os": "linux", "architecture": one}} for one in architectures]
    docker = programs / "docker"
    docker.write_text(DOCKER.replace("[PLATFORMS]", json.dumps(platforms)))
    docker.chmod(0o755)
    answer = json.loads(run_optional("validate-bundle", directory, path=programs))
    assert tuple(answer["suites"]) == SUITES
    return [(one["suite"], one["severity"], one["message"]) for one in answer["findings"]]


@pytest.mark.parametrize("image", [IMAGE, "registry.example.com/kube-efs:1.2.3"], ids=["digest", "tag"])
def test_validators_of_all_suites_accept_the_bundle(tmp_path: Path, image: str) -> None:
    found = findings(write_bundle(tmp_path / "bundle", image=image), "amd64", "arm64")
    known = {(suite, text): False for suite, texts in ACCEPTED.items() for text in texts}
    unexpected = []
    for suite, severity, message in found:
        matching = [one for one in known if one[0] == suite and one[1] in message]
        known.update(dict.fromkeys(matching, True))
        if severity != "Warning" or not matching:
            unexpected.append((suite, severity, message))
    assert unexpected == []
    assert all(known.values()), known


@pytest.mark.parametrize(
    ("path", "old", "new", "suite", "message"),
    [
        pytest.param(
            "metadata/annotations.yaml", "registry+v1", "plain+v0", "format", "mediatype.v1", id="annotations"
        ),
        pytest.param(
            "manifests/sharedvolumes.aws-efs.managed.openshift.io.crd.yaml",
            "name: v1alpha1",
            "name: v1",
            "default",
            "SharedVolume",
            id="definition",
        ),
        pytest.param(
            f"manifests/{PACKAGE}.clusterserviceversion.yaml",
            "alm-examples",
            "no-examples",
            "default",
            "example annotations not found",
            id="example",
        ),
        pytest.param(
            f"manifests/{PACKAGE}.clusterserviceversion.yaml",
            "capabilities: Full Lifecycle",
            "capabilities: Much",
            "standardcapabilities",
            "capabilities",
            id="capabilities",
        ),
        pytest.param(
            f"manifests/{PACKAGE}.clusterserviceversion.yaml",
            "- arm64",
            "- s390x",
            "multiarch",
            "node affinity",
            id="architecture",
        ),
    ],
)
def test_validators_find_defects(
    tmp_path: Path, path: str, old: str, new: str, suite: str, message: str
) -> None:
    directory = write_bundle(tmp_path / "bundle")
    text = (directory / path).read_text()
    assert old in text
    (directory / path).write_text(text.replace(old, new))
    found = findings(directory, "amd64", "arm64")
    assert any(one[0] == suite and message in one[2] for one in found), found


# --- the catalog and the upgrades


def documented_catalog() -> list[Any]:
    """The package and the channel of the page for administrators."""
    (text,) = (
        one for one in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "olm.channel" in one
    )
    return [*yaml.safe_load_all(text)]


def test_opm_renders_and_validates_the_catalog_of_the_page(tmp_path: Path) -> None:
    package, channel = documented_catalog()
    assert (
        (package["name"], package["defaultChannel"])
        == (channel["package"], channel["name"])
        == (PACKAGE, CHANNEL)
    )
    catalog = write_catalog(tmp_path / "catalog", channel["entries"], NUMBER)
    run_optional("opm", "validate", catalog)
    found = yaml.safe_load_all((catalog / "catalog.yaml").read_text())
    (bundle,) = (one for one in found if one and one["schema"] == "olm.bundle")
    assert (bundle["name"], bundle["package"], bundle["image"]) == (name_of(NUMBER), PACKAGE, BUNDLE_IMAGE)
    assert {one["image"] for one in bundle["relatedImages"]} == {IMAGE, BUNDLE_IMAGE}
    properties = [(one["type"], one["value"]) for one in bundle["properties"]]
    assert ("olm.package", {"packageName": PACKAGE, "version": NUMBER}) in properties
    assert ("olm.gvk", {**KIND, "group": "aws-efs.managed.openshift.io"}) in properties
    # The catalog of the page and the annotation for older catalogs name the same versions.
    options = RenderOptions(platform=Platform.OPENSHIFT, csi=True)
    annotations = render_service_version(options)["metadata"]["annotations"]
    assert channel["entries"] == [entry(NUMBER, skipRange=annotations["olm.skipRange"])]


@pytest.mark.parametrize(
    ("installed", "wanted"),
    [
        # The versions of aws-efs-operator, which the bundle replaces.
        *((f"0.0.{one}", [name_of(NUMBER)]) for one in range(1, 9)),
        (None, [name_of(NUMBER)]),
        (NUMBER, []),
        (NEXT, []),
    ],
)
def test_only_older_versions_upgrade_to_the_bundle(
    tmp_path: Path, installed: str | None, wanted: list[str]
) -> None:
    _, channel = documented_catalog()
    catalog = write_catalog(tmp_path / "catalog", channel["entries"], NUMBER)
    assert resolve(catalog, installed) == wanted


@pytest.mark.parametrize("relation", [{"skips": [name_of(NUMBER)]}, {"replaces": name_of(NUMBER)}], ids=str)
def test_next_version_replaces_every_earlier_one_at_once(tmp_path: Path, relation: dict[str, Any]) -> None:
    entries = [entry(NUMBER, skipRange=f"<{NUMBER}"), entry(NEXT, skipRange=f"<{NEXT}", **relation)]
    catalog = write_catalog(tmp_path / "catalog", entries, NUMBER, NEXT)
    run_optional("opm", "validate", catalog)
    found = {one: resolve(catalog, one) for one in (None, "0.0.8", NUMBER, NEXT)}
    assert found == {None: [name_of(NEXT)], "0.0.8": [name_of(NEXT)], NUMBER: [name_of(NEXT)], NEXT: []}


def test_version_without_a_range_is_reached_only_from_the_version_that_it_replaces(tmp_path: Path) -> None:
    entries = [entry(NUMBER, skipRange=f"<{NUMBER}"), entry(NEXT, replaces=name_of(NUMBER))]
    catalog = write_catalog(tmp_path / "catalog", entries, NUMBER, NEXT)
    run_optional("opm", "validate", catalog)
    assert resolve(catalog, "0.0.8") == [name_of(NUMBER)]
    assert resolve(catalog, NUMBER) == [name_of(NEXT)]
    # Neither listed, nor in the range.
    assert resolve(catalog, "1.0.0") == []


def test_entry_without_the_range_upgrades_nothing(tmp_path: Path) -> None:
    catalog = write_catalog(tmp_path / "catalog", [entry(NUMBER)], NUMBER)
    assert resolve(catalog, "0.0.8") == []


def test_opm_refuses_two_newest_versions(tmp_path: Path) -> None:
    entries = [entry(NUMBER, skipRange=f"<{NUMBER}"), entry(NEXT, skipRange=f"<{NEXT}")]
    catalog = write_catalog(tmp_path / "catalog", entries, NUMBER, NEXT)
    with pytest.raises(AssertionError, match="multiple channel heads"):
        run_optional("opm", "validate", catalog)
