"""Stand-ins for OSV and for Debian's security tracker, in the formats that pip-audit and debsecan read."""

import json
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from tests.serving import serving


@dataclass(frozen=True, slots=True)
class Databases:
    """Where they are served."""

    osv_url: str
    tracker_url: str


def advisory(package: str, *, fixed_in: str | None) -> dict[str, Any]:
    """An invented vulnerability in the format of OSV (https://ossf.github.io/osv-schema/)."""
    events = [{"introduced": "0"}, *([{"fixed": fixed_in}] if fixed_in else [])]
    return {
        "schema_version": "1.7.3",
        "id": "GHSA-2222-3333-4444",
        "aliases": ["CVE-2030-1111", "PYSEC-2030-11"],
        "modified": "2030-02-03T04:05:06Z",
        "published": "2030-02-01T00:00:00Z",
        "summary": "Invented for a test",
        "details": "Longer than the summary.\n\nIn Markdown.",
        "affected": [
            {
                "package": {"name": package, "ecosystem": "PyPI", "purl": f"pkg:pypi/{package}"},
                "ranges": [{"type": "ECOSYSTEM", "events": events}],
                "database_specific": {"source": "https://example.com/GHSA-2222-3333-4444.json"},
            }
        ],
        "references": [{"type": "ADVISORY", "url": "https://example.com/GHSA-2222-3333-4444"}],
        "severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H"}],
    }


def tracker_data(vulnerabilities: Sequence[str] = ()) -> bytes:
    """What the tracker has for debsecan. A vulnerability is ``NAME,package,flags,unstable,others``.

    The flags are four characters: of a source (S) or binary package (B); urgency (H, M, L or a space);
    remotely exploitable (R, ? or a space); fixed in the release (F or a space).
    """
    names, packages = [], []
    for number, line in enumerate(vulnerabilities):
        name, package, rest = line.split(",", 2)
        names.append(f"{name},,Invented for a test, of {package}")
        packages.append(f"{package},{number},{rest}")
    sections = (("VERSION 1", *names), packages, ("openssl,libssl3t64 openssl",))
    return zlib.compress("".join("\n".join((*lines, "", "")) for lines in sections).encode())


@asynccontextmanager
async def databases(
    advisories: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    data: bytes | None = None,
) -> AsyncIterator[Databases]:
    """Databases with these advisories, by ``name==version``, and this data; by default with nothing."""

    async def query(request: web.Request) -> web.Response:
        asked = json.loads(await request.text())
        assert asked["package"]["ecosystem"] == "PyPI"
        found = (advisories or {}).get(f"{asked['package']['name']}=={asked['version']}")
        return web.json_response({"vulns": found} if found else {})

    async def trixie(_: web.Request) -> web.Response:
        return web.Response(body=tracker_data() if data is None else data)

    app = web.Application()
    app.router.add_post("/v1/query", query)
    app.router.add_get("/debsecan/trixie", trixie)
    async with serving(app) as url:
        yield Databases(f"{url}/v1/query", f"{url}/debsecan")
