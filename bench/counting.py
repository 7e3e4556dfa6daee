"""What is counted while something happens: AWS calls by the controller's metrics, API writes by a proxy."""

from collections import Counter
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from tests.scenarios.faulty_api import Call, Fault

from kube_efs.local.program import Program

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Not of any claim: what is told to people, and what a leader writes whatever there is to do.
_APART: Final = frozenset({"events", "leases"})


class Writes:
    """Counts every request that changes something, by its method and resource."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def note(self, call: Call) -> Fault | None:
        """Note a request, which is passed on as it is."""
        if call.method not in _READS and call.resource not in _APART:
            self.counted[f"{call.method} {call.resource}"] += 1
        return None


async def samples(program: Program, name: str, label: str = "") -> Counter[str]:
    """The samples of a metric of that name, summed by a label's values."""
    async with aiohttp.ClientSession() as session, session.get(f"{program.health_url}/metrics") as answer:
        text = await answer.text()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                found[sample.labels.get(label, "")] += sample.value  # type: ignore[assignment]
    return found
