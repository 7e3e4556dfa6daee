"""Which pods use volumes, and which older pod can therefore be deleted."""

from typing import Any, cast

from lightkube.models.core_v1 import EphemeralVolumeSource, Volume
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.operator.takeover import select_pod
from kube_efs.operator.volumes_in_use import VolumeUse, describe_pods, volume_uses_of


def volume(name: str, **spec: Any) -> PersistentVolume:
    body = {"metadata": {"name": name}, "spec": spec}
    return cast("PersistentVolume", PersistentVolume.from_dict(body))


def claim(name: str, volume_name: str, namespace: str = "team") -> PersistentVolumeClaim:
    metadata = {"name": name, "namespace": namespace}
    body = {"metadata": metadata, "spec": {"volumeName": volume_name}}
    return cast("PersistentVolumeClaim", PersistentVolumeClaim.from_dict(body))


def pod(name: str, *claims: str, node: str = "a", phase: str = "Running", **fields: Any) -> Pod:
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    body = {
        "metadata": {"name": name, "namespace": "team", **fields},
        "spec": {"nodeName": node, "containers": [], "volumes": volumes},
        "status": {"phase": phase},
    }
    return cast("Pod", Pod.from_dict(body))


VOLUMES = [
    volume("driver", csi={"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}),
    volume("tunnel", nfs={"server": "127.0.0.1", "path": "/"}),
    volume("disk", csi={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}),
    volume("office", nfs={"server": "nas.example.com", "path": "/"}),
]
CLAIMS = [claim(one, one) for one in ("driver", "tunnel", "disk", "office")]


def test_pods_on_nodes_that_use_driver_or_tunnel_volumes_are_found() -> None:
    pods = [
        pod("web", "driver", "disk"),
        pod("job", "tunnel", node="b"),
        pod("ended", "driver", phase="Succeeded"),
        pod("waiting", "driver", node=""),
        pod("other", "disk", "office"),
    ]
    assert volume_uses_of(pods, CLAIMS, VOLUMES) == (
        VolumeUse(node="a", namespace="team", pod="web", claim="driver"),
        VolumeUse(node="b", namespace="team", pod="job", claim="tunnel", by_driver=False),
    )


def test_claim_of_the_same_name_in_another_namespace_is_ignored() -> None:
    assert volume_uses_of([pod("web", "driver")], [claim("driver", "driver", "elsewhere")], VOLUMES) == ()


def test_claims_of_ephemeral_volumes_are_found() -> None:
    web = pod("web")
    assert web.spec
    web.spec.volumes = [Volume(name="scratch", ephemeral=EphemeralVolumeSource())]
    (found,) = volume_uses_of([web], [claim("web-scratch", "driver")], VOLUMES)
    assert found.claim == "web-scratch"


def test_only_the_first_ten_pods_are_named() -> None:
    uses = [VolumeUse(node="a", namespace="t", pod=f"p{number:02}", claim="c") for number in range(12)]
    assert describe_pods(uses).endswith("t/p09 and 2 more")


def test_older_pod_is_selected_on_a_node_without_volumes_in_use() -> None:
    older = [pod("old-a"), pod("old-b", node="b")]
    selected, waiting = select_pod(older, [VolumeUse(node="a", namespace="team", pod="web", claim="driver")])
    assert selected is older[1]
    assert waiting.startswith("node a keeps the older driver while team/web use its volumes (drain")


def test_no_older_pod_is_selected_while_one_is_being_deleted() -> None:
    deleting = pod("old-a", deletionTimestamp="2026-11-21T12:00:00Z")
    assert select_pod([deleting, pod("old-b", node="b")], [])[0] is None
