"""The pages by task: their form, and that kube-efs accepts their manifests, policies and commands.

``test_commands`` runs their sessions. The mistakes that are planted here show that each check can fail.
"""

import json
import re
from pathlib import Path

import pytest
from tests.docs import command_lines
from tests.docs.blocks import PAGES, blocks_of
from tests.docs.proofs import policy_problems, problems, requested_actions

from fake_efs.policy import is_allowed, parse_policy

ROOT = Path(__file__).parents[2]
HOW_TO = [page for page in PAGES if page.startswith("docs/how-to/")]
_TAGS = {"efs.csi.aws.com/cluster": "true", "kubernetes.io/cluster/prod-x7k2p": "owned"}


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", HOW_TO)
def test_manifests_policies_and_commands_are_accepted(page: str) -> None:
    assert problems(page, _text(page)) == []


@pytest.mark.parametrize("page", HOW_TO)
def test_page_begins_with_its_readers_and_says_how_to_check_and_to_undo(page: str) -> None:
    title, _, rest = _text(page).partition("\n\n")
    assert re.fullmatch("# .+", title)
    assert rest.startswith("This page is for administrators ")
    assert "At the end, " in " ".join(rest.partition("\n\n")[0].split())
    headings = re.findall(r"^## (.+)$", rest, flags=re.MULTILINE)
    assert headings[0] == "What you need"
    assert "Undo" in headings
    assert "kube-efs doctor" in rest


@pytest.mark.parametrize("page", HOW_TO)
def test_page_is_short(page: str) -> None:
    assert len(_text(page).splitlines()) <= 145


@pytest.mark.parametrize("page", ["docs/csi.md", "docs/doctor.md", "docs/s3-files.md", *HOW_TO])
def test_policies_of_pages_are_understood(page: str) -> None:
    for block in blocks_of(page):
        if block.language == "json":
            assert list(policy_problems(json.loads(block.text))) == []


# What the controller calls for volumes of S3 Files. No installation requests it by itself.
_OF_S3_FILES = frozenset(
    f"s3files:{name}"
    for name in (
        "CreateAccessPoint",
        "DeleteAccessPoint",
        "GetAccessPoint",
        "ListAccessPoints",
        "ListMountTargets",
        "TagResource",
    )
)


@pytest.mark.parametrize(
    ("page", "called"), [("docs/csi.md", requested_actions()), ("docs/s3-files.md", _OF_S3_FILES)]
)
def test_policy_that_pages_link_to_allows_all_calls_of_the_controller(
    page: str, called: frozenset[str]
) -> None:
    (block,) = [one for one in blocks_of(page) if one.language == "json"]
    statements = parse_policy(block.text, of_identity=True)
    context = {
        f"aws:{of}/{key}": frozenset({value})
        for of in ("requesttag", "resourcetag")
        for key, value in _TAGS.items()
    }
    denied = [one for one in called if not is_allowed(statements, one, context)]
    assert denied == []
    listed = {action for one in json.loads(block.text)["Statement"] for action in _list(one["Action"])}
    assert listed == called


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


_EKS, _STS, _OTHER = (f"docs/how-to/{name}.md" for name in ("eks", "openshift-sts", "cross-account"))
_RECOVERY, _AWS_DRIVER = "docs/how-to/disaster-recovery.md", "docs/how-to/from-aws-efs-csi-driver.md"


# What is wrong: the page, what it has, what it gets instead, and what is reported.
_MISTAKES = {
    "parameter, misspelt": (_EKS, "directoryPerms:", "directoryPerm:", "directoryPerms"),
    "parameter, invalid": (_EKS, 'directoryPerms: "700"', 'directoryPerms: "79"', "octal"),
    "provisioner": (_EKS, "provisioner: efs.csi", "provisioner: efs", "not a provisioner"),
    "class": (_EKS, "storageClassName: efs", "storageClassName: ebs", "no class ebs"),
    "access mode": (_EKS, "ReadWriteMany", "ReadWriteAll", "access"),
    "kind": (_EKS, "kind: StorageClass", "kind: StorageClas", "without a check"),
    "action of STS": (_EKS, '"sts:TagSession"', '"sts:Tag"', "sts:Tag is not an action"),
    "action that is missing": (_EKS, ', "sts:TagSession"', "", "Pod Identity needs"),
    "principal": (_EKS, "pods.eks.", "pod.eks.", "principal is not known"),
    "account": (_EKS, "kube-efs:kube-efs-controller", "kube-efs:kube-efs-manager", "no service account"),
    "provider in the condition": (_EKS, "id/EXAMPLE:sub", "id/OTHER:sub", "not limited"),
    "option of kube-efs": (_EKS, "--for kubernetes", "--for eks", "Invalid value"),
    "command": (_EKS, "kube-efs doctor cluster", "kube-efs doctor all", "no such command"),
    "deployment": (_EKS, "deployment/kube-efs-controller", "deployment/kube-efs-manager", "no object"),
    "option of aws": (_EKS, "--role-name", "--name", "has no --name"),
    "required option of aws": (_EKS, "--cluster-name prod", "", "needs clusterName"),
    "operation": (_EKS, "create-pod-identity-association", "create-pod-identity", "has no"),
    "file of aws": (_EKS, "file://trust.json", "file://role.json", "not a file"),
    "managed policy": (_EKS, "AmazonEFSCSIDriverPolicy\n", "AmazonEFSPolicy\n", "AWS has no"),
    "file of kubectl": (_EKS, "apply -f claim.yaml", "apply -f claims.yaml", "not a file"),
    "command in a sentence": (_EKS, "`aws eks delete-pod-", "`aws eks remove-pod-", "has no"),
    "state": (_STS, "managementState: Managed", "managementState: On", "not support"),
    "field": (_STS, "managementState:", "state:", "has no field state"),
    "driver": (_STS, "name: efs.csi.aws.com", "name: ebs.csi.aws.com", "ignores"),
    "render": (_STS, "--operator --namespace", "--operators --namespace", "No such option"),
    "policy without its source": (_STS, "(../csi.md#aws)", "(../csi.md)", "not a file"),
    "Secret": (_OTHER, "provisioner-secret-namespace:", "provisioner-secret-space:", "provisioner-secret"),
    "ARN of a role": (_OTHER, "iam::444455556666:role", "iam::4444:role", "ARN of a role"),
    "grant": (_OTHER, "--secret kube-efs/", "--secret kube-efs:", "render fails"),
    "pattern": (_RECOVERY, "${.PVC.name}", "${.PVC.label}", "subPathPattern"),
    "claim of a pod": (_RECOVERY, "claimName: orders", "claimName: order", "no claim"),
    "efs": (_RECOVERY, "delete-replication-configuration", "delete-replication", "has no"),
    "option, in a pipe": (_AWS_DRIVER, "--no-pod-tokens |", "--no-tokens |", "No such option"),
}


@pytest.mark.parametrize(("page", "right", "wrong", "complaint"), _MISTAKES.values(), ids=_MISTAKES)
def test_planted_mistake_is_reported(page: str, right: str, wrong: str, complaint: str) -> None:
    text = _text(page)
    assert right in text
    assert any(complaint in one for one in problems(page, text.replace(right, wrong)))


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        pytest.param("kubectl efs migrate --yes -n team", [""], id="plug-in"),
        pytest.param("kubectl efs doctor claims", ["kubectl efs has no such command"], id="its command"),
        pytest.param("kubectl efs status --size", ["No such option: --size"], id="its option"),
        pytest.param("kube-efs status | oc apply -f -", ["", "is not a known program: oc"], id="pipe"),
        pytest.param(
            "pod=$(kubectl get pods -f a.yaml)", ["a.yaml is not a file of the page"], id="inner call"
        ),
        pytest.param(
            'rm "$(kube-efs stat)"',
            ["kube-efs has no such command", "is not a known program: rm"],
            id="quoted",
        ),
        pytest.param("aws efsx list", ["AWS has no service efsx"], id="service"),
    ],
)
def test_each_call_of_a_shell_text_is_checked(text: str, complaints: list[str]) -> None:
    assert [command_lines.problem(call) for call in command_lines.calls(text)] == complaints
