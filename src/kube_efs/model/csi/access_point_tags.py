"""Tags of access points: those that the driver is started with (``--tags``), and those of each volume."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.errors import InvalidSetting

CLUSTER = "efs.csi.aws.com/cluster"  # IAM policies of the AWS driver require it
REQUESTED_BYTES = "efs.csi.aws.com/requested-bytes"
# Of the claim and the volume, as other CSI drivers name them.
CLAIM_NAME = "kubernetes.io/created-for/pvc/name"
CLAIM_NAMESPACE = "kubernetes.io/created-for/pvc/namespace"
VOLUME_NAME = "kubernetes.io/created-for/pv/name"

_MAX_KEY, _MAX_VALUE = 128, 256  # characters, EFS API, type Tag
_MAX_OF_OPERATOR = 45  # EFS accepts 50 tags of a resource; five are the driver's
_MARKS = frozenset("_.:/=+-@")
# A backslash escapes a blank, a colon or a backslash; before any other character it is literal.
_TOKEN = re.compile(r"\\(?P<escaped>[ :\\])|(?P<end>\\\Z)|(?P<mark>[ :])|(?P<plain>.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A key and a value, which may be empty."""

    key: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPolicy:
    """The tags of all access points, unless the class has ``enableTagging: "false"``.

    ``CLUSTER`` is always there and by default the only one: AmazonEFSCSIDriverPolicy denies
    CreateAccessPoint with any other key. ``of_driver`` are the tags of ``--tags``. With
    ``describes_volume`` the claim, the volume and the requested size are tags too.
    """

    of_driver: tuple[Tag, ...] = ()
    describes_volume: bool = False

    def tags(self, origin: VolumeOrigin, required_bytes: int) -> tuple[Tag, ...]:
        """The tags of a volume's access point; those of the driver may override the others."""
        tags = {CLUSTER: "true"}
        if self.describes_volume:
            tags |= {
                CLAIM_NAME: origin.claim_name,
                CLAIM_NAMESPACE: origin.claim_namespace,
                VOLUME_NAME: origin.volume_name,
                REQUESTED_BYTES: str(required_bytes),
            }
        known = {key: value for key, value in tags.items() if value}
        merged = known | {tag.key: tag.value for tag in self.of_driver}
        return tuple(Tag(key=key, value=value) for key, value in merged.items())


DEFAULT_TAGS: Final = TagPolicy()


def parse_tags(text: str) -> tuple[Tag, ...]:
    r"""The tags of ``key:value key:value``; a repeated key gets its last value.

    ``\ ``, ``\:`` and ``\\`` stand for a blank, a colon and a backslash. Raises InvalidSetting for tags that
    EFS does not accept, and for tags that the AWS driver ignores with a log message, because policies may
    depend on them. Each escape is read once; the AWS driver reads ``\\`` twice, so that a backslash before a
    blank or colon must be written four times there.
    """
    tags = split_tags(text)
    for tag in tags:
        _check(tag)
    if len(tags) > _MAX_OF_OPERATOR:
        raise _malformed(f"has more than {_MAX_OF_OPERATOR} tags", text)
    return tags


def render_tags(tags: Iterable[Tag]) -> str:
    """The text that ``parse_tags`` reads as these tags."""
    return " ".join(f"{_escaped(tag.key)}:{_escaped(tag.value)}" for tag in tags)


def _escaped(text: str) -> str:
    return re.sub(r"([ :\\])", r"\\\1", text)


def split_tags(text: str) -> tuple[Tag, ...]:
    """The tags, with any characters; raises InvalidSetting when the text does not follow the grammar."""
    tags: dict[str, str] = {}
    for parts in _split(text.lstrip()):
        if len(parts) > 2:
            raise _malformed("has a tag with more than one colon", text)
        if not parts[0]:
            raise _malformed("has a tag without a key", text)
        tags[parts[0]] = parts[1] if len(parts) > 1 else ""
    return tuple(Tag(key=key, value=value) for key, value in tags.items())


def _split(text: str) -> Iterable[list[str]]:
    parts, has_content = [""], False
    for token in _TOKEN.finditer(text):
        if token["end"]:
            raise _malformed("ends in a lone backslash", text)
        if token["mark"] == " ":
            if has_content:
                yield parts
            parts, has_content = [""], False
            continue
        has_content = True
        if token["mark"]:
            parts.append("")
        else:
            parts[-1] += token["escaped"] or token["plain"]
    if has_content:
        yield parts


def _check(tag: Tag) -> None:
    if len(tag.key) > _MAX_KEY or len(tag.value) > _MAX_VALUE:
        raise _malformed(
            f"is longer than {_MAX_KEY} characters for a key or {_MAX_VALUE} for a value", tag.key
        )
    if tag.key.lower().startswith("aws:"):
        raise _malformed("is a key that AWS reserves", tag.key)
    for character in tag.key + tag.value:
        if character not in _MARKS and unicodedata.category(character)[0] not in "LNZ":
            raise _malformed(f"has a character that EFS does not accept in tags, {character!r}", tag.key)


def _malformed(problem: str, value: str) -> InvalidSetting:
    return InvalidSetting(
        problem,
        field="--tags",
        value=value,
        remedy=r"use key:value key:value, with \ before blanks and colons",
    )
