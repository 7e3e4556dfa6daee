"""What a run is about: some seeds bias people and faults toward one scenario.

A fault that needs three rare things at once is found in a run in which each of them is frequent. The theme is
a function of the seed alone; every other seed has none, and is what it would be without themes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tests.simulation.weather import Fault

from kube_efs.settings import BackendName


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """A bias; None and empty values leave it to chance.

    ``actions`` has weights of what people do, by the names of the methods; ``sources`` and ``places`` are
    what their own volumes lead to; ``trouble`` are faults by the names of the methods.
    """

    name: str = ""
    backends: tuple[BackendName, ...] = ()
    classes: tuple[str, ...] = ()
    actions: Mapping[str, float] = field(default_factory=dict)
    pace: float | None = None
    sources: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    trouble_seconds: float | None = None
    replicas: int | None = None
    quota: int | None = None
    targets: Mapping[str, tuple[Fault, float]] = field(default_factory=dict)
    lag: tuple[float, float] | None = None
    binder_seconds: float | None = None
    start_seconds: float | None = None
    step_seconds: float | None = None
    hang_rate: float | None = None


_TUNNEL = (BackendName.TUNNEL,)
_CSI = (BackendName.TUNNEL, BackendName.CSI)
_DIRECTORY = (BackendName.TUNNEL, BackendName.DIRECTORY)
_ALL = (BackendName.TUNNEL, BackendName.DIRECTORY, BackendName.CSI)
_KILLS = ("kill_leader", "kill_leader", "pause_leader")
_BUSY_CLAIMS = MappingProxyType({"delete_and_create_claim": 10, "delete_claim": 5, "create_claim": 8})

THEMES: Final[tuple[Theme, ...]] = (
    # Ports: what carries one, and what the leader knows of it.
    Theme(
        name="ports",
        backends=_TUNNEL,
        pace=2.0,
        actions=MappingProxyType({"make_static": 8, "create_claim": 6, "delete_claim": 6, "set_policy": 3}),
        sources=("loopback", "loopback", "annotated", "address"),
        places=("same", "below"),
        trouble=("delete_config_map", "toggle_file_system", "list_nothing", "kill_leader", "cut_watches"),
        trouble_seconds=5.0,
        targets=MappingProxyType({"PATCH configmaps": (Fault.LATE, 0.2)}),
    ),
    # Access points: in, above and below the directories of other volumes.
    Theme(
        name="access points",
        backends=_CSI,
        classes=("tunnel", "beside", "named"),
        pace=1.0,
        actions=MappingProxyType({**_BUSY_CLAIMS, "make_static": 4}),
        sources=("point", "same point", "same point"),
        places=("same", "below"),
        trouble=_KILLS,
        trouble_seconds=20.0,
        start_seconds=5.0,
        targets=MappingProxyType({"CreateAccessPoint": (Fault.LATE, 0.2)}),
    ),
    # A claim of the same name again and again, with one access point.
    Theme(
        name="reuse",
        backends=_CSI,
        classes=("reused", "named"),
        pace=1.0,
        actions=MappingProxyType({**_BUSY_CLAIMS, "set_policy": 4, "delete_volume": 1}),
        trouble=_KILLS,
        trouble_seconds=60.0,
        binder_seconds=2.0,
        targets=MappingProxyType({"DeleteAccessPoint": (Fault.LATE, 0.4)}),
    ),
    # Group ids: leaders that begin, and a range that is nearly used up.
    Theme(
        name="group ids",
        backends=_ALL,
        classes=("group", "secure", "point", "points"),
        pace=1.0,
        actions=MappingProxyType({**_BUSY_CLAIMS, "set_policy": 2}),
        trouble=("kill_leader", "pause_leader"),
        trouble_seconds=15.0,
    ),
    # The last look: volumes that come between two looks, and watches that are behind.
    Theme(
        name="late looks",
        backends=_TUNNEL,
        pace=0.5,
        actions=MappingProxyType(
            {"create_claim": 8, "delete_claim": 6, "make_static": 8, "set_policy": 8, "delete_static": 6}
        ),
        sources=("dns", "csi"),
        places=("same", "below"),
        lag=(0.3, 10.0),
        start_seconds=0.5,
        targets=MappingProxyType({"POST pods": (Fault.LATE, 0.3)}),
    ),
    # Two leaders' pods on one directory: nodes that are cut off, and orders that arrive late.
    Theme(
        name="two leaders",
        backends=_TUNNEL,
        classes=("tunnel",),
        pace=1.0,
        actions=_BUSY_CLAIMS,
        trouble=(*_KILLS, "pause_leader", "lose_node"),
        trouble_seconds=8.0,
        replicas=3,
        start_seconds=50.0,
        step_seconds=2.0,
        hang_rate=0.2,
        targets=MappingProxyType({"POST pods": (Fault.LATE, 0.2), "PATCH pods": (Fault.LATE, 0.2)}),
    ),
    # Pods that are made when nobody waits for them any more.
    Theme(
        name="late pods",
        backends=_TUNNEL,
        classes=("tunnel",),
        pace=0.7,
        actions=_BUSY_CLAIMS,
        trouble=("cut_watches",),
        trouble_seconds=60.0,
        start_seconds=0.5,
        step_seconds=0.2,
        targets=MappingProxyType({"POST pods": (Fault.LATE, 0.4)}),
    ),
    # Programs that go on where nobody sees them.
    Theme(
        name="lost nodes",
        backends=_TUNNEL,
        classes=("tunnel",),
        pace=0.7,
        actions=_BUSY_CLAIMS,
        trouble=("cut_off",),
        trouble_seconds=3.0,
        start_seconds=0.5,
        hang_rate=0.4,
    ),
    # A pod of an earlier leader removes what an access point has been made for.
    Theme(
        name="orders of before",
        backends=_CSI,
        classes=("tunnel", "beside"),
        pace=0.7,
        actions=_BUSY_CLAIMS,
        trouble=("kill_leader",),
        trouble_seconds=6.0,
        start_seconds=20.0,
        hang_rate=0.2,
    ),
    # Claims that leave the file system open.
    Theme(
        name="homes",
        backends=_TUNNEL,
        classes=("auto",),
        pace=2.0,
        actions=MappingProxyType({"create_claim": 8, "delete_claim": 3}),
        trouble=("kill_leader",),
        trouble_seconds=60.0,
    ),
    # Answers about volumes get lost.
    Theme(
        name="unclear volumes",
        backends=_DIRECTORY,
        pace=1.0,
        actions=_BUSY_CLAIMS,
        targets=MappingProxyType(
            {"POST persistentvolumes": (Fault.UNANSWERED, 0.5), "PATCH persistentvolumes": (Fault.LATE, 0.2)}
        ),
        lag=(0.3, 40.0),
    ),
    # No room: on one file system after the other.
    Theme(
        name="full",
        backends=_CSI,
        classes=("points", "beside", "named", "tunnel"),
        pace=1.0,
        actions=_BUSY_CLAIMS,
        quota=2,
        trouble=("fill_file_system", "toggle_file_system", "kill_leader"),
        trouble_seconds=10.0,
        targets=MappingProxyType({"CreateAccessPoint": (Fault.UNANSWERED, 0.3)}),
    ),
)


def theme_of(seed: int) -> Theme:
    """The theme of every second seed, each in its turn."""
    return THEMES[seed // 2 % len(THEMES)] if seed % 2 else Theme()
