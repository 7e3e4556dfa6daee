"""The bill of materials of an image (CycloneDX 1.6, JSON), from what its file system contains.

The parts are the packages of Debian and of Python. Their licenses come from their own metadata; for a package
of Debian they are in its copyright file, whose path is noted. A part without a license is an error: nobody
could pass the image on. The same image gives the same bytes.
"""

import json
import re
import uuid
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_DPKG: Final = Path("var/lib/dpkg/status")
_COPYRIGHTS: Final = Path("usr/share/doc")
_PYTHON: Final = "opt/kube-efs/lib/python3*/site-packages/*.dist-info"
_SPACE: Final = uuid.UUID("0e7be9f6-8f0e-5a8b-9a37-9a4f3b1f5d70")  # any fixed one
_CLASSIFIER: Final = "License :: "
# What a package of Python may say instead of an SPDX expression.
_NOT_A_LICENSE: Final = frozenset({"", "unknown", "osi approved"})


class LicenseMissing(Exception):
    """Parts without a license; the text names all of them."""


def bill_of_materials(root: Path, *, name: str, version: str) -> str:
    """The bill of an image whose file system is at ``root``; raises LicenseMissing."""
    parts = [*_of_debian(root), *_of_python(root)]
    if missing := sorted(one.name for one in parts if not one.licenses):
        raise LicenseMissing(f"no license is known of {', '.join(missing)}")
    bom = Bom(components=parts)
    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref="image")
    bom.metadata.component = image
    bom.register_dependency(image, parts)
    content = json.loads(JsonV1Dot6(bom).output_as_string())
    # Random and of this moment in the library.
    identity = json.dumps(content["components"], sort_keys=True)
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(_SPACE, f'{name} {version} {identity}')}"
    content["metadata"].pop("timestamp", None)
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _of_debian(root: Path) -> Iterator[Component]:
    for paragraph in (root / _DPKG).read_text(encoding="utf-8").split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if "installed" not in (fields["Status"] or "").split():
            continue
        name, version = fields["Package"], fields["Version"]
        copyright_file = root / _COPYRIGHTS / name / "copyright"
        license_names = _names_in(copyright_file) if copyright_file.exists() else []
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"deb:{name}",
            purl=PackageURL(
                "deb", "debian", name, version, qualifiers={"arch": fields["Architecture"] or "all"}
            ),
            licenses=[LicenseFactory().make_with_name(one) for one in license_names],
            properties=[Property(name="copyright", value=f"/{_COPYRIGHTS}/{name}/copyright")],
        )


def _names_in(file: Path) -> list[str]:
    """The short names in a machine-readable copyright file; of another file that there is one."""
    text = file.read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"^License:[ \t]*(\S.*)$", text, flags=re.MULTILINE)
    return sorted({one.strip() for one in found}) or ["see the copyright file"]


def _of_python(root: Path) -> Iterator[Component]:
    for folder in sorted(root.glob(_PYTHON)):
        fields = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
        name, version = fields["Name"], fields["Version"]
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"pypi:{name}",
            purl=PackageURL("pypi", None, name.lower().replace("_", "-"), version),
            licenses=[LicenseFactory().make_from_string(one) for one in _stated(fields.items())],
        )


def _stated(fields: list[tuple[str, str]]) -> list[str]:
    """The SPDX expression; otherwise the classifiers, or the first line of the field ``License``."""
    by_name: dict[str, list[str]] = {}
    for key, value in fields:
        by_name.setdefault(key.lower(), []).append(value)
    if expression := by_name.get("license-expression"):
        return expression
    classifiers = [one for one in by_name.get("classifier", ()) if one.startswith(_CLASSIFIER)]
    names = [one.rpartition(" :: ")[2] for one in classifiers] or by_name.get("license", [])
    first_lines = [one.strip().splitlines()[0] if one.strip() else "" for one in names]
    return [one for one in first_lines if one.lower() not in _NOT_A_LICENSE]
