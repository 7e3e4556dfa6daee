import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from kube_efs.cli import app
from kube_efs.exit_status import exit_status_of
from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform


def _render(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command gives, without the second that a process would take to load it."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["kube-efs", "render", *arguments]),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            status = exit_status_of(app)
        except SystemExit as end:
            status = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def test_render_prints_yaml_documents() -> None:
    answer = _render("--for", "kubernetes", "--image", "example.com/kube-efs:1")
    assert answer.returncode == 0, answer.stderr
    assert list(yaml.safe_load_all(answer.stdout))
    assert "image: example.com/kube-efs:1\n" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param((), "kube-efs", id="new installation"),
        pytest.param(("--namespace", "kube-efs"), "kube-efs", id="its namespace"),
        pytest.param(("--namespace", "openshift-efs-stunnel"), "openshift-efs-stunnel", id="earlier one"),
        pytest.param(("--operator", "--namespace", "a"), "kube-efs", id="operator, which searches"),
        pytest.param(
            ("--names", "aws-efs-csi-driver", "--namespace", "kube-efs"), "aws-efs-csi-driver", id="choice"
        ),
    ],
)
def test_names_are_those_of_the_namespace(arguments: tuple[str, ...], expected: str) -> None:
    answer = _render("--for", "kubernetes", *arguments)
    assert answer.returncode == 0, answer.stderr
    named = re.findall(r"name: KUBE_EFS_NAMES\s+value: (\S+)", answer.stdout)
    assert named
    assert set(named) == {expected}


def test_names_must_be_chosen_in_any_other_namespace() -> None:
    # An installation of an earlier version would lose its roles to the service accounts of other names.
    answer = _render("--for", "kubernetes", "--namespace", "storage")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        "error: --namespace: 'storage' needs --names; add --names kube-efs for a new installation; for an "
        "existing one its names, such as --names openshift-efs-stunnel for one of an earlier version\n"
    )


def test_namespace_is_added_on_request() -> None:
    answer = _render("--for", "kubernetes", "-n", "storage", "--create-namespace", "--operator")
    first = next(yaml.safe_load_all(answer.stdout))
    assert (first["kind"], first["metadata"]["name"]) == ("Namespace", "storage")


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        pytest.param("kube-efs", ["kube-efs"], id="of a new installation"),
        pytest.param("openshift-efs-stunnel", ["openshift-efs-stunnel"], id="of an earlier version"),
        pytest.param("openshift-cluster-csi-drivers", [], id="of the platform"),
    ],
)
def test_namespace_of_others_is_not_part_of_the_manifests(namespace: str, expected: list[str]) -> None:
    # kubectl delete -f of the same manifests would delete it, with everything in it.
    options = RenderOptions(platform=Platform.OPENSHIFT, namespace=namespace, csi=True)
    for manifests in (render_manifests(options), render_operator(options)):
        assert [one["metadata"]["name"] for one in manifests if one["kind"] == "Namespace"] == expected


def test_render_for_openshift_prints_a_json_list() -> None:
    answer = _render("--for", "openshift", "--output", "json", "--provisioner", "example.com/efs")
    listing = json.loads(answer.stdout)
    assert listing["kind"] == "List"
    assert "SecurityContextConstraints" in {one["kind"] for one in listing["items"]}
    assert "example.com/efs" in {one.get("provisioner") for one in listing["items"]}


def test_render_requires_the_platform() -> None:
    answer = _render()
    assert answer.returncode == 2
    assert "--for" in answer.stderr


def test_invalid_option_exits_with_2_and_shows_the_remedy() -> None:
    answer = _render("--for", "kubernetes", "--names", "kube-efs", "--namespace", "No_Name")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == "error: namespace: 'No_Name' is not valid; use a namespace's name, such as efs\n"


def test_bundle_in_a_directory_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = _render("--for", "olm", "--directory", str(tmp_path / "file" / "bundle"))
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: --directory: ")
    assert answer.stderr.endswith("cannot be written (Not a directory); name a writable directory\n")


def test_option_csi_adds_the_driver() -> None:
    more = ("--kubelet-dir", "/k", "--secret", "a/b", "--secret", "a/c", "--config-map", "a/d")
    answer = _render("--for", "kubernetes", "--csi", *more)
    assert answer.returncode == 0, answer.stderr
    documents = list(yaml.safe_load_all(answer.stdout))
    assert "efs.csi.aws.com" in {one["metadata"]["name"] for one in documents}
    rules = [rule for one in documents if one["kind"] == "Role" for rule in one["rules"]]
    assert [rule["resourceNames"] for rule in rules if "secrets" in rule["resources"]] == [["b", "c"]]
    assert "path: /k/pods\n" in answer.stdout


def test_option_csi_only_leaves_out_tunnel_volumes() -> None:
    answer = _render("--for", "kubernetes", "--csi-only")
    assert answer.returncode == 0, answer.stderr
    documents = list(yaml.safe_load_all(answer.stdout))
    kinds = {one["kind"] for one in documents}
    assert "CSIDriver" in kinds
    assert "StorageClass" not in kinds
    (controller,) = (one for one in documents if one["kind"] == "Deployment")
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["KUBE_EFS_BACKENDS"] == "csi"
    # The permissions for the ConfigMap of the tunnels are left out, too.
    of_controller = [
        rule
        for one in documents
        if one["kind"] == "Role" and one["metadata"]["name"] == "kube-efs-controller"
        for rule in one["rules"]
    ]
    assert of_controller
    assert [rule["verbs"] for rule in of_controller if "configmaps" in rule["resources"]] == []


@pytest.mark.parametrize("form", [("--for", "kubernetes", "--operator"), ("--for", "olm")])
def test_operator_installs_only_the_driver_on_request(form: tuple[str, ...], tmp_path: Path) -> None:
    for extra, expected in (((), None), (("--csi-only",), "true")):
        answer = _render(*form, *extra, "--directory", str(tmp_path))
        assert answer.returncode == 0, answer.stderr
        text = answer.stdout + "".join(
            f"---\n{path.read_text()}" for path in tmp_path.rglob("*.clusterserviceversion.yaml")
        )
        found = [
            variable.get("value")
            for one in yaml.safe_load_all(text)
            if one
            for variable in _variables(one)
            if variable["name"] == "KUBE_EFS_CSI_ONLY"
        ]
        assert found == ([expected] if expected else [])


def test_pod_tokens_are_left_out_on_request() -> None:
    answer = _render("--for", "kubernetes", "--csi", "--no-pod-tokens")
    assert answer.returncode == 0, answer.stderr
    (driver,) = (one for one in yaml.safe_load_all(answer.stdout) if one["kind"] == "CSIDriver")
    assert "tokenRequests" not in driver["spec"]
    assert driver["spec"]["requiresRepublish"] is False


@pytest.mark.parametrize("form", [("--for", "kubernetes", "--operator"), ("--for", "olm")])
def test_operator_decides_itself_about_pod_tokens(form: tuple[str, ...], tmp_path: Path) -> None:
    answer = _render(*form, "--no-pod-tokens", "--directory", str(tmp_path))
    assert answer.returncode != 0
    assert "the operator waits with tokens until no pod of an older driver is left" in answer.stderr


def _variables(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The variables of the operator's container in a Deployment or a ClusterServiceVersion."""
    match manifest:
        case {"kind": "Deployment", "spec": spec}:
            specs = [spec]
        case {"kind": "ClusterServiceVersion", "spec": {"install": {"spec": {"deployments": deployments}}}}:
            specs = [one["spec"] for one in deployments]
        case _:
            specs = []
    return [
        variable
        for spec in specs
        for container in spec["template"]["spec"]["containers"]
        for variable in container["env"]
    ]
