"""Every parameter of a class with every kind of value that it cannot have."""

from collections.abc import Mapping

import pytest

from kube_efs.model.csi.errors import InvalidArgument, RpcCode
from kube_efs.model.csi.parameters import _KNOWN, parse_parameters
from kube_efs.model.efs.ids import FileSystemId

Parameters = Mapping[str, str | None]
FS = FileSystemId("fs-0123456789abcdef0")
VALID = {"provisioningMode": "efs-ap", "fileSystemId": FS, "directoryPerms": "700"}

MODES = "use one of efs-ap, efs-dir, s3files-ap, efs-fs"
ID = "use an id such as fs-0123456789abcdef0"
SOURCES = "give one of fileSystemId, fileSystemIds, fileSystemIdConfigRef, fileSystemIdSecretRef"
OCTAL = "use three or four octal digits, such as 700"
BOOLEAN = "use true or false"
NUMBER = "is not a valid user or group ID; use a whole number from {} to 4294967295"
NAMES = "is not accepted by EFS; begin no name with a dot, and use none of #$&*;<>?^`{|}"
VARIABLES = (
    "has an unknown variable; "
    "use ${.PVC.name}, ${.PVC.namespace}, ${.PV.name}, ${.PVC.labels.KEY} and ${.PVC.annotations.KEY} only"
)
RANGE = "is not a range of IDs; use numbers and ranges such as 1000-1999, separated by commas"
NOT_ALLOCATED = (
    "has no effect with posixUser: none, which allocates no numbers; leave it out, and set uid and gid"
)
MUST_BE_UNIQUE = (
    "must be true if claims of efs-dir may choose owners or modes; "
    "leave it out, or leave out allowedUids, allowedGids and allowedDirectoryPerms"
)
APART = "set gidRangeStart and gidRangeEnd to another range, or set uid and gid"
TAGS = "leave it out, or set no KUBE_EFS_ACCESS_POINT_TAGS"


def _of_file_systems(parameter: str) -> list[tuple[Parameters, str]]:
    alone = {} if parameter == "fileSystemId" else {"fileSystemId": None}
    malformed = {
        "fs-x": "'fs-x'",
        "0123456789abcdef0": "'0123456789abcdef0'",
        "fs-0123456789ABCDEF0": "'fs-0123456789ABCDEF0'",
        "fs-0123456": "'fs-0123456'",
        f"fs-{'0' * 41}": f"'fs-{'0' * 41}'",
        "fs-01234567\nx": r"'fs-01234567\nx'",
        f"{FS},fs-x": "'fs-x'",
        f"{FS} {FS}": f"'{FS} {FS}'",
        ",": "','",
        ",,": "',,'",
    }
    return [
        ({**alone, parameter: value}, f"{parameter}: {shown} is not a valid file system ID; {ID}")
        for value, shown in malformed.items()
    ]


def _of_references(parameter: str, kind: str) -> list[tuple[Parameters, str]]:
    values = ("a", "a/b", "a/b/c/d", "a/ /c", "a//c", "a/../c", "A/b/c", "a/b/c d", "../b/c")
    return [
        *(
            (
                {"fileSystemId": None, parameter: value},
                f"{parameter}: {value!r} is not a valid reference; use NAMESPACE/NAME/KEY of a {kind}",
            )
            for value in values
        ),
        (
            {parameter: "a/b/c"},
            f"parameters fileSystemId and {parameter}: exclude each other; give one of them",
        ),
    ]


def _of_numbers(parameter: str, least: int, **beside: str) -> list[tuple[Parameters, str]]:
    values = [
        "root",
        "-1",
        "1.5",
        " 1",
        "1 ",
        "1_0",
        "0x1",
        "\u0661",
        "4294967296",
        "9223372036854775808",
        "9" * 30,
    ]
    rows = [(value, f"{value!r} ") for value in [*values, *map(str, range(least))]]
    return [
        ({parameter: value, **beside}, f"{parameter}: {shown}{NUMBER.format(least)}")
        for value, shown in [("", ""), *rows]
    ]


def _of_booleans(parameter: str) -> list[tuple[Parameters, str]]:
    values = {"": "", "yes": "'yes' ", "tRUE": "'tRUE' ", " true": "' true' ", "2": "'2' "}
    return [
        ({parameter: value}, f"{parameter}: {shown}is not a boolean; {BOOLEAN}")
        for value, shown in values.items()
    ]


def _of_ranges(parameter: str) -> list[tuple[Parameters, str]]:
    fixed = {"uid": "1", "gid": "1"}
    return [
        ({parameter: "", **fixed}, f"{parameter}: {RANGE}"),
        ({parameter: "1,", **fixed}, f"{parameter}: {RANGE}"),
        ({parameter: "-1", **fixed}, f"{parameter}: '-1' {RANGE}"),
        ({parameter: "1-2-3", **fixed}, f"{parameter}: '1-2-3' {RANGE}"),
        (
            {parameter: "5-4", **fixed},
            f"{parameter}: '5-4' ends below its start; write the lower number first",
        ),
        ({parameter: "1-x", **fixed}, f"{parameter}: 'x' {NUMBER.format(0)}"),
        ({parameter: "1-4294967296", **fixed}, f"{parameter}: '4294967296' {NUMBER.format(0)}"),
        *(
            (
                {parameter: f"1, {value}", **one, "gidRangeStart": "10", "gidRangeEnd": "20"},
                f"{parameter}: '{value}' overlaps the range of allocated numbers, 10-20; {APART}",
            )
            for value in ("5-10", "20", "1-99")
            for one in ({}, {"uid": "1"}, {"gid": "1"})
        ),
    ]


def _only_for_efs(name: str, *values: str) -> list[tuple[Parameters, str]]:
    return [
        (
            {"provisioningMode": "s3files-ap", name: value},
            f"{name}: {value!r} is only supported for EFS; leave it out",
        )
        for value in values
    ]


def _of_template(name: str, refused: Mapping[str, str], **beside: str) -> list[tuple[Parameters, str]]:
    """Refusals of a parameter of ``efs-fs``, by its value."""
    given = {"provisioningMode": "efs-fs", "fileSystemId": None, **beside}
    return [
        ({**given, name: value}, f"{name}: {value!r} {problem}" if value else f"{name}: {problem}")
        for value, problem in refused.items()
    ]


def _of_choices(name: str, choices: str, *values: str, **beside: str) -> list[tuple[Parameters, str]]:
    problem = f"is not supported; use one of {choices}"
    return _of_template(name, dict.fromkeys(("", *values), problem), **beside)


_DAYS = ", ".join(("AFTER_1_DAY", *(f"AFTER_{one}_DAYS" for one in (7, 14, 30, 60, 90, 180, 270, 365))))
_TAG = "is not a tag; use key=value,key=value, without keys of AWS"
_CREATES = "contradicts provisioningMode: efs-fs, which creates file systems; leave it out"

REFUSED: dict[str, list[tuple[Parameters, str]]] = {
    "provisioningMode": [
        ({"provisioningMode": None}, f"provisioningMode: is missing; {MODES}"),
        ({"provisioningMode": ""}, f"provisioningMode: is not supported; {MODES}"),
        *(
            ({"provisioningMode": value}, f"provisioningMode: {value!r} is not supported; {MODES}")
            for value in ("efs-db", "EFS-AP", "s3files", "efs-ap ")
        ),
    ],
    "fileSystemId": [
        ({"fileSystemId": None}, f"fileSystemId: is missing; {SOURCES}"),
        ({"fileSystemId": " "}, f"fileSystemId: is missing; {SOURCES}"),
        ({"provisioningMode": "efs-fs"}, f"fileSystemId: {FS!r} {_CREATES}"),
        *_of_file_systems("fileSystemId"),
    ],
    "fileSystemIds": [
        (
            {"fileSystemIds": FS},
            "parameters fileSystemId and fileSystemIds: exclude each other; give one of them",
        ),
        *_of_file_systems("fileSystemIds"),
    ],
    "fileSystemIdConfigRef": _of_references("fileSystemIdConfigRef", "ConfigMap"),
    "fileSystemIdSecretRef": _of_references("fileSystemIdSecretRef", "Secret"),
    "directoryPerms": [
        ({"directoryPerms": None}, f"directoryPerms: is missing; {OCTAL}"),
        ({"directoryPerms": ""}, f"directoryPerms: is missing; {OCTAL}"),
        *(
            ({"directoryPerms": value}, f"directoryPerms: {value!r} is not a valid octal mode; {OCTAL}")
            for value in ("rwx", "888", "789", "70", "700\n", "00700", "-700", " 700", "0o700")
        ),
    ],
    "uid": _of_numbers("uid", 0),
    "gid": _of_numbers("gid", 0),
    "gidRangeStart": [
        ({"gidRangeStart": "5"}, "gidRangeEnd: is missing; give it together with gidRangeStart"),
        *_of_numbers("gidRangeStart", 1, gidRangeEnd="4294967295"),
    ],
    "gidRangeEnd": [
        ({"gidRangeEnd": "5"}, "gidRangeStart: is missing; give it together with gidRangeEnd"),
        *_of_numbers("gidRangeEnd", 1, gidRangeStart="1"),
        *(
            (
                {"gidRangeStart": "5", "gidRangeEnd": value, **fixed},
                f"gidRangeEnd: '{value}' is not above gidRangeStart; use a number above 5",
            )
            for value in "45"
            for fixed in ({}, {"uid": "1", "gid": "1"})
        ),
    ],
    "basePath": [
        ({"basePath": "/a/.b"}, f"basePath: '/a/.b' {NAMES}"),
        ({"basePath": "/a/b\n"}, r"basePath: '/a/b\n' has a control character or slash; use plain names"),
        *(
            ({"basePath": f"/a{character}b"}, f"basePath: '/a{character}b' {NAMES}")
            for character in "$#<>;`|&?{}^*"
        ),
    ],
    "subPathPattern": [
        *(
            ({"subPathPattern": pattern}, f"subPathPattern: {pattern!r} {VARIABLES}")
            for pattern in (
                "${.PVC.labels}",
                "${.PVC.labels.}",
                "${.PVC.labels.a b}",
                "${.PVC.annotation.a}",
                "${.PV.labels.a}",
                "${.PVC.uid}",
                "${.pvc.name}",
                "${}",
                "a}",
                "${.PVC.name",
                "${${.PV.name}}",
            )
        ),
    ],
    "az": [
        *(
            ({"az": value}, f"az: {value!r} is not valid; use a name such as us-east-1a")
            for value in ("us east", "US-EAST-1A", "us-east-1a,ro", "us-east-1a\n")
        ),
        *_only_for_efs("az", "us-east-1a", "use1-az1"),
        *_of_template("az", {"us-east-1a": _CREATES}),
    ],
    "reuseAccessPoint": [
        *_of_booleans("reuseAccessPoint"),
        *_only_for_efs("reuseAccessPoint", "true", "false"),
        *_of_template("reuseAccessPoint", {"true": _CREATES}),
    ],
    "enforceZoneAffinity": _of_booleans("enforceZoneAffinity"),
    "posixUser": [
        *(
            ({"posixUser": value}, f"posixUser: {shown}is not supported; use none, or leave it out")
            for value, shown in (("", ""), ("None", "'None' "), ("root", "'root' "))
        ),
        (
            {"posixUser": "none", "provisioningMode": "efs-dir"},
            "posixUser: 'none' is only for access points; leave it out; efs-dir enforces no identity",
        ),
        (
            {"posixUser": "none", "gidRangeStart": "1", "gidRangeEnd": "2"},
            f"gidRangeStart: '1' {NOT_ALLOCATED}",
        ),
    ],
    "allowedUids": _of_ranges("allowedUids"),
    "allowedGids": _of_ranges("allowedGids"),
    "allowedDirectoryPerms": [
        ({"allowedDirectoryPerms": ""}, f"allowedDirectoryPerms: is missing; {OCTAL}"),
        (
            {"allowedDirectoryPerms": "700,8"},
            f"allowedDirectoryPerms: '8' is not a valid octal mode; {OCTAL}",
        ),
    ],
    "scope": _of_choices("scope", "claim, namespace", "Claim", "cluster"),
    "throughputMode": [
        *_of_choices("throughputMode", "bursting, elastic, provisioned", "Elastic"),
        *_of_template(
            "throughputMode",
            {
                "elastic": "excludes performanceMode: maxIO; "
                "use performanceMode: generalPurpose, or leave out throughputMode"
            },
            performanceMode="maxIO",
        ),
        (
            {"provisioningMode": "efs-fs", "fileSystemId": None, "throughputMode": "provisioned"},
            "provisionedThroughputInMibps: is missing; give the throughput in MiB/s",
        ),
    ],
    "provisionedThroughputInMibps": [
        *_of_template(
            "provisionedThroughputInMibps",
            dict.fromkeys(
                ("", "0", "0.5", "-1", "1e3", "nan", "12,5", "9" * 7),
                "is not a throughput; use a number from 1, in MiB/s",
            ),
            throughputMode="provisioned",
        ),
        *_of_template(
            "provisionedThroughputInMibps", {"5": "has no effect with throughputMode: elastic; leave it out"}
        ),
    ],
    "performanceMode": _of_choices("performanceMode", "generalPurpose, maxIO", "maxIo"),
    "kmsKeyId": _of_template(
        "kmsKeyId",
        dict.fromkeys(
            ("", "key", "alias/", "alias/a b", "arn:aws:kms:us-east-1:1:key/x"),
            "is not a KMS key; use the ID, the ARN or the alias of a key",
        ),
    ),
    "availabilityZoneName": [
        *_of_template("availabilityZoneName", {"US": "is not valid; use a name such as us-east-1a"}),
        *_of_template(
            "availabilityZoneName",
            {
                "us-east-1a": "excludes performanceMode: maxIO; "
                "use performanceMode: generalPurpose, or leave out availabilityZoneName"
            },
            performanceMode="maxIO",
        ),
    ],
    "backup": _of_template("backup", {"yes": f"is not a boolean; {BOOLEAN}"}),
    "fileSystemPolicy": _of_choices("fileSystemPolicy", "none, tls, tls-and-iam", "iam"),
    "fileSystemTags": [
        *_of_template(
            "fileSystemTags", dict.fromkeys(("a", "=b", "aws:a=b", "a=b;c", f"{'k' * 129}=v"), _TAG)
        ),
    ],
    "subnetIds": _of_template(
        "subnetIds",
        {
            "": "is empty; give at least one, or leave it out",
            ",": "is empty; give at least one, or leave it out",
            "eu": "is not valid; use subnet- and up to 40 digits and letters",
        },
    ),
    "securityGroupIds": _of_template(
        "securityGroupIds",
        {
            "": "is empty; give at least one, or leave it out",
            "sg": "is not a security group; use IDs such as sg-0123456789abcdef0",
            ",".join(f"sg-{one}" for one in range(6)): "has too many security groups; give at most 5",
        },
    ),
    "transitionToIA": _of_choices("transitionToIA", _DAYS, "30", "AFTER_2_DAYS"),
    "transitionToArchive": [
        *_of_choices("transitionToArchive", _DAYS, "AFTER_1_ACCESS"),
        *_of_template(
            "transitionToArchive",
            {"AFTER_30_DAYS": "is not later than transitionToIA; use a later one"},
            transitionToIA="AFTER_30_DAYS",
        ),
        *_of_template(
            "transitionToArchive",
            {"AFTER_30_DAYS": "needs throughputMode: elastic; use it, or leave this out"},
            throughputMode="bursting",
        ),
    ],
    "transitionToPrimaryStorageClass": _of_choices(
        "transitionToPrimaryStorageClass", "AFTER_1_ACCESS", "AFTER_30_DAYS"
    ),
    "enableTagging": [
        *_of_booleans("enableTagging"),
        (
            {"enableTagging": "false"},
            f"enableTagging: 'false' contradicts the tags of the driver; {TAGS}",
        ),
    ],
    "ensureUniqueDirectory": [  # alone, any text is valid
        (
            {
                "provisioningMode": "efs-dir",
                "subPathPattern": "${.PVC.name}",
                "ensureUniqueDirectory": "false",
                choice: value,
            },
            f"ensureUniqueDirectory: 'false' {MUST_BE_UNIQUE}",
        )
        for choice, value in (
            ("allowedUids", "7"),
            ("allowedGids", "7"),
            ("allowedDirectoryPerms", "700"),
        )
    ],
}


def test_every_parameter_is_tested() -> None:
    assert set(REFUSED) == set(_KNOWN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(changes, message, id=f"{name}-{number}")
        for name, rows in REFUSED.items()
        for number, (changes, message) in enumerate(rows)
    ],
)
def test_invalid_parameter_is_refused(changes: Parameters, message: str) -> None:
    given = {name: text for name, text in {**VALID, **changes}.items() if text is not None}
    with pytest.raises(InvalidArgument) as caught:
        parse_parameters(given, has_driver_tags=True)
    assert str(caught.value) == message
    assert caught.value.code is RpcCode.INVALID_ARGUMENT
