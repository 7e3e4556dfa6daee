"""Volume attributes: a case for each row of the contract's table."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.csi.errors import InvalidArgument, RpcCode
from kube_efs.model.csi.volume_attributes import (
    AuthenticationSource,
    VolumeAttributes,
    ZoneAddress,
    parse_attributes,
    render_attributes,
)
from kube_efs.model.efs.ids import ZoneName


def by_zone(**addresses: str) -> tuple[ZoneAddress, ...]:
    return tuple(ZoneAddress(zone=ZoneName(zone), address=address) for zone, address in addresses.items())


NONE = VolumeAttributes()


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        pytest.param({}, NONE, id="nothing"),
        pytest.param({"storage.kubernetes.io/csiProvisionerIdentity": "1-2-efs"}, NONE, id="sidecar's"),
        pytest.param({"csi.storage.k8s.io/pod.name": "web"}, NONE, id="kubelet's"),
        *(
            pytest.param(
                {"encryptInTransit": text}, VolumeAttributes(encrypted=value), id=f"encrypted {text}"
            )
            for value, texts in [(True, "1 t T true True TRUE"), (False, "0 f F false False FALSE")]
            for text in texts.split()
        ),
        pytest.param({"ENCRYPTINTRANSIT": "f"}, VolumeAttributes(encrypted=False), id="key in uppercase"),
        pytest.param({"mounttargetip": "10.0.0.1"}, VolumeAttributes(address="10.0.0.1"), id="IPv4"),
        pytest.param({"MountTargetIp": "FD00::0:1"}, VolumeAttributes(address="fd00::1"), id="IPv6"),
        pytest.param(
            {"mounttargetipmap": '{"b": "10.0.0.2", "a": "10.0.0.1"}'},
            VolumeAttributes(addresses=by_zone(a="10.0.0.1", b="10.0.0.2")),
            id="map",
        ),
        pytest.param({"mounttargetipmap": "{}"}, NONE, id="empty map"),
        pytest.param({"crossaccount": "1"}, VolumeAttributes(cross_account=True), id="another account"),
        pytest.param(
            {"AuthenticationSource": "pod"},
            VolumeAttributes(authentication_source=AuthenticationSource.POD),
            id="identity of the pod",
        ),
        pytest.param({"crossaccount": "false"}, NONE, id="same account"),
    ],
)
def test_valid_attributes_are_parsed(attributes: Mapping[str, str], expected: VolumeAttributes) -> None:
    assert parse_attributes(attributes) == expected


ONLY = "use encryptInTransit, mounttargetip, mounttargetipmap, crossaccount and authenticationSource only"
NO_MAP = 'use {"ZONE":"ADDRESS"}'


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        pytest.param(
            {"path": "/a"},
            "volume attribute: 'path' is not supported; put the path into the volume handle",
            id="path",
        ),
        pytest.param(
            {"az": "x"}, f"volume attribute: 'az' is not supported; {ONLY}", id="az is a mount flag"
        ),
        pytest.param({"": ""}, f"volume attribute: is not supported; {ONLY}", id="no name"),
        pytest.param(
            {"crossaccount": "true", "crossAccount": "true"},
            "volume attribute: 'crossAccount' is given twice; give it once",
            id="in two spellings",
        ),
        pytest.param(
            {"encryptInTransit": ""},
            "encryptInTransit: is not a boolean; use true or false",
            id="encryption empty",
        ),
        pytest.param(
            {"encryptInTransit": "no"}, "encryptInTransit: 'no' is not a boolean; use true or false", id="no"
        ),
        pytest.param({"crossaccount": "y"}, "crossaccount: 'y' is not a boolean; use true or false", id="y"),
        *(
            pytest.param(
                {"mounttargetip": text},
                f"mounttargetip: {shown}is not an IP address; use an address, not a name",
                id=f"address {text!r}",
            )
            for text, shown in [
                ("", ""),
                ("fs.example", "'fs.example' "),
                ("10.0.0.1,ro", "'10.0.0.1,ro' "),
                ("10.0.0.1\n", "'10.0.0.1\\n' "),
                ("010.0.0.1", "'010.0.0.1' "),
            ]
        ),
        pytest.param(
            {"mounttargetip": "fe80::1%eth0,ro"},
            "mounttargetip: 'fe80::1%eth0,ro' has a zone index; use a global address",
            id="zone index with an option",
        ),
        *(
            pytest.param(
                {"mounttargetipmap": text},
                f"mounttargetipmap: {shown}is not a JSON object; {NO_MAP}",
                id=name,
            )
            for name, text, shown in [
                ("no text", "", ""),
                ("a list", "[]", "'[]' "),
                ("no JSON", "{a:1}", "'{a:1}' "),
            ]
        ),
        pytest.param(
            {"authenticationSource": "Pod"},
            "authenticationSource: 'Pod' is not an authentication source; use driver or pod",
            id="authentication source",
        ),
        pytest.param(
            {"mounttargetipmap": '{"a": 1}'},
            "mounttargetipmap: 1 is not an IP address; use an address, not a name",
            id="number in a map",
        ),
        pytest.param(
            {"mounttargetipmap": '{"a,b": "10.0.0.1"}'},
            "mounttargetipmap: 'a,b' is not valid; use a name such as us-east-1a",
            id="zone with an option",
        ),
    ],
)
def test_invalid_attributes_are_refused(attributes: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_attributes(attributes)
    assert str(caught.value) == message
    assert caught.value.code is RpcCode.INVALID_ARGUMENT


def test_deeply_nested_map_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is not a JSON object"):
        parse_attributes({"mounttargetipmap": "[" * 100_000})


MAP = VolumeAttributes(addresses=by_zone(**{"use1-az2": "10.0.0.2", "us-east-1a": "10.0.0.9"}))


@pytest.mark.parametrize(
    ("attributes", "zones", "address", "is_far"),
    [
        pytest.param(NONE, ("us-east-1a",), None, False, id="not set"),
        pytest.param(MAP, ("use1-az2", "us-east-1a"), "10.0.0.2", False, id="id before the name"),
        pytest.param(MAP, ("use1-az7", "us-east-1a"), "10.0.0.9", False, id="name"),
        pytest.param(MAP, ("use1-az7", "us-east-1b"), "10.0.0.9", True, id="unknown zone: first address"),
        pytest.param(MAP, (), "10.0.0.9", True, id="node without a zone"),
        pytest.param(
            VolumeAttributes(address="10.0.0.1", addresses=MAP.addresses),
            ("use1-az2",),
            "10.0.0.1",
            False,
            id="one address wins over the map",
        ),
    ],
)
def test_address_is_selected_by_the_zone_of_the_node(
    attributes: VolumeAttributes, zones: tuple[str, ...], address: str | None, is_far: bool
) -> None:
    assert attributes.address_in(*zones) == address
    assert attributes.is_far_from(*zones) is is_far


ADDRESSES = st.ip_addresses().filter(lambda ip: not ip.is_multicast and not ip.is_unspecified).map(str)
ZONES = st.from_regex(r"[a-z]{2}-[a-z]{4,9}-[1-9][a-f]|[a-z0-9]{3,5}-az[1-9]", fullmatch=True)
ATTRIBUTES = st.builds(
    lambda encrypted, address, addresses, cross, source: VolumeAttributes(
        encrypted=encrypted,
        address=address,
        addresses=tuple(
            ZoneAddress(zone=ZoneName(zone), address=addresses[zone]) for zone in sorted(addresses)
        ),
        cross_account=cross,
        authentication_source=source,
    ),
    st.none() | st.booleans(),
    st.none() | ADDRESSES,
    st.dictionaries(ZONES, ADDRESSES, max_size=4),
    st.booleans(),
    st.none() | st.sampled_from(AuthenticationSource),
)


@given(ATTRIBUTES)
def test_rendered_attributes_parse_to_the_same_value(attributes: VolumeAttributes) -> None:
    assert parse_attributes(render_attributes(attributes)) == attributes


KEYS = st.sampled_from(["encryptInTransit", "mounttargetip", "mounttargetipmap", "crossaccount"])


@given(st.dictionaries(KEYS | st.text(), st.text() | st.sampled_from(["true", "10.0.0.1", '{"a":"::1"}'])))
def test_any_attributes_are_refused_or_contain_addresses(given_attributes: dict[str, str]) -> None:
    try:
        attributes = parse_attributes(given_attributes)
    except InvalidArgument:
        return
    address = attributes.address_in("a")
    assert address is None or set(address) <= set("0123456789abcdef.:")
