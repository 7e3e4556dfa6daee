"""Claims as requests of csi-provisioner to the driver, and the volumes that it writes."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from kube_efs.model.claims import Claim, DataSource, ReclaimPolicy, StorageClass
from kube_efs.model.csi.claims import CsiRequest, parse_claim, volume_for, volume_name
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import ClaimRefused
from kube_efs.model.volumes import DRIVER, ClaimReference, CsiSource, Volume

CLAIM = Claim(
    namespace="team",
    name="data",
    uid=ClaimUid("557b4436-ed73-11e6-84b3-06a700dda5f5"),
    resource_version="7",
    storage_class="efs",
    storage_provisioner="efs.csi.aws.com",
    access_modes=("ReadWriteMany",),
    requested_storage="5Gi",
)
NAME = "pvc-557b4436-ed73-11e6-84b3-06a700dda5f5"
CLASS = StorageClass(
    name="efs",
    provisioner=DRIVER,
    parameters={
        "provisioningMode": "efs-ap",
        "fileSystemId": "fs-0123456789abcdef0",
        "directoryPerms": "700",
    },
    mount_options=("tls",),
)
SECRET = "csi.storage.k8s.io/provisioner-secret-name"
NAMESPACE = "csi.storage.k8s.io/provisioner-secret-namespace"


def parsed(
    claim: Claim = CLAIM,
    storage_class: StorageClass = CLASS,
    parameters: Mapping[str, str] = MappingProxyType({}),
) -> CsiRequest:
    storage_class = replace(storage_class, parameters={**storage_class.parameters, **parameters})
    return parse_claim(claim, storage_class, required_bytes=5, has_driver_tags=False)


def test_request_has_name_size_and_claim() -> None:
    request = parsed()
    assert (request.volume.name, request.volume.required_bytes) == (NAME, 5)
    origin = request.volume.origin
    assert (origin.claim_name, origin.claim_namespace, origin.volume_name) == ("data", "team", NAME)
    assert (request.secret, request.warnings) == (None, ())


def test_volume_takes_fields_from_claim_and_class() -> None:
    claim = replace(CLAIM, attributes_class="gold")
    source = CsiSource(handle="efs:fs-0123456789abcdef0::fsap-0123456789abcdef0")
    assert volume_for(parsed(claim), source, "us-east-1a") == Volume(
        name=volume_name(CLAIM),
        reclaim_policy=ReclaimPolicy.DELETE,
        storage_class="efs",
        provisioned_by="efs.csi.aws.com",
        claim=ClaimReference(namespace="team", name="data", uid=CLAIM.uid),
        csi=source,
        zone="us-east-1a",
        attributes_class="gold",
        mount_options=("tls",),
        access_modes=("ReadWriteMany",),
        capacity="5Gi",
    )


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        pytest.param("kube-system", "x-account", ("kube-system", "x-account"), id="unchanged"),
        pytest.param("${pvc.namespace}", "${pvc.name}-${pv.name}", ("team", f"data-{NAME}"), id="filled in"),
        pytest.param("${pvc.uid}", "$x", ("${pvc.uid}", "$x"), id="other variables are kept"),
    ],
)
def test_secret_reference_is_read_as_csi_provisioner_does(
    namespace: str, name: str, expected: tuple[str, str]
) -> None:
    request = parsed(parameters={NAMESPACE: namespace, SECRET: name})
    assert request.secret == expected
    assert volume_for(request, CsiSource(handle="x"), None).deletion_secret == expected


@pytest.mark.parametrize("given", [SECRET, NAMESPACE])
def test_incomplete_secret_reference_is_refused(given: str) -> None:
    with pytest.raises(ClaimRefused) as caught:
        parsed(parameters={given: "x"})
    assert caught.value.field == f"StorageClass efs parameters.{given}"
    assert caught.value.remedy == f"give both {SECRET} and {NAMESPACE}"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"match_labels": {}}, "spec.selector", id="empty selector"),
        pytest.param({"is_block": True}, "spec.volumeMode", id="block device"),
        pytest.param({"data_source": DataSource(kind="Any", name="x")}, "spec.dataSource", id="copy"),
        pytest.param({"access_modes": ()}, "StorageClass efs volume capabilities", id="no mode"),
        pytest.param({"access_modes": ("ReadMostly",)}, "StorageClass efs access mode", id="unknown mode"),
    ],
)
def test_unsupported_claim_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ClaimRefused) as caught:
        parsed(replace(CLAIM, **changes))
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(
    "mode", ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"], ids=str
)
def test_every_kubernetes_access_mode_is_served(mode: str) -> None:
    assert parsed(replace(CLAIM, access_modes=(mode,))).claim.access_modes == (mode,)


def test_error_names_the_class_and_its_parameter() -> None:
    with pytest.raises(ClaimRefused) as caught:
        parsed(parameters={"directoryPerms": "rwx"})
    assert str(caught.value) == (
        "StorageClass efs directoryPerms: 'rwx' is not a valid octal mode; use three or four octal digits, "
        "such as 700"
    )


def test_cross_account_flag_is_not_a_mount_option() -> None:
    with pytest.raises(ClaimRefused, match="crossaccount"):
        parsed(storage_class=replace(CLASS, mount_options=("crossaccount",)))


ACCESS_POINT = "accesspoint=fsap-0123456789abcdef0"


@pytest.mark.parametrize(
    ("parameters", "options", "message"),
    [
        *(
            pytest.param(
                {"provisioningMode": mode},
                ("notls",),
                "'notls' contradicts TLS; leave it out",
                id=f"notls {mode}",
            )
            for mode in ("efs-ap", "efs-dir")
        ),
        pytest.param(
            {},
            ("tls", ACCESS_POINT),
            f"'{ACCESS_POINT}' is not the access point of the volume, which has its own; leave it out",
            id="another access point",
        ),
        pytest.param(
            {},
            ("iam=auto", "authenticationSource=pod"),
            "'iam=auto' excludes authenticationSource: pod; use iam",
            id="optional identity of the pod",
        ),
    ],
)
def test_mount_options_that_no_node_accepts_are_refused(
    parameters: dict[str, str], options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ClaimRefused) as caught:
        parsed(storage_class=replace(CLASS, mount_options=options), parameters=parameters)
    assert str(caught.value) == f"StorageClass efs mountOptions: {message}"


@pytest.mark.parametrize("options", [("tls",), ("iam", "awsprofile=x")])
def test_pod_that_does_not_sign_is_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(ClaimRefused, match="authenticationSource: 'pod'"):
        parsed(storage_class=replace(CLASS, mount_options=(*options, "authenticationSource=pod")))


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        *(
            ({"provisioningMode": mode}, options)
            for mode in ("efs-ap", "efs-dir")
            for options in (
                ("iam=auto",),
                ("iam", "awsprofile=x"),
                ("iam", "authenticationSource=pod"),
                ("ro",),
            )
        ),
        ({"provisioningMode": "efs-dir"}, (ACCESS_POINT,)),
        ({"provisioningMode": "s3files-ap"}, ("authenticationSource=pod",)),
        # The claim may get exactly this access point.
        ({"reuseAccessPoint": "true"}, (ACCESS_POINT,)),
    ],
)
def test_mount_options_that_nodes_accept_are_served(
    parameters: dict[str, str], options: tuple[str, ...]
) -> None:
    served = parsed(storage_class=replace(CLASS, mount_options=options), parameters=parameters)
    assert served.mount_options == options


@pytest.mark.parametrize("kind", ["", "efs", "s3files"])
def test_own_file_system_types_are_served(kind: str) -> None:
    assert parsed(parameters={"fsType": kind}).warnings == ()


@pytest.mark.parametrize("kind", ["nfs", "ext4", "s3", "EFS"])
def test_other_file_system_types_are_refused(kind: str) -> None:
    with pytest.raises(ClaimRefused) as caught:
        parsed(parameters={"csi.storage.k8s.io/fstype": kind})
    assert str(caught.value) == (
        f"StorageClass efs csi.storage.k8s.io/fstype: '{kind}' is not supported;"
        " leave it out, or use efs or s3files"
    )


def test_fields_without_effect_cause_a_warning() -> None:
    unread = {"csi.storage.k8s.io/node-publish-secret-name": "x"}
    unread["csi.storage.k8s.io/node-publish-secret-namespace"] = "x"
    request = parsed(replace(CLAIM, attributes_class="gold"), parameters={"basepath": "/x", **unread})
    assert request.secret is None
    assert request.warnings == (
        "parameter: 'basepath' is not known and has no effect; did you mean basePath?",
        (
            "parameter: 'csi.storage.k8s.io/node-publish-secret-name' has no effect because the driver does"
            " not read this Secret; leave it out"
        ),
        "spec.volumeAttributesClassName: 'gold' has no effect on EFS",
    )


def test_zone_without_a_role_has_no_effect() -> None:
    assert parsed(parameters={"az": "us-east-1a"}).warnings == (
        (
            "az: 'us-east-1a' has no effect without a provisioner secret, which is for another account;"
            " leave it out"
        ),
    )
    assert parsed(parameters={"az": "us-east-1a", SECRET: "role", NAMESPACE: "storage"}).warnings == ()


def test_role_in_a_secret_is_ignored_on_s3_files_with_a_warning() -> None:
    secret = {SECRET: "role", NAMESPACE: "storage"}
    request = parsed(parameters={"provisioningMode": "s3files-ap", **secret})
    assert request.warnings == ("provisioner secret: a role has no effect on S3 Files, as in the AWS driver",)
    assert parsed(parameters=secret).warnings == ()


@pytest.mark.parametrize("options", [("iam",), ("tls,iam",), ("iam=auto",)])
def test_class_whose_file_systems_need_an_identity_must_mount_with_one(options: tuple[str, ...]) -> None:
    parameters = {"provisioningMode": "efs-fs", "fileSystemPolicy": "tls-and-iam"}
    on_own = {key: value for key, value in CLASS.parameters.items() if key != "fileSystemId"}
    storage_class = replace(CLASS, parameters={**on_own, **parameters})
    assert parsed(storage_class=storage_class).warnings == (
        "mountOptions: iam is missing, so no pod can mount the volumes (fileSystemPolicy: tls-and-iam)",
    )
    assert parsed(storage_class=replace(storage_class, mount_options=options)).warnings == ()
    with_tls = replace(storage_class, parameters={**on_own, **parameters, "fileSystemPolicy": "tls"})
    assert parsed(storage_class=with_tls).warnings == ()
