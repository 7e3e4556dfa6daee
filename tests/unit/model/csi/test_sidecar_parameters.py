"""Parameters that csi-provisioner interprets itself, as its version 6.3 does."""

from collections.abc import Mapping

import pytest

from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.sidecar_parameters import (
    SecretTemplate,
    SidecarParameters,
    parse_sidecar_parameters,
)

PREFIX = "csi.storage.k8s.io/"


def secret(kind: str, name: str = "name") -> dict[str, str]:
    return {f"{PREFIX}{kind}-name": name, f"{PREFIX}{kind}-namespace": "team"}


def used(name: str = "name") -> SidecarParameters:
    return SidecarParameters(provisioner_secret=SecretTemplate(namespace="team", name=name))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({}, SidecarParameters(), id="none"),
        pytest.param({"basePath": "/a", "fstyp": "x"}, SidecarParameters(), id="those of the driver"),
        *(
            pytest.param({name: "efs"}, SidecarParameters(file_system_type="efs"), id=name)
            for name in ("fstype", "fsType", f"{PREFIX}fstype")
        ),
        pytest.param(secret("provisioner-secret"), used(), id="provisioner's Secret"),
        pytest.param(secret("secret"), used(), id="Secret for every call"),
        pytest.param(
            {**secret("secret", "any"), **secret("provisioner-secret")},
            used(),
            id="provisioner's Secret first",
        ),
    ],
)
def test_values_are_read(parameters: Mapping[str, str], expected: SidecarParameters) -> None:
    assert parse_sidecar_parameters(parameters) == expected


@pytest.mark.parametrize(
    "kind",
    [
        *("controller-publish-secret", "controller-expand-secret", "controller-modify-secret"),
        *("node-stage-secret", "node-publish-secret", "node-expand-secret"),
    ],
)
def test_secrets_that_the_driver_does_not_read_are_reported(kind: str) -> None:
    found = parse_sidecar_parameters(secret(kind))
    assert found.provisioner_secret is None
    (warning,) = found.warnings
    assert str(warning) == (
        f"parameter: '{PREFIX}{kind}-name' has no effect because the driver does not read this Secret;"
        " leave it out"
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        *(
            pytest.param(
                given,
                f"parameters.{PREFIX}node-publish-secret-{shown}: needs the other parameter too; give both"
                f" {PREFIX}node-publish-secret-name and {PREFIX}node-publish-secret-namespace",
                id=identity,
            )
            for identity, shown, given in [
                ("no namespace", "name", {f"{PREFIX}node-publish-secret-name": "x"}),
                ("no name", "namespace", {f"{PREFIX}node-publish-secret-namespace": "x"}),
                ("empty name", "namespace", secret("node-publish-secret", "")),
            ]
        ),
        pytest.param(
            {"fsType": "efs", f"{PREFIX}fstype": "efs"},
            f"parameters {PREFIX}fstype and fsType: exclude each other; give one of them",
            id="type twice",
        ),
        *(
            pytest.param(
                {name: "efs"},
                f"parameter: {name!r} is not known, and names with {PREFIX} are reserved; leave it out",
                id=name,
            )
            for name in (f"{PREFIX}fsType", f"{PREFIX}node-publish-secret", f"{PREFIX}pvc/name")
        ),
    ],
)
def test_what_csi_provisioner_refuses_is_refused(parameters: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_sidecar_parameters(parameters)
    assert str(caught.value) == message
