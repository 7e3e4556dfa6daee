"""Additions to the workloads of the manifests."""

from typing import Any

import pytest

from kube_efs.operator import injection
from kube_efs.operator.manifests import Manifest

CLUSTER_NAMESPACE = "openshift-cluster-csi-drivers"


def workload(env: list[dict[str, str]] | None = None) -> Manifest:
    container: dict[str, Any] = {"name": "main", "image": "i", **({"env": env} if env else {})}
    return {
        "kind": "Deployment",
        "metadata": {"name": "w"},
        "spec": {"template": {"metadata": {}, "spec": {"containers": [container]}}},
    }


def container(manifest: Manifest) -> Any:
    (found,) = manifest["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        ("aws-efs-cloud-credentials", "secret", "dep-340805f94e9e0169f8aaba947f225d6060a77"),
        (
            "aws-efs-csi-driver-controller-metrics-serving-cert",
            "secret",
            "dep-a4064f98200a0c1db47115402745920c1e538",
        ),
        ("aws-efs-csi-driver-trusted-ca-bundle", "configmap", "dep-3d49a98abf1eb74a874b28f6d90b057497472"),
    ],
)
def test_dependency_annotations_have_the_keys_of_openshift_operators(name: str, kind: str, key: str) -> None:
    assert injection.dependency_key(CLUSTER_NAMESPACE, name, kind) == f"operator.openshift.io/{key}"


def test_short_dependency_annotation_is_not_hashed() -> None:
    assert injection.dependency_key("efs", "keys", "secret") == "operator.openshift.io/dep-efs.keys.secret"


def test_variables_replace_variables_of_the_same_name() -> None:
    given = workload([{"name": "A", "value": "old"}, {"name": "B", "value": "kept"}])
    found = injection.with_environment(given, {"A": "new", "C": ""})
    assert container(found)["env"] == [{"name": "B", "value": "kept"}, {"name": "A", "value": "new"}]
    assert container(given)["env"][0] == {"name": "A", "value": "old"}


def test_workload_is_unchanged_without_variables() -> None:
    assert injection.with_environment(workload(), {}) == workload()
    assert injection.with_dependencies(workload(), {}) == workload()


def test_dependency_annotations_are_on_the_workload_and_its_pod_template() -> None:
    found = injection.with_dependencies(workload(), {"a": "1"})
    assert found["metadata"]["annotations"] == {"a": "1"}
    assert found["spec"]["template"]["metadata"]["annotations"] == {"a": "1"}


def test_controller_gets_credentials_from_an_optional_secret() -> None:
    found = injection.with_credentials(workload())
    references = [one["valueFrom"]["secretKeyRef"] for one in container(found)["env"] if "valueFrom" in one]
    assert [one["key"] for one in references] == ["aws_access_key_id", "aws_secret_access_key"]
    assert all(one["optional"] for one in references)
    secret, token = found["spec"]["template"]["spec"]["volumes"]
    assert secret["secret"] == {"secretName": "aws-efs-cloud-credentials", "optional": True}
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "openshift"
    assert all(mount["readOnly"] for mount in container(found)["volumeMounts"])


def test_calls_to_aws_trust_the_mounted_ca_bundle() -> None:
    found = injection.with_trusted_ca(workload())
    (variable,) = container(found)["env"]
    (mount,) = container(found)["volumeMounts"]
    assert variable["value"] == f"{mount['mountPath']}/tls-ca-bundle.pem"


def test_spec_hash_changes_with_the_specification() -> None:
    hashes = {
        injection.with_spec_hash(one)["metadata"]["annotations"][injection.SPEC_HASH]
        for one in (workload(), workload(), injection.with_replicas(workload(), 2))
    }
    assert len(hashes) == 2
