"""What an API server has logged about the requests of service accounts, and the permissions they needed."""

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A verb for a resource, which includes the subresource, of an API group."""

    group: str
    resource: str
    verb: str


@dataclass(frozen=True, slots=True)
class AuditedCluster:
    """What the API server has logged about the requests of the audited accounts."""

    log: Path

    async def requests(self) -> list[Mapping[str, Any]]:
        """Every request of the audited accounts."""
        text = await asyncio.to_thread(self.log.read_text)
        # The last line may be incomplete.
        lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
        return [json.loads(line) for line in lines]

    async def refusals(self) -> set[str]:
        """The requests that the API server has refused."""
        return {
            f"{one['user']['username'].rpartition(':')[2]}: {one['verb']} {one['requestURI']}"
            for one in await self.requests()
            if one.get("responseStatus", {}).get("code") == 403
        }

    async def used(self, account: str = "") -> set[Right]:
        """The permissions that the requests needed: those of this account, by default of all."""
        return {
            right
            for one in await self.requests()
            if "objectRef" in one and one["user"]["username"].endswith(f":{account}" if account else "")
            for right in _rights_of(one)
        }


def _rights_of(request: Mapping[str, Any]) -> Iterator[Right]:
    about = request["objectRef"]
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    yield Right(about.get("apiGroup", ""), resource, request["verb"])
    # An apply that creates the object needs both verbs.
    if request["verb"] == "patch" and request.get("responseStatus", {}).get("code") == 201:
        yield Right(about.get("apiGroup", ""), resource, "create")


def rights_in(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    return {
        Right(*one)
        for rule in rules
        for one in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def audit_policy(folder: Path, namespace: str, *accounts: str) -> Path:
    """Log the requests of these accounts, with their verb, their object and the code of the answer."""
    users = [f"system:serviceaccount:{namespace}:{one}" for one in accounts]
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": users}, {"level": "None"}],
    }
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(policy))
    return path
