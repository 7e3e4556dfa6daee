import json
import subprocess
import sys

import yaml


def _render(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kube_efs", "render", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_render_prints_yaml_documents() -> None:
    answer = _render("--for", "kubernetes", "--namespace", "storage", "--image", "example.com/kube-efs:1")
    assert answer.returncode == 0, answer.stderr
    documents = list(yaml.safe_load_all(answer.stdout))
    assert documents[0]["kind"] == "Namespace"
    assert documents[0]["metadata"]["name"] == "storage"
    assert "image: example.com/kube-efs:1\n" in answer.stdout


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
    answer = _render("--for", "kubernetes", "--namespace", "No_Name")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == "error: namespace: 'No_Name' is not valid; use a namespace's name, such as efs\n"


def test_option_csi_adds_the_driver() -> None:
    more = ("--kubelet-dir", "/k", "--secret", "a/b", "--secret", "a/c", "--config-map", "a/d")
    answer = _render("--for", "kubernetes", "--csi", *more)
    assert answer.returncode == 0, answer.stderr
    documents = list(yaml.safe_load_all(answer.stdout))
    assert "efs.csi.aws.com" in {one["metadata"]["name"] for one in documents}
    rules = [rule for one in documents if one["kind"] == "Role" for rule in one["rules"]]
    assert [rule["resourceNames"] for rule in rules if "secrets" in rule["resources"]] == [["b", "c"]]
    assert "path: /k/pods\n" in answer.stdout
