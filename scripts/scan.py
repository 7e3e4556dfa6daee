"""Scans the image for known vulnerabilities: ``make scan``.

pip-audit looks up the Python packages of the locks in OSV, and debsecan the packages of Debian in Debian's
security tracker. They alone decide which versions are vulnerable. This module applies the exceptions of
deploy/image/exceptions.toml, and reports a database that it cannot reach: then nothing was checked.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import httpx2
import msgspec
from scripts.images import mounted_image

_ROOT: Final = Path(__file__).parents[1]
_LOCKS: Final = (_ROOT / "deploy/image/requirements.lock", _ROOT / "deploy/image/build.lock")
_EXCEPTIONS: Final = _ROOT / "deploy/image/exceptions.toml"
# The defaults of the scanners.
_OSV: Final = "https://api.osv.dev/v1/query"
_TRACKER: Final = "https://security-tracker.debian.org/tracker/debsecan/release/1/"
_CONNECT_SECONDS: Final = 15
_SCANNER_SECONDS: Final = 300
# A vulnerability in `debsecan --format detail`.
_DETAIL: Final = re.compile(
    r"^(?P<id>\S+).*?^ +\(built from (?P<package>\S+) (?P<version>\S+)\)$(?P<rest>.*)",
    re.DOTALL | re.MULTILINE,
)
_FIXED: Final = re.compile(r"^  fixed (?:in unstable|on branch): +\S+ (\S+)", re.MULTILINE)


class Unreachable(Exception):
    """A database does not answer; the text is the reason."""


class ScanFailed(Exception):
    """A scanner has no result, or the exceptions are invalid; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """A vulnerability of a package. Packages of Debian are source packages, as in its tracker."""

    package: str
    version: str
    ids: tuple[str, ...]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no fixed version"
        return f"{self.package} {self.version}: {', '.join(self.ids)}; {fixed}"


_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Accepted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exception: a vulnerability that is accepted until a date, inclusive."""

    id: _Text
    package: _Text
    reason: _Text
    until: datetime.date

    def __str__(self) -> str:
        return f"The exception for {self.id} in {self.package}"

    def covers(self, finding: Finding) -> bool:
        """Whether it is about this vulnerability, whatever the date."""
        return self.package == finding.package and self.id in finding.ids


class _Exceptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accepted: tuple[Accepted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Lines for people: what must be fixed, what could not be checked, and what else is known."""

    failures: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_exceptions(file: Path) -> tuple[Accepted, ...]:
    """The exceptions in that file; raises ScanFailed."""
    try:
        return msgspec.toml.decode(file.read_bytes(), type=_Exceptions).accepted
    except (OSError, ValueError) as error:
        raise ScanFailed(f"{file} is invalid: {error}") from error


def scan(
    root: Path,
    accepted: Sequence[Accepted],
    *,
    today: datetime.date,
    osv_url: str = _OSV,
    tracker_url: str = _TRACKER,
) -> Report:
    """The report on the locks and on the image whose root directory is given."""
    report = Report()
    found: list[Finding] = []
    checks: dict[str, tuple[str, Callable[[], list[Finding]]]] = {
        "OSV": (osv_url, lambda: scan_python(osv_url)),
        "Debian's security tracker": (tracker_url, lambda: scan_debian(root, tracker_url)),
    }
    for database, (url, check) in checks.items():
        try:
            _connect(url)
            findings = check()
        except Unreachable as error:
            report.not_checked.append(
                f"NOT CHECKED: {database} cannot be reached at {url} ({error}), so nothing was checked"
                " with it. Check the network and the proxy, or name a mirror (see --help), and try again."
            )
        except ScanFailed as error:
            report.failures.append(f"NOT CHECKED with {database}: {error}")
        else:
            report.notes.append(f"{database}: {len(findings)} found")
            found += findings
    _judge(report, found, accepted, today)
    return report


def _judge(
    report: Report, found: Sequence[Finding], accepted: Sequence[Accepted], today: datetime.date
) -> None:
    is_complete = not (report.not_checked or report.failures)
    for finding in found:
        valid = [one for one in accepted if one.covers(finding) and one.until >= today]
        if valid:
            report.notes.append(f"{finding} (accepted until {valid[0].until}: {valid[0].reason})")
        else:
            report.failures.append(str(finding))
    for one in accepted:
        if one.until < today:
            report.failures.append(
                f"{one} has expired on {one.until}: remove it, or give new reasons ({one.reason})"
            )
        elif is_complete and not any(one.covers(finding) for finding in found):
            report.notes.append(f"{one} matches nothing any more: remove it")


def _connect(url: str) -> None:
    """Raises Unreachable unless there is any answer, which the scanner then judges."""
    try:
        httpx2.head(url, timeout=_CONNECT_SECONDS)
    except httpx2.TransportError as error:
        raise Unreachable(str(error) or type(error).__name__) from error


def scan_python(osv_url: str) -> list[Finding]:
    """The findings of pip-audit in the packages of the locks; raises ScanFailed."""
    done = _run(
        *(sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--progress-spinner=off"),
        *("--vulnerability-service=osv", f"--osv-url={osv_url}", "--format=json"),
        *(f"--requirement={lock}" for lock in _LOCKS),
    )
    # The exit status is 1 for vulnerabilities and for errors, but only a complete result has an output.
    if not done.stdout:
        raise _failed("pip-audit", done)
    return sorted(
        Finding(
            package=one["name"],
            version=one["version"],
            ids=(each["id"], *sorted(each["aliases"])),
            fixed_in=tuple(each["fix_versions"]),
        )
        for one in json.loads(done.stdout)["dependencies"]
        for each in one["vulns"]
    )


def scan_debian(root: Path, tracker_url: str) -> list[Finding]:
    """The findings of debsecan for which the release of the image has a fix; raises ScanFailed."""
    release = (root / "usr/lib/os-release").read_text(encoding="utf-8")
    [suite] = re.findall(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
    done = _run(
        *("debsecan", "--format=detail", "--only-fixed", f"--suite={suite}", f"--source={tracker_url}"),
        f"--status={root / 'var/lib/dpkg/status'}",
        # Not those of this machine.
        *("--config=/dev/null", "--whitelist="),
    )
    if done.returncode:
        raise _failed("debsecan", done)
    # A source package has several binary packages.
    return sorted({_finding(paragraph) for paragraph in done.stdout.split("\n\n") if paragraph})


def _finding(paragraph: str) -> Finding:
    detail = _DETAIL.match(paragraph)
    if detail is None:
        raise ScanFailed(f"debsecan has another format than this program knows: {paragraph}")
    return Finding(
        package=detail["package"],
        version=detail["version"],
        ids=(detail["id"],),
        fixed_in=tuple(_FIXED.findall(detail["rest"])),
    )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SCANNER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ScanFailed(str(error)) from error


def _failed(scanner: str, done: subprocess.CompletedProcess[str]) -> ScanFailed:
    last = (done.stderr or done.stdout).strip().splitlines()[-1:]
    return ScanFailed(f"{scanner} failed with exit status {done.returncode}: {''.join(last)}")


def main() -> None:
    """Scan what the arguments say."""
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    parser = argparse.ArgumentParser(description="Scan the image for known vulnerabilities.")
    parser.add_argument("--image", default=f"kube-efs:{version}", help="its name (default: %(default)s)")
    parser.add_argument(
        "--exceptions", type=Path, default=_EXCEPTIONS, help="the file of accepted vulnerabilities"
    )
    parser.add_argument("--osv-url", default=_OSV, help="the query API of OSV (default: %(default)s)")
    parser.add_argument("--tracker-url", default=_TRACKER, help="the data of debsecan (default: %(default)s)")
    parser.add_argument("--if-reachable", action="store_true", help="succeed if a database cannot be reached")
    options = parser.parse_args()
    try:
        accepted = read_exceptions(options.exceptions)
        with mounted_image(options.image) as root:
            report = scan(
                root,
                accepted,
                today=datetime.datetime.now(datetime.UTC).date(),
                osv_url=options.osv_url,
                tracker_url=options.tracker_url,
            )
    except ScanFailed as error:
        sys.exit(f"The scan has no result: {error}")
    except subprocess.CalledProcessError:
        sys.exit(f"The image {options.image} cannot be read; see above. Build it with `make image`.")
    for line in (*report.notes, *report.not_checked, *report.failures):
        sys.stdout.write(f"{line}\n")
    if report.failures or (report.not_checked and not options.if_reachable):
        sys.exit(1)


if __name__ == "__main__":
    main()
