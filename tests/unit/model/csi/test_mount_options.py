"""Mount flags and the resulting mount: a case for each rule of the contract."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.csi.capabilities import AccessMode, VolumeCapability
from kube_efs.model.csi.errors import InvalidArgument, RpcCode
from kube_efs.model.csi.mount_options import IamIdentity, MountPlan, plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.ids import Region, ZoneName

FS, AP = "fs-abcd1234", "fsap-0123456789abcdef0"
WITH_AP = f"{FS}::{AP}"
ARN = "arn:aws:iam::123456789012:role/Reader=A"
DEFAULTS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,nosharecache"
PLAIN = {"encryptInTransit": "false"}


def plan(
    *flags: str,
    handle: str = FS,
    attributes: dict[str, str] | None = None,
    read_only: bool = False,
    mode: AccessMode = AccessMode.MULTI_NODE_MULTI_WRITER,
) -> MountPlan:
    return plan_mount(
        parse_volume_handle(handle),
        parse_attributes(attributes or {}),
        VolumeCapability(access_mode=mode, mount_flags=flags),
        read_only=read_only,
    )


# --- options for the kernel


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        pytest.param((), DEFAULTS, id="none"),
        pytest.param(("tls",), DEFAULTS, id="tls, as in the older example"),
        pytest.param(("rw", "noatime"), f"rw,noatime,{DEFAULTS}", id="default options are last"),
        pytest.param(("noatime", "noatime"), f"noatime,{DEFAULTS}", id="option twice"),
        pytest.param(("nconnect=4,noatime",), f"nconnect=4,noatime,{DEFAULTS}", id="two in one"),
        pytest.param(("", " noatime ", ","), f"noatime,{DEFAULTS}", id="blanks"),
        pytest.param(("NoATime", "Sec=SYS"), f"noatime,sec=SYS,{DEFAULTS}", id="values keep their case"),
        *(
            pytest.param(
                (flag,), f"{flag},{DEFAULTS.replace(default, '').replace(',,', ',').strip(',')}", id=flag
            )
            for flag, default in [
                ("nfsvers=4.0", "nfsvers=4.1"),
                ("vers=4.1", "nfsvers=4.1"),
                ("rsize=65536", "rsize=1048576"),
                ("wsize=65536", "wsize=1048576"),
                ("hard", "hard"),
                ("soft", "hard"),
                ("softerr", "hard"),
                ("timeo=10", "timeo=600"),
                ("retrans=5", "retrans=2"),
                ("noresvport", "noresvport"),
                ("resvport", "noresvport"),
                ("sharecache", "nosharecache"),
                ("nosharecache", "nosharecache"),
            ]
        ),
    ],
)
def test_mount_flags_become_kernel_options(flags: tuple[str, ...], options: str) -> None:
    planned = plan(*flags)
    assert planned.options() == options
    assert planned.options(20049) == f"{options},port=20049"


@pytest.mark.parametrize(
    ("handle", "server", "source"),
    [
        (FS, "127.0.0.1", "127.0.0.1:/"),
        (f"{FS}:a/../b/", "127.0.0.1", "127.0.0.1:/b"),
        (f"{FS}:/sub:{AP}", "127.0.0.1", "127.0.0.1:/sub"),
        (f"efs:{FS}:/base/./name", "127.0.0.1", "127.0.0.1:/base/name"),
        (FS, "fs-abcd1234.efs.us-east-1.amazonaws.com", "fs-abcd1234.efs.us-east-1.amazonaws.com:/"),
        (FS, "fd00::1", "[fd00::1]:/"),
    ],
)
def test_mount_source_is_built_from_the_handle_and_the_server(handle: str, server: str, source: str) -> None:
    assert plan(handle=handle).source(server) == source


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        pytest.param({"read_only": True}, f"ro,{DEFAULTS}", id="read-only request"),
        pytest.param(
            {"mode": AccessMode.MULTI_NODE_READER_ONLY}, f"ro,{DEFAULTS}", id="readers on many nodes"
        ),
        pytest.param(
            {"mode": AccessMode.SINGLE_NODE_READER_ONLY}, f"ro,{DEFAULTS}", id="readers on one node"
        ),
        pytest.param({"mode": AccessMode.SINGLE_NODE_SINGLE_WRITER}, DEFAULTS, id="one pod"),
    ],
)
def test_read_only_requests_add_ro(wanted: dict[str, Any], options: str) -> None:
    planned = plan(**wanted)
    assert planned.options() == options
    assert planned.read_only is options.startswith("ro")


def test_quotes_around_a_value_are_removed() -> None:
    assert plan('tls,az="us-east-1a"').zone == ZoneName("us-east-1a")


def test_file_of_authorities_is_for_the_tunnel_only() -> None:
    planned = plan('ro,cafile="/ca/Own-1.pem"')
    assert planned.ca_file == "/ca/Own-1.pem"
    assert planned.options() == f"ro,{DEFAULTS}"


def test_mount_flags_cannot_undo_a_read_only_request() -> None:
    assert plan("rw", "ro", read_only=True).options() == f"ro,{DEFAULTS}"
    assert plan("ro").read_only


# --- the tunnel


@pytest.mark.parametrize(
    ("handle", "attributes", "flags", "encrypted", "access_point"),
    [
        pytest.param(FS, {}, (), True, None, id="by default"),
        pytest.param(FS, {"encryptInTransit": "true"}, ("tls",), True, None, id="asked for twice"),
        pytest.param(FS, PLAIN, (), False, None, id="not wanted"),
        pytest.param(FS, PLAIN, ("notls",), False, None, id="not wanted, twice"),
        pytest.param(WITH_AP, {}, (), True, AP, id="access point"),
        pytest.param(WITH_AP, {}, ("iam", "tls"), True, AP, id="access point and IAM"),
    ],
)
def test_flags_and_attributes_select_encryption(
    handle: str, attributes: dict[str, str], flags: tuple[str, ...], encrypted: bool, access_point: str | None
) -> None:
    planned = plan(*flags, handle=handle, attributes=attributes)
    assert planned.encrypted is encrypted
    assert planned.handle.access_point_id == access_point
    assert planned.warnings == ()
    assert planned.options() == DEFAULTS


@pytest.mark.parametrize(
    ("flags", "identity"),
    [
        pytest.param((), None, id="none"),
        pytest.param(("iam",), IamIdentity(), id="credentials of the node"),
        pytest.param(("IAM", "awsprofile=Team"), IamIdentity(profile="Team"), id="profile in uppercase"),
        pytest.param(
            ("iam", f"rolearn={ARN}", "jwtpath=/var/run/Token", "awsprofile=x"),
            IamIdentity(role_arn=ARN, token_file="/var/run/Token"),
            id="web identity wins over a profile",
        ),
    ],
)
def test_flags_and_attributes_select_the_identity(
    flags: tuple[str, ...], identity: IamIdentity | None
) -> None:
    planned = plan(*flags)
    assert planned.iam == identity
    assert planned.warnings == ()
    assert planned.options() == DEFAULTS, "the kernel gets no more"


def test_optional_identity_is_tried_first_and_then_left_out() -> None:
    planned = plan("tls", "iam=auto")
    first, second = planned.attempts
    assert (first.iam, second.iam) == (IamIdentity(), None)
    assert second.attempts == (second,)
    assert planned.options() == DEFAULTS
    required = plan("tls", "iam")
    assert required.attempts == (required,)


def test_flags_for_the_tunnel_are_not_kernel_options() -> None:
    planned = plan("az=us-east-1a", "region=us-east-1", "ocsp", "verify=2", "mounttargetip=FD00::0:1")
    assert planned.zone == ZoneName("us-east-1a")
    assert planned.region == Region("us-east-1")
    assert planned.checks_revocation
    assert planned.attributes.address == "fd00::1"
    assert planned.options() == DEFAULTS
    assert not plan("noocsp").checks_revocation


# --- what is served all the same, with a warning


@pytest.mark.parametrize(
    ("handle", "attributes", "flags", "message"),
    [
        pytest.param(
            WITH_AP,
            PLAIN,
            (),
            "encryptInTransit: 'false' has no effect because the volume has an access point and is "
            "encrypted; leave it out",
            id="access point is always encrypted",
        ),
        pytest.param(
            WITH_AP,
            {},
            (f"AccessPoint={AP.upper()}",),
            "mountOptions: 'accesspoint' is deprecated; put it into the volume handle",
            id="equal access point as flag",
        ),
        pytest.param(
            FS,
            {},
            (f"accesspoint={AP}",),
            "mountOptions: 'accesspoint' is deprecated; put it into the volume handle",
            id="access point as flag only",
        ),
        *(
            pytest.param(FS, {}, (flag,), f"mountOptions: '{flag}' has no effect; leave it out", id=flag)
            for flag in (
                "awscredsuri=/v2/creds",
                "awscredsurix",
                "tlsport=20100",
                "stunnel",
                "nodirects3read",
                "nos3readcache",
            )
        ),
        pytest.param(
            FS,
            {"crossaccount": "true"},
            ("az=us-east-1a",),
            "mountOptions: 'az=us-east-1a' has no effect because a file system of another account uses the "
            "zone ID of the node; leave it out",
            id="zone and another account",
        ),
        pytest.param(
            FS,
            {},
            (f"rolearn={ARN}", "jwtpath=/t"),
            "mountOptions: 'jwtpath' has no effect; use iam, rolearn and jwtpath together",
            id="web identity without iam",
        ),
        pytest.param(
            FS,
            {},
            ("iam", f"rolearn={ARN}"),
            "mountOptions: 'rolearn' has no effect; use iam, rolearn and jwtpath together",
            id="half a web identity",
        ),
    ],
)
def test_flags_without_effect_cause_a_warning(
    handle: str, attributes: dict[str, str], flags: tuple[str, ...], message: str
) -> None:
    planned = plan(*flags, handle=handle, attributes=attributes)
    assert [str(warning) for warning in planned.warnings] == [message]
    assert planned.encrypted
    assert planned.options() == DEFAULTS


def test_access_point_flag_selects_the_access_point() -> None:
    assert str(plan(f"accesspoint={AP}", handle=f"{FS}:/p").handle) == f"efs:{FS}:/p:{AP}"


@pytest.mark.parametrize(
    ("flags", "attributes"),
    [
        pytest.param(("iam", "authenticationSource=pod"), {}, id="flag"),
        pytest.param(("iam",), {"authenticationSource": "pod"}, id="attribute"),
        pytest.param(("iam", "authenticationsource=pod"), {"AUTHENTICATIONSOURCE": "pod"}, id="both"),
    ],
)
def test_pod_signs_the_connection(flags: tuple[str, ...], attributes: dict[str, str]) -> None:
    planned = plan(*flags, attributes=attributes)
    assert planned.iam == IamIdentity(is_of_pod=True)
    assert planned.signs_as_pod
    assert planned.options() == DEFAULTS


@pytest.mark.parametrize("flags", [(), ("iam",), ("iam", "awsprofile=x")])
def test_driver_signs_with_the_authentication_source_driver(flags: tuple[str, ...]) -> None:
    planned = plan(*flags, attributes={"authenticationSource": "driver"})
    assert planned.iam == plan(*flags).iam
    assert not planned.signs_as_pod


# --- what is refused

MALFORMED = "is malformed; use NAME or NAME=VALUE, of letters, digits and _.:/@%+-"
REFUSED = [
    pytest.param(
        FS, PLAIN, ("tls",), "'tls' contradicts encryptInTransit: false; leave one of them out", id="tls"
    ),
    pytest.param(
        WITH_AP,
        PLAIN,
        ("tls",),
        "'tls' contradicts encryptInTransit: false; leave one of them out",
        id="tls too",
    ),
    pytest.param(FS, {}, ("notls",), "'notls' contradicts TLS; set encryptInTransit to false", id="notls"),
    pytest.param(
        WITH_AP, PLAIN, ("notls",), "'notls' contradicts TLS; leave it out", id="notls with an access point"
    ),
    pytest.param(
        FS, {}, ("notls", "tls"), "'tls' contradicts notls; leave one of them out", id="tls and notls"
    ),
    pytest.param(
        FS, {}, ("ocsp", "noocsp"), "'ocsp' contradicts noocsp; leave one of them out", id="ocsp and noocsp"
    ),
    pytest.param(FS, PLAIN, ("iam",), "'iam' needs TLS; leave out encryptInTransit: false", id="iam"),
    pytest.param(
        FS,
        PLAIN,
        (f"accesspoint={AP}",),
        f"'accesspoint={AP}' needs TLS; leave out encryptInTransit: false",
        id="access point without TLS",
    ),
    pytest.param(
        WITH_AP,
        {},
        ("accesspoint=fsap-00000000",),
        f"'accesspoint=fsap-00000000' is not the access point in the volume handle, {AP}; leave it out",
        id="another access point",
    ),
    pytest.param(
        FS,
        {},
        ("accesspoint=x",),
        "'x' is not a valid access point ID; use an id such as fsap-0123456789abcdef0",
        id="id",
    ),
    pytest.param(FS, {}, ("iam=yes",), "'iam=yes' takes no value; use iam", id="value of iam"),
    pytest.param(
        FS,
        {},
        ("iam", "iam=auto"),
        "'iam=auto' is given twice with different values; give it once",
        id="required and optional identity",
    ),
    pytest.param(FS, PLAIN, ("iam=auto",), "'iam' needs TLS; leave out encryptInTransit: false", id="auto"),
    pytest.param(FS, {}, ("awsprofile=x",), "'awsprofile=x' needs iam; add iam", id="profile without iam"),
    pytest.param(
        FS,
        {"authenticationSource": "pod"},
        ("iam", "authenticationSource=driver"),
        "'authenticationSource=driver' is not the source in the volume attributes, pod; "
        "leave one of them out",
        id="two authentication sources",
    ),
    pytest.param(
        FS,
        {"mounttargetip": "10.0.0.1"},
        ("mounttargetip=10.0.0.2",),
        "'mounttargetip=10.0.0.2' is not the address in the volume attributes, 10.0.0.1; leave it out",
        id="two addresses",
    ),
    pytest.param(
        FS, {}, ("az=a", "az=b"), "'az=b' is given twice with different values; give it once", id="two zones"
    ),
    pytest.param(FS, {}, ("az=a b",), "'a b' is not valid; use a name such as us-east-1a", id="invalid zone"),
    pytest.param(
        FS, {}, ("region=-x",), "'-x' is not valid; use a name such as us-east-1", id="invalid region"
    ),
    pytest.param(
        FS,
        {},
        ("mounttargetip=fs.example",),
        "'fs.example' is not an IP address; use an address, not a name",
        id="hostname",
    ),
    *(
        pytest.param(FS, {}, (flag,), f"'{flag}' {problem}; leave it out", id=flag)
        for flag, problem in [
            ("port=2049", "would bypass the tunnel"),
            ("port=0", "would bypass the tunnel"),
            ("addr=10.0.0.1", "would bypass the tunnel"),
            ("mountport=1", "would bypass the tunnel"),
            ("verify=0", "would weaken the verification of the server"),
            ("verify=1", "would weaken the verification of the server"),
            ("capath=/tmp", "would weaken the verification of the server"),
            ("bind", "would not mount the volume"),
            ("remount", "would not mount the volume"),
            ("bg", "would not mount the volume"),
            (
                "netns=/proc/1/ns/net",
                "is not allowed because the tunnel is in the network namespace of the node",
            ),
            ("tlsport=x", "is not a valid port"),
        ]
    ),
    *(
        pytest.param(
            FS,
            {},
            (f"cafile={path}",),
            f"{path!r} is not a valid path; use an absolute path without .., of letters, digits and _.-",
            id=f"cafile {path!r}",
        )
        for path in ("ca.pem", "/a/../b", "/a/./b", "/a//", "/a b", "/a\nverifyChain = no", "/a;b", "/")
    ),
    pytest.param(
        FS,
        {"encryptInTransit": "false"},
        ("cafile=/ca/own.pem",),
        "'cafile=/ca/own.pem' needs TLS; leave out encryptInTransit: false",
        id="authorities without TLS",
    ),
    pytest.param(
        FS,
        {},
        ("azid=use1-az1",),
        "'azid=use1-az1' is not allowed because each node uses the ID of its own zone;"
        " use az and the name of a zone",
        id="zone id",
    ),
    pytest.param(
        FS,
        {},
        ("crossaccount=1",),
        "'crossaccount=1' is not allowed;"
        " set crossaccount in the provisioner secret or the volume's attributes",
        id="another account",
    ),
    *(
        pytest.param(FS, {}, (flag,), f"'{shown}' {problem}", id=flag)
        for flag, shown, problem in [
            ('ro,x="a,b"', 'x="a,b"', "has a comma in its value; use a value without commas"),
            ('az="a,port=1"', 'az="a,port=1"', "has a comma in its value; use a value without commas"),
            ('ro,x="a', 'x="a', 'has quotes that are not around its value; use NAME="VALUE"'),
            ('x=a"b,c"', 'x=a"b,c"', 'has quotes that are not around its value; use NAME="VALUE"'),
            ('"x,y"', '"x,y"', 'has quotes that are not around its value; use NAME="VALUE"'),
        ]
    ),
    pytest.param(FS, {}, ("tls=1",), "'tls=1' takes no value; use tls", id="switch with a value"),
    pytest.param(FS, {}, ("az",), "'az' needs a value; use az=VALUE", id="setting without a value"),
    pytest.param(FS, {}, ("az=",), "'az=' needs a value; use az=VALUE", id="setting with an empty value"),
    *(
        pytest.param(FS, {}, (flag,), f"{flag!r} {MALFORMED}", id=f"malformed {number}")
        for number, flag in enumerate(
            [
                "x=a=b",
                "=x",
                "x=",
                "x y",
                "x=$(id)",
                "x=`id`",
                "x;y",
                "x=a\nb",
                "x\x00",
                "x=é",
                'x="a"',
                "-o",
                "x=a|b",
            ]
        )
    ),
    *(
        pytest.param(
            FS, {}, ("iam", flag), f"'{flag}' is malformed; use letters, digits and _.@/:+- only", id=flag
        )
        for flag in ("rolearn=x", "jwtpath=token", "jwtpath=/a/../b", "jwtpath=/a b", "awsprofile=a b")
    ),
]


@pytest.mark.parametrize(("handle", "attributes", "flags", "message"), REFUSED)
def test_invalid_flags_are_refused(
    handle: str, attributes: dict[str, str], flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        plan(*flags, handle=handle, attributes=attributes)
    assert str(caught.value) == f"mountOptions: {message}"
    assert caught.value.code is RpcCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("attributes", "flags"),
    [
        ({"crossaccount": "true", "mounttargetip": "10.0.0.1"}, ()),
        ({"crossaccount": "true", "mounttargetipmap": '{"a":"10.0.0.1"}'}, ()),
        ({"crossaccount": "true"}, ("mounttargetip=10.0.0.1",)),
    ],
)
def test_mount_target_address_excludes_cross_account_lookup(
    attributes: dict[str, str], flags: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        plan(*flags, attributes=attributes)
    assert str(caught.value) == (
        "volume attributes crossaccount and mounttargetip: exclude each other; give one of them"
    )


def test_plan_checks_the_capabilities() -> None:
    with pytest.raises(InvalidArgument, match="'crossaccount' is not allowed"):
        plan("CrossAccount")
    with pytest.raises(InvalidArgument, match="'MULTI_NODE_SINGLE_WRITER' is not supported"):
        plan(mode=AccessMode.MULTI_NODE_SINGLE_WRITER)


SAFE = re.compile(r"[a-z0-9_][a-z0-9_.-]*(=[A-Za-z0-9_.:/@%+-]+)?")
FORBIDDEN = {"port", "addr", "cafile", "netns", "crossaccount", "bind", "remount", "tls", "iam", "verify"}
WORDS = [
    "ro",
    "rw",
    "port",
    "bind",
    "x",
    "=",
    ",",
    '"',
    " ",
    "\n",
    "$",
    "'",
    "1",
    "/",
    "tls",
    "IAM",
    "K",
    "az=a",
]


@given(
    st.lists(st.text() | st.lists(st.sampled_from(WORDS), max_size=4).map("".join), max_size=4),
    st.booleans(),
)
def test_any_flags_are_refused_or_give_unambiguous_options(flags: list[str], read_only: bool) -> None:
    try:
        planned = plan(*flags, read_only=read_only)
    except InvalidArgument:
        return
    options = planned.options(20049).split(",")
    assert all(SAFE.fullmatch(option) for option in options)
    assert not FORBIDDEN & {option.partition("=")[0] for option in options[:-1]}
    assert options[-1] == "port=20049"
    assert not read_only or ("ro" in options and "rw" not in options)


@pytest.mark.parametrize(
    ("flags", "attributes", "message"),
    [
        pytest.param(
            (), {}, "authenticationSource: 'pod' needs iam; add iam to the mount options", id="without iam"
        ),
        *(
            pytest.param(
                ("iam", flag),
                {},
                f"authenticationSource: 'pod' excludes {name}, which selects other credentials; "
                f"leave {name} out",
                id=name,
            )
            for name, flag in {
                "awsprofile": "awsprofile=x",
                "rolearn": f"rolearn={ARN}",
                "jwtpath": "jwtpath=/token",
            }.items()
        ),
        pytest.param(
            ("iam",),
            PLAIN,
            "mountOptions: 'iam' needs TLS; leave out encryptInTransit: false",
            id="without TLS",
        ),
        pytest.param(
            ("iam=auto",),
            {},
            "mountOptions: 'iam=auto' excludes authenticationSource: pod; use iam",
            id="no second attempt without an identity",
        ),
    ],
)
def test_pod_signs_nothing_else(flags: tuple[str, ...], attributes: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        plan(*flags, attributes={"authenticationSource": "pod", **attributes})
    assert str(caught.value) == message


def test_unknown_authentication_source_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        plan("iam", "authenticationSource=Pod")
    problem = "'Pod' is not an authentication source; use driver or pod"
    assert str(caught.value) == f"mountOptions, authenticationSource: {problem}"


# --- S3 Files

S3 = f"s3files:{FS}"


def test_s3_files_is_mounted_with_its_own_version_and_always_signed() -> None:
    planned = plan(handle=S3)
    assert planned.options() == DEFAULTS.replace("nfsvers=4.1", "nfsvers=4.2")
    assert (planned.encrypted, planned.iam) == (True, IamIdentity())
    assert planned.warnings == ()
    assert plan("nfsvers=4.1", "iam", "tls", handle=S3).iam == IamIdentity()
    assert plan("awsprofile=team", handle=S3).iam == IamIdentity(profile="team")
    assert plan("authenticationSource=pod", handle=S3).signs_as_pod


def test_zone_of_s3_files_is_an_id() -> None:
    assert plan("azid=use1-az1", handle=S3).zone == "use1-az1"


@pytest.mark.parametrize("flag", ["nodirects3read", "nos3readcache"])
def test_flags_for_direct_reads_have_no_effect(flag: str) -> None:
    (warning,) = plan(flag, handle=S3).warnings
    assert str(warning) == f"mountOptions: '{flag}' has no effect; leave it out"


@pytest.mark.parametrize(
    ("attributes", "flags", "message"),
    [
        pytest.param({}, ("notls",), "always needs TLS and an identity", id="notls"),
        pytest.param({}, ("iam=auto",), "always needs TLS and an identity", id="optional identity"),
        pytest.param({}, ("stunnel",), "'stunnel' is not allowed", id="stunnel"),
        pytest.param({}, ("az=us-east-1a",), "use azid and the ID of a zone", id="zone name"),
        pytest.param({"encryptInTransit": "false"}, (), "always needs TLS", id="no encryption"),
        pytest.param({"crossaccount": "true"}, (), "set mounttargetip", id="another account"),
        *(
            pytest.param({}, (flag,), f"'{flag}' is too old for S3 Files; use nfsvers=4.2", id=flag)
            for flag in ("nfsvers=4.0", "vers=4", "nfsvers=3", "v4.0", "v4", "minorversion=0")
        ),
    ],
)
def test_what_s3_files_does_not_have_is_refused(
    attributes: dict[str, str], flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        plan(*flags, handle=S3, attributes=attributes)
