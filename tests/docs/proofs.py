"""What is checked of pages before anything of them is run: manifests, policies, and the words of commands.

Manifests go through the parsers of the product, policies through its list of actions, commands through the
parsers of their programs (``command_lines``). ``problems`` reports what none of them accepts.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml
from tests.docs import command_lines
from tests.docs.blocks import SESSION, SHELL, Block, read_blocks

from kube_efs.doctor.checks.common import VolumeKind
from kube_efs.doctor.checks.storage_classes import judge_class
from kube_efs.doctor.policies import Access
from kube_efs.kube.reading import read_claim, read_storage_class
from kube_efs.model.csi.claims import parse_claim
from kube_efs.model.csi.cross_account import ROLE_ARN, parse_provisioner_secret
from kube_efs.model.errors import InvalidValue, KubeEfsError
from kube_efs.model.names import NameSet
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.cluster_csi_driver import ManagementState, read_driver_resource
from kube_efs.operator.manifests import RenderOptions, load_asset, render_manifests
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform

_ROOT: Final = Path(__file__).parents[2]
_PROVISIONERS: Final = {
    "efs.csi.aws.com": VolumeKind.CSI,
    "gnuthought.com/efs-stunnel": VolumeKind.TUNNEL,
    "example.com/aws-efs": VolumeKind.DIRECTORY,
}
_EFS, _S3_FILES = "elasticfilesystem", "s3files"
_OF_STS: Final = frozenset({"sts:AssumeRole", "sts:AssumeRoleWithWebIdentity", "sts:TagSession"})
_OF_POD_IDENTITY: Final = {"sts:AssumeRole", "sts:TagSession"}
_ACCOUNT: Final = re.compile(r"system:serviceaccount:(?P<namespace>[\w-]+):(?P<name>[\w-]+)")
_PROVIDER: Final = re.compile(r"arn:aws:iam::[0-9]{12}:oidc-provider/(?P<name>\S+)")
_OURS: Final = re.compile(r"(?<![\w.-])kube-efs-[a-z]+(?![\w-])")
# Files that a page has from elsewhere: a policy of the reference, manifests that the reader has edited.
_LINKED: Final = {
    "policy.json": "(../csi.md#aws)",
    "rbac.yaml": "(../efs-provisioner.md#step-by-step)",
    "deployment.yaml": "(../efs-provisioner.md#step-by-step)",
}
_INLINE: Final = re.compile(r"`((?:aws|kubectl efs|kube-efs) [a-z][^`]*)`")


def problems(page: str, text: str) -> list[str]:
    """What is not accepted in a page, with the line of its block."""
    blocks = list(read_blocks(page, text))
    documents = {one.file for one in blocks if one.file}
    documents |= {name for name, link in _LINKED.items() if link in text}
    found = [
        f"{page}:{one.line}: {problem}" for one in blocks for problem in _of_block(one, blocks, documents)
    ]
    for inline in _INLINE.findall(text):
        # "…" stands for words that the reader knows.
        words = [word for word in " ".join(inline.split()).split(" ") if word != "…"]
        if words[:2] != ["kube-efs", "doctor"] and (
            problem := command_lines.problem(words, documents=documents, is_complete=False)
        ):
            found.append(f"{page}: `{inline}`: {problem}")
    return found


def _of_block(block: Block, blocks: list[Block], documents: set[str]) -> Iterator[str]:
    try:
        match block.language:
            case "yaml":
                yield from _of_manifests(block, blocks)
            case "json":
                yield from policy_problems(json.loads(block.text))
            case "console" | "sh":
                yield from _of_shell(block, documents)
            case _:
                pass
    except (ValueError, yaml.YAMLError) as error:
        yield f"cannot be read: {error}"


def _of_shell(block: Block, documents: set[str]) -> Iterator[str]:
    assert block.language in {SESSION, SHELL}
    texts = [one.text for one in block.commands] if block.language == SESSION else [block.text]
    for text in texts:
        for call in command_lines.calls(text):
            if problem := command_lines.problem(call, documents=documents):
                yield f"{' '.join(call)}: {problem}"
            for name in _OURS.findall(" ".join(call)):
                if name not in installed_names():
                    yield f"{' '.join(call)}: no object is named {name}"


@cache
def installed_names() -> frozenset[str]:
    """The names of all objects that kube-efs can install."""
    found = set()
    for names in NameSet:
        options = RenderOptions(platform=Platform.OPENSHIFT, csi=True, names=names)
        for one in (*render_manifests(options), *render_operator(options)):
            found.add(one["metadata"]["name"])
    return frozenset(found)


# --- manifests


def _of_manifests(block: Block, blocks: list[Block]) -> Iterator[str]:
    for document in yaml.safe_load_all(block.text):
        if not isinstance(document, dict):
            yield "is not an object"
        elif "kind" not in document:
            yield from _of_values(document)
        else:
            try:
                yield from _of_manifest(document, blocks)
            except (KubeEfsError, KeyError) as error:
                yield f"{document['kind']}: {error!r}"


def _of_values(values: Mapping[str, Any]) -> Iterator[str]:
    schema = json.loads((_ROOT / "deploy/helm/kube-efs/values.schema.json").read_text(encoding="utf-8"))
    for error in jsonschema.Draft7Validator(schema).iter_errors(values):
        yield f"the chart refuses the values: {error.message}"


def _of_manifest(document: Mapping[str, Any], blocks: list[Block]) -> Iterator[str]:
    match document["kind"]:
        case "StorageClass":
            yield from _of_class(document)
        case "PersistentVolumeClaim":
            yield from _of_claim(document, blocks)
        case "Pod":
            claims = {one["metadata"]["name"] for one in _objects(blocks, "PersistentVolumeClaim")}
            for volume in document["spec"].get("volumes", ()):
                if volume["persistentVolumeClaim"]["claimName"] not in claims:
                    yield f"Pod: the page has no claim for the volume {volume['name']}"
        case "ClusterCSIDriver":
            yield from _of_driver(document)
        case "Secret":
            parse_provisioner_secret(document["stringData"])
        case kind:
            yield f"{kind} is a kind without a check"


def _of_class(document: Mapping[str, Any]) -> Iterator[str]:
    found = read_storage_class(document)
    kind = _PROVISIONERS.get(found.provisioner)
    if kind is None:
        yield f"StorageClass {found.name}: {found.provisioner} is not a provisioner of kube-efs"
        return
    try:
        yield from (
            f"StorageClass {found.name}: {text}" for text in judge_class(found, kind, has_driver_tags=False)
        )
    except InvalidValue as error:
        yield f"StorageClass {found.name}: {error}"


def _of_claim(document: Mapping[str, Any], blocks: list[Block]) -> Iterator[str]:
    meta = {"namespace": "default", "uid": "0", **document["metadata"]}
    claim = read_claim({**document, "metadata": meta})
    classes = {one["metadata"]["name"]: one for one in _objects(blocks, "StorageClass")}
    found = classes.get(claim.storage_class or "")
    if found is None:
        # That of the manifests of efs-provisioner.
        if claim.storage_class != "aws-efs":
            yield f"claim {claim.name}: the page has no class {claim.storage_class}"
    elif found["provisioner"] == DRIVER:
        parse_claim(claim, read_storage_class(found), required_bytes=1, has_driver_tags=False)


def _of_driver(document: Mapping[str, Any]) -> Iterator[str]:
    found = read_driver_resource(document)
    if document["metadata"]["name"] != DRIVER:
        yield f"ClusterCSIDriver: the operator ignores {document['metadata']['name']}"
    if found.state is ManagementState.UNKNOWN:
        yield f"ClusterCSIDriver: the operator does not support {found.stated_state}"
    (definition,) = load_asset("cluster-csi-driver-crd")
    (version,) = definition["spec"]["versions"]
    known = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    yield from (f"ClusterCSIDriver: has no field {name}" for name in document["spec"] if name not in known)


def _objects(blocks: list[Block], kind: str) -> Iterator[Mapping[str, Any]]:
    for block in blocks:
        if block.language == "yaml":
            yield from (
                one
                for one in yaml.safe_load_all(block.text)
                if isinstance(one, dict) and one.get("kind") == kind
            )


# --- policies


@cache
def requested_actions() -> frozenset[str]:
    """The actions that the product itself requests for its controller."""
    (request,) = load_asset("credentials-request")
    (statement,) = request["spec"]["providerSpec"]["statementEntries"]
    return frozenset(statement["action"])


def policy_problems(policy: Mapping[str, Any]) -> Iterator[str]:
    """What AWS or kube-efs would not understand in a policy of an identity, a role or a file system."""
    if policy.get("Version") != "2012-10-17" or not isinstance(policy.get("Statement"), list):
        yield "is not a policy"
        return
    for statement in policy["Statement"]:
        actions = statement["Action"]
        actions = [actions] if isinstance(actions, str) else actions
        yield from (f"{action} is not an action" for action in actions if not _is_action(action))
        if "Principal" in statement:
            yield from _of_trust(statement, set(actions))
        elif "Resource" not in statement:
            yield "a statement has no Resource"
        elif "sts:AssumeRole" in actions and not ROLE_ARN.fullmatch(statement["Resource"]):
            yield f"is not the ARN of a role: {statement['Resource']}"


def _is_action(action: str) -> bool:
    service, _, name = action.partition(":")
    if service == _S3_FILES:
        return name in set(Access) or _has_operation(service, name)
    if service == _EFS:
        known = {one.rpartition(":")[2] for one in requested_actions()} | set(Access)
        return name in known or (name.startswith("Describe") and _has_operation("efs", name))
    return action in _OF_STS or (service == "ec2" and _has_operation(service, name))


def _has_operation(service: str, name: str) -> bool:
    return name in {model.name for model in command_lines.operations(service).values()}


def _of_trust(statement: Mapping[str, Any], actions: set[str]) -> Iterator[str]:
    conditions = statement.get("Condition", {}).get("StringEquals", {})
    match statement["Principal"]:
        case {"Service": "pods.eks.amazonaws.com"}:
            if actions != _OF_POD_IDENTITY:
                yield f"EKS Pod Identity needs {' and '.join(sorted(_OF_POD_IDENTITY))}"
        case {"Federated": str(arn)}:
            provider = _PROVIDER.fullmatch(arn)
            account = _ACCOUNT.fullmatch(conditions.get(f"{provider['name']}:sub", "")) if provider else None
            if actions != {"sts:AssumeRoleWithWebIdentity"}:
                yield "an OIDC provider needs sts:AssumeRoleWithWebIdentity"
            if account is None:
                yield "the role is not limited to a service account of this OIDC provider"
            elif account["name"] not in installed_names():
                yield f"no service account is named {account['name']}"
        case {"AWS": str(arn)}:
            if not ROLE_ARN.fullmatch(arn):
                yield f"is not the ARN of a role: {arn}"
            if "sts:AssumeRole" not in actions:
                yield "another role needs sts:AssumeRole"
        case principal:
            yield f"the principal is not known: {principal}"
