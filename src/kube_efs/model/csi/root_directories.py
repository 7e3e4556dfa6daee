"""The directory of a new volume in its file system.

The name is that of the AWS driver, except for the suffix of ``subPathPattern``. It is derived from the
volume's name instead of random, so that a repeated attempt gives the same directory.
"""

import hashlib
import posixpath
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kube_efs.model.csi.errors import InvalidArgument, refused_as_argument
from kube_efs.model.efs.directories import Directory, Relation, parse_directory

_MAX_BYTES = 100  # EFS: the path of an access point
_MAX_ACCESS_POINT_DEPTH = 4  # EFS too
_FORBIDDEN = frozenset("$#<>;`|&?{}^*")  # EFS, CreationInfo and Path of an access point

_VARIABLE = re.compile(
    r"\$\{\.(?:(?P<name>PVC\.name|PVC\.namespace|PV\.name)"
    r"|PVC\.(?P<kind>labels|annotations)\.(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*))\}"
)
# Names that match are used unchanged in paths and client tokens; others are replaced by their hash.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UUID_AT_END = re.compile(r"(?:.*-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_SUFFIXES = uuid.UUID("5a0c8f4e-7f0e-5d0b-9f43-2f6d7f3f8f11")  # any fixed one
_PATH = "root directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeOrigin:
    """The claim of a volume; empty strings if csi-provisioner does not report it.

    It does so with ``--extra-create-metadata``, without labels and annotations.
    """

    claim_name: str = ""
    claim_namespace: str = ""
    volume_name: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_known(self) -> bool:
        """Whether the claim is known."""
        return bool(self.claim_name and self.claim_namespace)


def plain_name(request_name: str) -> str:
    """The name of the request if it is safe in paths and tokens, else its SHA-256 in hexadecimal.

    It has at most 64 characters, the limit of EFS for client tokens. Names from Kubernetes (``pvc-`` and the
    UID of the claim) are always used unchanged.
    """
    if not request_name:
        raise InvalidArgument("is missing", field="name", remedy="give the volume a name")
    if _PLAIN_NAME.fullmatch(request_name):
        return request_name
    return hashlib.sha256(request_name.encode(errors="surrogatepass")).hexdigest()


def check_pattern(pattern: str, *, field: str) -> None:
    """Raises InvalidArgument if the pattern has an unknown variable, or a single brace."""
    rest = _VARIABLE.sub("", pattern)
    if "${" in rest or "}" in rest:
        remedy = (
            "use ${.PVC.name}, ${.PVC.namespace}, ${.PV.name}, ${.PVC.labels.KEY} and "
            "${.PVC.annotations.KEY} only"
        )
        raise InvalidArgument("has an unknown variable", field=field, value=pattern, remedy=remedy)


def uses_claim(pattern: str | None) -> bool:
    """Whether the pattern has a label or an annotation of the claim."""
    return any(match["kind"] for match in _VARIABLE.finditer(pattern or ""))


def parse_base(text: str, *, field: str) -> Directory:
    """The directory that contains the volumes; the leading slash is optional, and empty means the root.

    Repeated slashes, ``.`` and ``..`` are resolved as text. Raises InvalidArgument for a path that EFS does
    not accept for an access point.
    """
    return _resolved(text, field)


def root_directory(
    base: Directory, request_name: str, *, pattern: str | None, unique: bool, origin: VolumeOrigin
) -> Directory:
    """The directory of the volume of that request, below ``base``.

    With an empty pattern and no suffix, it is the base itself, as in the AWS driver. Raises InvalidArgument
    if the pattern leads out of the base, the path is too long, or a variable has no value. (The AWS driver
    removes such a variable, so that the result can be the directory of another volume.)
    """
    if pattern is None:
        name = plain_name(request_name)
    else:
        name = _expanded(pattern, origin)
        name = f"{name}-{_suffix(request_name)}" if unique else name
    directory = _resolved(f"{base}/{name}", _PATH)
    if directory.relation_to(base) not in {Relation.BELOW, Relation.SAME}:
        remedy = "leave out .. in subPathPattern"
        raise InvalidArgument("leads out of basePath", field=_PATH, value=str(directory), remedy=remedy)
    if len(str(directory).encode()) > _MAX_BYTES:
        remedy = f"use at most {_MAX_BYTES} bytes for basePath and subPathPattern"
        raise InvalidArgument("is too long", field=_PATH, value=str(directory), remedy=remedy)
    return directory


def check_access_point_root(directory: Directory) -> None:
    """Raises InvalidArgument for a directory that is too deep for an access point."""
    if len(directory.parts) > _MAX_ACCESS_POINT_DEPTH:
        remedy = f"use at most {_MAX_ACCESS_POINT_DEPTH} levels for basePath and subPathPattern"
        raise InvalidArgument("is too deep", field=_PATH, value=str(directory), remedy=remedy)


def check_own_directory(directory: Directory, base: Directory) -> None:
    """Raises InvalidArgument unless the directory can belong to one volume, and be in its handle."""
    if directory.relation_to(base) is not Relation.BELOW:
        remedy = "use a subPathPattern that is not empty"
        raise InvalidArgument("is not below basePath", field=_PATH, value=str(directory), remedy=remedy)
    if ":" in str(directory):
        remedy = "leave the colon out of basePath and subPathPattern"
        raise InvalidArgument("has a colon", field=_PATH, value=str(directory), remedy=remedy)


def _expanded(pattern: str, origin: VolumeOrigin) -> str:
    check_pattern(pattern, field="subPathPattern")
    values = {
        "PVC.name": origin.claim_name,
        "PVC.namespace": origin.claim_namespace,
        "PV.name": origin.volume_name,
    }

    def value(match: re.Match[str]) -> str:
        kind, key = match["kind"], match["key"]
        texts = origin.labels if kind == "labels" else origin.annotations
        text = texts.get(key, "") if kind else values[match["name"]]
        if not text:
            remedy = "run csi-provisioner with --extra-create-metadata"
            if kind and origin.is_known:
                remedy = f"add it to the {kind} of the claim"
            raise InvalidArgument("has no value", field="subPathPattern", value=match[0], remedy=remedy)
        if kind and (text.startswith(".") or "/" in text):
            # With .. it would lead to a directory that the pattern gives to others, within the same base.
            remedy = "use no slash, and no dot at the beginning"
            field = f"metadata.{kind}[{key}]"
            raise InvalidArgument("is not the name of a directory", field=field, value=text, remedy=remedy)
        return text

    return _VARIABLE.sub(value, pattern)


def _suffix(request_name: str) -> str:
    match = _UUID_AT_END.fullmatch(plain_name(request_name))
    return match[1] if match else str(uuid.uuid5(_SUFFIXES, plain_name(request_name)))


def _resolved(text: str, field: str) -> Directory:
    with refused_as_argument():
        # normpath keeps two slashes at the start, as POSIX says.
        directory = parse_directory(posixpath.normpath(f"/{text.lstrip('/')}"), field=field)
    for part in directory.parts:
        if part.startswith(".") or not _FORBIDDEN.isdisjoint(part):
            remedy = f"begin no name with a dot, and use none of {''.join(sorted(_FORBIDDEN))}"
            raise InvalidArgument("is not accepted by EFS", field=field, value=str(directory), remedy=remedy)
    return directory
