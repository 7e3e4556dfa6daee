"""OpenShift's TLS profiles."""

from typing import Any

import pytest

from kube_efs.operator.cluster_facts import TlsProfile, read_tls_profile


def custom(version: str, *ciphers: str) -> dict[str, Any]:
    return {"type": "Custom", "custom": {"minTLSVersion": version, "ciphers": list(ciphers)}}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(None, TlsProfile(), id="none"),
        pytest.param({"type": "Intermediate"}, TlsProfile(), id="intermediate"),
        pytest.param({"type": "Old"}, TlsProfile(), id="old"),
        pytest.param({"type": "Modern"}, TlsProfile(min_version="1.3"), id="modern"),
        pytest.param(custom("VersionTLS13"), TlsProfile(min_version="1.3"), id="version only"),
        pytest.param(
            custom("VersionTLS11", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"),
            TlsProfile(ciphers=("ECDHE-RSA-AES128-GCM-SHA256",)),
            id="ciphers of TLS 1.2",
        ),
        pytest.param(
            custom("VersionTLS12", "ALL:@SECLEVEL=0", "!AES"), TlsProfile(), id="commands instead of ciphers"
        ),
    ],
)
def test_tls_profile_sets_minimum_version_and_ciphers(
    profile: dict[str, Any] | None, expected: TlsProfile
) -> None:
    assert read_tls_profile({"spec": {"tlsSecurityProfile": profile}}) == expected


@pytest.mark.parametrize("api_server", [None, {}, {"spec": None}], ids=["no such kind", "empty", "no spec"])
def test_cluster_without_tls_profile_gets_the_default(api_server: dict[str, Any] | None) -> None:
    assert read_tls_profile(api_server) == TlsProfile()
