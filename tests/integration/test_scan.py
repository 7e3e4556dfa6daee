"""The scan for known vulnerabilities: the real scanners, with stand-ins for their databases."""

import asyncio
import datetime
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web
from scripts.scan import Accepted, Report, ScanFailed, read_exceptions, scan, scan_debian, scan_python
from tests.serving import answering, serving
from tests.vulnerabilities import Databases, advisory, databases, tracker_data

from tinykube.ports import free_port

TOP = Path(__file__).parents[2]
TODAY = datetime.date(2030, 3, 1)
OPENSSL = "CVE-2030-2222,openssl,SHRF,3.5.9-1,3.5.1-1+deb13u9 3.0.17-1~deb12u9"
OPENSSL_FOUND = "openssl 3.5.1-1: CVE-2030-2222; fixed in 3.5.9-1, 3.5.1-1+deb13u9, 3.0.17-1~deb12u9"


def locked(lock: str, package: str) -> str:
    text = (TOP / "deploy/image" / lock).read_text()
    [version] = re.findall(rf"^{package}==(\S+)", text, re.MULTILINE)
    return f"{package}=={version}"


IDNA = locked("requirements.lock", "idna")
IDENTIFIERS = "PYSEC-2030-11, CVE-2030-1111, GHSA-2222-3333-4444"
IDNA_FOUND = f"{IDNA.replace('==', ' ')}: {IDENTIFIERS}; fixed in 99.1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root directory of an image with two packages of one source package, and others."""
    if shutil.which("debsecan") is None:
        pytest.skip("debsecan is missing")
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/os-release").write_text('NAME="Debian GNU/Linux"\nVERSION_CODENAME=trixie\nID=debian\n')
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(
        "Package: openssl\nStatus: install ok installed\nVersion: 3.5.1-1\nDescription: tools\n Longer.\n\n"
        "Package: libssl3t64\nStatus: install ok installed\nSource: openssl\nVersion: 3.5.1-1\n\n"
        "Package: tini\nStatus: install ok installed\nVersion: 0.19.0-3+b1\nSource: tini (0.19.0-3)\n\n"
        "Package: perl\nStatus: deinstall ok config-files\nVersion: 5.40.1-6\n"
    )
    return root


async def scanned(root: Path, where: Databases, accepted: Sequence[Accepted] = ()) -> Report:
    return await asyncio.to_thread(
        scan, root, accepted, today=TODAY, osv_url=where.osv_url, tracker_url=where.tracker_url
    )


def exception(identifier: str, package: str, until: datetime.date = TODAY) -> Accepted:
    return Accepted(id=identifier, package=package, reason="nobody calls it", until=until)


async def test_nothing_is_found_in_databases_without_vulnerabilities(root: Path) -> None:
    async with databases() as where:
        report = await scanned(root, where)
    assert report == Report(notes=["OSV: 0 found", "Debian's security tracker: 0 found"])


async def test_vulnerable_python_packages_of_both_locks_are_found() -> None:
    hatchling = locked("build.lock", "hatchling")
    advisories = {
        IDNA: [advisory("idna", fixed_in="99.1")],
        hatchling: [advisory("hatchling", fixed_in=None)],
    }
    async with databases(advisories) as where:
        found = await asyncio.to_thread(scan_python, where.osv_url)
    without_fix = IDNA_FOUND.replace(IDNA.replace("==", " "), hatchling.replace("==", " "))
    assert [str(one) for one in found] == [
        without_fix.replace("fixed in 99.1", "no fixed version"),
        IDNA_FOUND,
    ]


@pytest.mark.parametrize(
    ("vulnerability", "found"),
    [
        pytest.param(OPENSSL, [OPENSSL_FOUND], id="source package with two binary packages"),
        pytest.param(
            "TEMP-0000-1,tini,B  F,0.20-1,",
            ["tini 0.19.0-3: TEMP-0000-1; fixed in 0.20-1"],
            id="binary package",
        ),
        pytest.param("CVE-2030-2,openssl,SHR ,3.5.9-1,", [], id="no fix in the release"),
        pytest.param("CVE-2030-2,openssl,SHRF,3.5.9-1,3.5.1-1", [], id="fixed on the branch of the release"),
        pytest.param("CVE-2030-2,openssl,SHRF,3.5.0-1,", [], id="fixed before"),
        pytest.param("CVE-2030-2,perl,SHRF,5.99-1,", [], id="package not installed"),
    ],
)
async def test_debian_packages_with_a_fix_are_found(
    root: Path, vulnerability: str, found: Sequence[str]
) -> None:
    async with databases(data=tracker_data([vulnerability])) as where:
        findings = await asyncio.to_thread(scan_debian, root, where.tracker_url)
    assert [str(one) for one in findings] == found


async def test_exceptions_are_accepted_with_their_reasons(root: Path) -> None:
    # Each identifier of a vulnerability will do, and the last day counts.
    exceptions = [exception("CVE-2030-1111", "idna"), exception("CVE-2030-2222", "openssl")]
    found = {IDNA: [advisory("idna", fixed_in="99.1")]}
    async with databases(found, tracker_data([OPENSSL])) as where:
        report = await scanned(root, where, exceptions)
    assert report.failures == report.not_checked == []
    why = "(accepted until 2030-03-01: nobody calls it)"
    assert report.notes[2:] == [f"{IDNA_FOUND} {why}", f"{OPENSSL_FOUND} {why}"]


async def test_exception_for_another_package_accepts_nothing(root: Path) -> None:
    async with databases(data=tracker_data([OPENSSL])) as where:
        report = await scanned(root, where, [exception("CVE-2030-2222", "tini")])
    assert report.failures == [OPENSSL_FOUND]
    assert report.notes[2:] == ["The exception for CVE-2030-2222 in tini matches nothing any more: remove it"]


async def test_expired_exception_fails_and_accepts_nothing(root: Path) -> None:
    expired = exception("CVE-2030-2222", "openssl", until=TODAY - datetime.timedelta(days=1))
    async with databases(data=tracker_data([OPENSSL])) as where:
        report = await scanned(root, where, [expired])
    remedy = "remove it, or give new reasons (nobody calls it)"
    expiry = f"The exception for CVE-2030-2222 in openssl has expired on 2030-02-28: {remedy}"
    assert report.failures == [OPENSSL_FOUND, expiry]


async def test_unreachable_database_is_not_a_database_without_vulnerabilities(root: Path) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    async with databases(data=tracker_data([OPENSSL])) as where:
        report = await scanned(root, Databases(closed, where.tracker_url), [exception("CVE-2030-1", "idna")])
    [line] = report.not_checked
    assert line.startswith(f"NOT CHECKED: OSV cannot be reached at {closed} (")
    assert "so nothing was checked with it. Check the network and the proxy" in line
    assert report.failures == [OPENSSL_FOUND]
    assert report.notes == ["Debian's security tracker: 1 found"], "the exception may still be needed"


async def test_database_with_errors_is_a_failure(root: Path) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=503)

    async with serving(answering(refuse)) as url:
        report = await scanned(root, Databases(f"{url}/v1/query", url))
    python, debian = report.failures
    assert python.startswith("NOT CHECKED with OSV: pip-audit failed with exit status 1: ")
    assert debian.startswith(
        "NOT CHECKED with Debian's security tracker: debsecan failed with exit status 1: "
    )
    assert report.not_checked == report.notes == []


async def test_tracker_with_other_data_is_a_failure(root: Path) -> None:
    async with databases(data=b"<html>Sign in to the network</html>") as where:
        with pytest.raises(ScanFailed, match=r"debsecan failed with exit status 1: zlib\.error"):
            await asyncio.to_thread(scan_debian, root, where.tracker_url)


async def test_image_without_a_list_of_packages_is_a_failure(root: Path) -> None:
    (root / "var/lib/dpkg/status").unlink()
    async with databases() as where:
        with pytest.raises(ScanFailed, match="debsecan failed with exit status 2: error: could not open"):
            await asyncio.to_thread(scan_debian, root, where.tracker_url)


# --- the file of exceptions

ENTRY = '[[accepted]]\nid = "CVE-2030-1"\npackage = "idna"\nreason = "nobody calls it"\nuntil = 2030-03-01\n'


def test_exceptions_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(ENTRY)
    assert read_exceptions(tmp_path / "file") == (exception("CVE-2030-1", "idna"),)


def test_exceptions_of_this_tree_are_valid() -> None:
    read_exceptions(TOP / "deploy/image/exceptions.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(ENTRY.replace("until = 2030-03-01\n", ""), "required field `until`", id="no date"),
        pytest.param(ENTRY.replace("nobody calls it", ""), "length >= 1", id="no reason"),
        pytest.param(ENTRY.replace("2030-03-01", '"soon"'), "Expected `date`", id="another date"),
        pytest.param(ENTRY.replace("until", "to"), "unknown field `to`", id="another field"),
        pytest.param(ENTRY.replace("[[accepted]]", "[[exception]]"), "unknown field", id="another table"),
        pytest.param("[[accepted]\n", "Expected", id="not TOML"),
    ],
)
def test_invalid_exceptions_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ScanFailed, match=f"file is invalid: .*{reason}"):
        read_exceptions(tmp_path / "file")
