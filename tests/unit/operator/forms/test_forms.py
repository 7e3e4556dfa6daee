"""The forms in deploy/: up to date, and equal to ``kube-efs render``."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.kustomizing import kustomized

from kube_efs.model.names import NameSet
from kube_efs.operator.forms.chart import chart_files
from kube_efs.operator.forms.chart_values import chart_values, defaults, schema
from kube_efs.operator.forms.kustomizations import BASE_OPTIONS, OVERLAYS
from kube_efs.operator.forms.openshift_templates import openshift_files
from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform

ROOT = Path(__file__).parents[4]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
FOLDERS = {"base": BASE_OPTIONS, **{overlay.folder: overlay.options for overlay in OVERLAYS}}
PATHS = [value.path for value in chart_values()]


def _keyed(manifests: Iterable[Any]) -> dict[tuple[str, str, str], Any]:
    return {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in manifests
    }


def test_files_in_deploy_are_up_to_date() -> None:
    command = [sys.executable, "scripts/forms.py", "--check"]
    check = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr


# --- kustomize


@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_builds_the_rendered_objects(folder: str) -> None:
    found = kustomized(KUSTOMIZE / folder)
    assert _keyed(found) == _keyed(render_manifests(FOLDERS[folder]))


def test_kustomize_sets_another_image_for_processes_and_workers(tmp_path: Path) -> None:
    shutil.copytree(KUSTOMIZE, tmp_path / "kustomize")
    shutil.copy(KUSTOMIZE / "images.yaml", tmp_path)
    image = "registry.example.com/team/efs"
    own = {
        "resources": ["kustomize/overlays/csi"],
        "configurations": ["images.yaml"],
        "images": [{"name": BASE_OPTIONS.image.partition(":")[0], "newName": image, "newTag": "1"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    options = RenderOptions(platform=Platform.KUBERNETES, csi=True, image=f"{image}:1")
    assert _keyed(kustomized(tmp_path)) == _keyed(render_manifests(options))


# --- OpenShift templates


def _processed(name: str, **given: str) -> list[Any]:
    """Process a template as ``oc process``: ${NAME} in texts, and ${{NAME}} for other values."""
    template = yaml.safe_load(openshift_files()[name])
    assert template["kind"] == "Template"
    values: dict[str, str] = {}
    for parameter in template["parameters"]:
        assert "generate" not in parameter
        values[parameter["name"]] = given.pop(parameter["name"], parameter.get("value", ""))
        if parameter.get("required") and not values[parameter["name"]]:
            raise ValueError(f"parameter {parameter['name']} is required and must be specified")
    assert given == {}, "unknown parameter"
    return [_substituted(one, values) for one in template["objects"]]


def _substituted(node: Any, values: Mapping[str, str]) -> Any:
    match node:
        case Mapping():
            return {_substituted(key, values): _substituted(value, values) for key, value in node.items()}
        case list():
            return [_substituted(item, values) for item in node]
        case str():
            if whole := re.fullmatch(r"\$\{\{(\w+)\}\}", node):
                return json.loads(values[whole[1]])
            return re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], node)
        case _:
            return node


@pytest.mark.parametrize(
    ("name", "csi"), [("install-template.yaml", False), ("install-csi-template.yaml", True)]
)
def test_template_creates_the_objects_rendered_for_openshift(name: str, csi: bool) -> None:
    found = _processed(
        name,
        NAMESPACE="storage",
        REGISTRY="registry.example.com",
        EFS_MANAGER_IMAGE="team/efs",
        EFS_MANAGER_IMAGE_TAG="1",
        EFS_STUNNEL_IMAGE="team/efs",
        EFS_STUNNEL_IMAGE_TAG="1",
    )
    options = RenderOptions(
        platform=Platform.OPENSHIFT,
        names=NameSet.OPENSHIFT_EFS_STUNNEL,
        namespace="storage",
        image="registry.example.com/team/efs:1",
        csi=csi,
    )
    wanted = [one for one in render_manifests(options) if one["kind"] != "Namespace"]
    assert found == wanted


def test_parameters_are_those_of_openshift_efs_stunnel() -> None:
    found = _keyed(_processed("install-template.yaml", EFS_STUNNEL_NODE_SELECTOR='{"pool": "a"}'))
    namespace = "openshift-efs-stunnel"
    manager = found["Deployment", namespace, "efs-manager"]["spec"]["template"]["spec"]
    stunnel = found["DaemonSet", namespace, "efs-stunnel"]["spec"]["template"]["spec"]
    registry = "image-registry.openshift-image-registry.svc:5000"
    image = f"{registry}/{namespace}/efs-manager:latest"
    assert manager["containers"][0]["image"] == image
    assert {"name": "WORKER_IMAGE", "value": image} in manager["containers"][0]["env"]
    assert stunnel["containers"][0]["image"] == f"{registry}/{namespace}/efs-stunnel:latest"
    assert stunnel["nodeSelector"] == {"pool": "a"}


def test_required_parameter_cannot_be_empty() -> None:
    with pytest.raises(ValueError, match="NAMESPACE is required"):
        _processed("install-template.yaml", NAMESPACE="")


def test_builds_create_the_images_of_the_installation() -> None:
    built = _keyed(_processed("build-template.yaml", BASE_IMAGE="ubi", REGISTRY="registry.example.com"))
    installed = yaml.safe_load(openshift_files()["install-template.yaml"])
    parameters = {one["name"]: one.get("value") for one in installed["parameters"]}
    for name in ("efs-manager", "efs-stunnel"):
        assert ("ImageStream", "", name) in built
        output = built["BuildConfig", "", name]["spec"]["output"]["to"]
        variable = name.upper().replace("-", "_")
        assert output == {"kind": "ImageStreamTag", "name": f"{name}:{parameters[f'{variable}_IMAGE_TAG']}"}
        assert parameters[f"{variable}_IMAGE"] == f"{parameters['NAMESPACE']}/{name}"
    strategy = built["BuildConfig", "", "efs-manager"]["spec"]["strategy"]["dockerStrategy"]
    assert (ROOT / strategy["dockerfilePath"]).is_file()
    (argument,) = strategy["buildArgs"]
    assert argument == {"name": "BASE", "value": "registry.example.com/openshift/ubi:trixie-slim"}
    assert f"ARG {argument['name']}=" in (ROOT / strategy["dockerfilePath"]).read_text()


# --- the chart; tests/conformance/test_helm_chart.py has Helm itself


def test_templates_use_exactly_the_values_of_the_chart() -> None:
    templates = "".join(text for name, text in chart_files().items() if name.startswith("templates/"))
    used = set(re.findall(r"\.Values\.([A-Za-z0-9.]+)", templates))
    assert used == set(PATHS)


def test_default_values_match_the_schema_and_the_page() -> None:
    files = chart_files()
    values = yaml.safe_load(files["values.yaml"])
    assert values == defaults(chart_values())
    jsonschema.Draft7Validator.check_schema(schema(chart_values()))
    jsonschema.validate(values, json.loads(files["values.schema.json"]))
    assert re.findall(r"^\| `([A-Za-z0-9.]+)` \|", files["README.md"], flags=re.MULTILINE) == PATHS


def test_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load(chart_files()["Chart.yaml"])
    assert chart["version"] == chart["appVersion"] == BASE_OPTIONS.image.partition(":")[2]
