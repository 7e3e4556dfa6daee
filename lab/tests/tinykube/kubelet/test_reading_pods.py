from typing import Any

import pytest
from lightkube.codecs import from_dict

from tinykube.kubelet.pods import (
    AccountToken,
    ClaimSource,
    Csi,
    EmptyDir,
    EnvVar,
    Files,
    HostPath,
    Identity,
    KeyReference,
    Nfs,
    Phase,
    PodFields,
    Projected,
    RestartPolicy,
    Store,
    Unsupported,
    VolumeMount,
    read_bound,
    read_pod,
)


def pod(spec: dict[str, Any] | None = None, **fields: Any) -> Any:
    metadata = {"name": "web", "namespace": "team", "uid": "u", **fields.pop("metadata", {})}
    body = {"containers": [{"name": "main"}], **(spec or {})}
    found: Any = from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body, **fields})
    return read_pod(found)


def test_defaults() -> None:
    found = pod()
    assert (found.restart_policy, found.grace_seconds, found.phase) == (
        RestartPolicy.ALWAYS,
        30.0,
        Phase.PENDING,
    )
    assert found.containers[0].message_path == "/dev/termination-log"
    assert not found.deleting


@pytest.mark.parametrize(
    ("spec", "metadata", "seconds"),
    [
        ({"terminationGracePeriodSeconds": 0}, {}, 0.0),
        ({"terminationGracePeriodSeconds": 5}, {}, 5.0),
        ({"terminationGracePeriodSeconds": 5}, {"deletionGracePeriodSeconds": 1}, 1.0),
    ],
    ids=["none at all", "the pod's", "the deletion's"],
)
def test_grace(spec: dict[str, Any], metadata: dict[str, Any], seconds: float) -> None:
    assert pod(spec, metadata=metadata).grace_seconds == seconds


@pytest.mark.parametrize(
    ("volume", "source"),
    [
        ({"emptyDir": {}}, EmptyDir()),
        ({"hostPath": {"path": "/x", "type": "File"}}, HostPath(path="/x", kind="File")),
        (
            {"nfs": {"server": "s", "path": "/p", "readOnly": True}},
            Nfs(server="s", path="/p", read_only=True),
        ),
        ({"persistentVolumeClaim": {"claimName": "c"}}, ClaimSource(claim_name="c")),
        (
            {
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                        {"configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}},
                        {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "f"}}]}},
                    ],
                    "defaultMode": 0o600,
                }
            },
            Projected(
                sources=(
                    AccountToken(path="token", seconds=3607),
                    Files(store=Store.CONFIG_MAP, name="m", paths={"k": "p"}),
                    PodFields(paths={"p": "f"}),
                ),
                mode=0o600,
            ),
        ),
        (
            {"secret": {"secretName": "s", "optional": True}},
            Projected(sources=(Files(store=Store.SECRET, name="s", optional=True),)),
        ),
        ({"configMap": {"name": "m"}}, Unsupported(kind="configMap")),
        ({"csi": {"driver": "efs.csi.aws.com"}}, Unsupported(kind="csi")),
    ],
    ids=[
        "emptyDir",
        "hostPath",
        "nfs",
        "claim",
        "projected",
        "secret",
        "configMap",
        "another",
    ],
)
def test_volumes(volume: dict[str, Any], source: object) -> None:
    found = pod({"volumes": [{"name": "v", **volume}]}).volumes[0]
    assert (found.name, found.source) == ("v", source)


def test_container() -> None:
    secret = {"name": "s", "key": "k", "optional": True}
    container = {
        "name": "main",
        "command": ["a"],
        "args": ["b"],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "C", "valueFrom": {"secretKeyRef": secret}},
        ],
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
        "securityContext": {"runAsUser": 0, "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    found = pod({"containers": [container], "securityContext": {"runAsUser": 5}})
    main = found.containers[0]
    assert (main.command, main.args) == (("a",), ("b",))
    assert main.env == (
        EnvVar(name="A", value="1"),
        EnvVar(name="B", field_path="metadata.name"),
        EnvVar(name="C", reference=KeyReference(store=Store.SECRET, name="s", key="k", optional=True)),
    )
    assert main.mounts == (VolumeMount(volume="v", path="/v", read_only=True),)
    assert (main.identity, main.read_only_root, main.message_from_logs) == (Identity(uid=0), True, True)
    assert found.identity == Identity(uid=5)


def test_persistent_volume() -> None:
    spec = {"nfs": {"server": "127.0.0.1", "path": "/a"}, "mountOptions": ["port=1"]}
    volume: Any = from_dict(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec}
    )
    assert read_bound(volume) == Nfs(server="127.0.0.1", path="/a", options=("port=1",))
    volume.spec.nfs = None
    assert isinstance(read_bound(volume), Unsupported)


def test_persistent_volume_of_a_csi_driver() -> None:
    csi = {
        "driver": "efs.csi.aws.com",
        "volumeHandle": "fs-1::fsap-1",
        "volumeAttributes": {"encryptInTransit": "true"},
        # It is for attaching only; whether a pod may write is its own claim's to say.
        "readOnly": True,
    }
    spec = {"csi": csi, "mountOptions": ["tls"], "accessModes": ["ReadWriteMany", "ReadOnlyMany"]}
    volume: Any = from_dict(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec}
    )
    assert read_bound(volume) == Csi(
        driver="efs.csi.aws.com",
        handle="fs-1::fsap-1",
        volume="v",
        access_mode="ReadWriteMany",
        attributes={"encryptInTransit": "true"},
        options=("tls",),
    )
