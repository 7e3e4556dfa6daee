"""Themes: some seeds bias users and faults toward one scenario.

A fault that needs three rare events at once is found in a run in which each of them is frequent. The theme
depends only on the seed. Every other seed has none, so its run is the same as without themes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tests.simulation.request_faults import Fault

from kube_efs.settings.directories import BackendName


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """A bias; None and empty values are random.

    With ``has_socket``, claims of the CSI driver are served through csi-provisioner. With ``has_bucket``,
    there is a file system of S3 Files, and the CSI driver mounts for worker pods. ``actions`` are weights
    of users' actions by method name. ``sources`` and ``places`` are the sources of static volumes.
    ``trouble`` are faults by method name. ``namespaces`` are those in which claims are created,
    ``directories`` those of tunnel volumes.
    """

    name: str = ""
    backends: tuple[BackendName, ...] = ()
    classes: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
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
    removals_hang: float | None = None
    emptying_hangs: float | None = None
    copies_hang: float | None = None
    active_seconds: float | None = None
    has_socket: bool = False
    has_bucket: bool = False


_TUNNEL = (BackendName.TUNNEL,)
_CSI = (BackendName.TUNNEL, BackendName.CSI)
_DIRECTORY = (BackendName.TUNNEL, BackendName.DIRECTORY)
_ALL = (BackendName.TUNNEL, BackendName.DIRECTORY, BackendName.CSI)
_KILLS = ("kill_leader", "kill_leader", "pause_leader")
_BUSY_CLAIMS = {"delete_and_create_claim": 10, "delete_claim": 5, "create_claim": 8}
# Pods of earlier leaders, on directories that are often created and removed.
_PODS = Theme(
    backends=_TUNNEL,
    classes=("tunnel",),
    pace=0.7,
    actions=_BUSY_CLAIMS,
    start_seconds=0.5,
    step_seconds=0.2,
)

THEMES: Final[tuple[Theme, ...]] = (
    # Ports of volumes and the leader's knowledge of them; file systems appear and disappear.
    Theme(
        name="ports",
        backends=_TUNNEL,
        classes=("second", "second", "auto"),
        pace=3.0,
        actions={"make_static": 6, "create_claim": 4, "delete_claim": 8},
        sources=("loopback", "loopback", "loopback", "loopback", "annotated"),
        places=("same",),
        trouble=(
            "toggle_file_system",
            "toggle_file_system",
            "delete_config_map",
            "list_nothing",
            "kill_leader",
        ),
        trouble_seconds=8.0,
        start_seconds=0.5,
        step_seconds=0.2,
        removals_hang=0.3,
    ),
    # Access points in, above and below the directories of other volumes.
    Theme(
        name="access points",
        backends=_CSI,
        classes=("tunnel", "beside", "named"),
        pace=1.0,
        actions={**_BUSY_CLAIMS, "make_static": 4},
        sources=("point", "same point", "same point"),
        places=("same", "below"),
        trouble=_KILLS,
        trouble_seconds=20.0,
        start_seconds=5.0,
        targets={"CreateAccessPoint": (Fault.LATE, 0.2)},
    ),
    # Repeated claims of the same name, with one access point.
    Theme(
        name="reuse",
        backends=_CSI,
        classes=("reused", "named"),
        # Claims of another namespace would keep the access point.
        namespaces=("red",),
        pace=1.0,
        actions={**_BUSY_CLAIMS, "set_policy": 4, "delete_volume": 1},
        trouble=("kill_leader",),
        trouble_seconds=30.0,
        binder_seconds=2.0,
        targets={"DeleteAccessPoint": (Fault.LATE, 0.4)},
    ),
    # Group IDs: new leaders, and a range that is nearly full.
    Theme(
        name="group ids",
        backends=_ALL,
        classes=("group", "secure", "point", "points"),
        pace=1.0,
        actions={**_BUSY_CLAIMS, "set_policy": 2},
        trouble=("kill_leader", "pause_leader"),
        trouble_seconds=15.0,
    ),
    # The last check: volumes that appear between two checks, and late watches.
    Theme(
        name="late checks",
        backends=_TUNNEL,
        pace=0.5,
        actions={"create_claim": 8, "delete_claim": 6, "make_static": 8, "set_policy": 8, "delete_static": 6},
        sources=("dns", "csi"),
        places=("same", "below"),
        lag=(0.3, 10.0),
        start_seconds=0.5,
        targets={"POST pods": (Fault.LATE, 0.3)},
    ),
    # A slow pod of an earlier leader removes a directory that the next leader removes and recreates.
    replace(
        _PODS,
        name="two leaders",
        trouble=_KILLS,
        trouble_seconds=10.0,
        replicas=3,
        step_seconds=0.2,
        removals_hang=0.5,
    ),
    # Pods that are created after their creator has stopped waiting.
    replace(
        _PODS,
        name="late pods",
        trouble=("cut_watches",),
        trouble_seconds=60.0,
        step_seconds=0.2,
        targets={"POST pods": (Fault.LATE, 0.4)},
    ),
    # Programs that continue on disconnected nodes.
    replace(
        _PODS,
        name="lost nodes",
        trouble=("cut_off",),
        trouble_seconds=3.0,
        removals_hang=0.7,
    ),
    # A pod of an earlier leader removes a directory that others got meanwhile.
    Theme(
        name="earlier orders",
        backends=_CSI,
        classes=("tunnel", "beside"),
        pace=1.0,
        actions={**_BUSY_CLAIMS, "delete_and_create_claim": 5, "set_policy": 6, "make_static": 6},
        sources=("dns", "csi"),
        places=("same", "below"),
        trouble=("kill_leader",),
        trouble_seconds=8.0,
        start_seconds=0.5,
        step_seconds=0.2,
        removals_hang=0.8,
    ),
    # Claims without a file system.
    Theme(
        name="automatic choice",
        backends=_TUNNEL,
        classes=("auto",),
        pace=5.0,
        actions={"create_claim": 8, "delete_claim": 3},
        trouble=("kill_leader", "stop_leader", "stop_leader"),
        trouble_seconds=12.0,
        replicas=3,
        targets={
            "POST persistentvolumes": (Fault.LATE, 0.35),
            # Then the next leader cannot choose the file system of the former one.
            "DescribeMountTargets": (Fault.FAILED, 0.6),
        },
    ),
    # Late volumes in directories whose other volumes are removed.
    Theme(
        name="unclear volumes",
        backends=_TUNNEL,
        classes=("tunnel",),
        directories=("data",),
        pace=3.0,
        actions={"create_claim": 8, "delete_claim": 4},
        trouble=("cut_watches", "kill_leader", "stop_leader", "stop_leader"),
        trouble_seconds=45.0,
        start_seconds=0.5,
        step_seconds=0.2,
        targets={
            # A leader that repeats the call rarely creates them in time.
            "POST persistentvolumes": (Fault.LATE, 0.9),
            # Then the next leader knows no file systems for a while.
            "DescribeMountTargets": (Fault.UNANSWERED, 0.3),
        },
    ),
    # Access points on the second file system of their class.
    Theme(
        name="second choice",
        backends=_CSI,
        classes=("named",),
        pace=4.0,
        actions={"create_claim": 8, "delete_claim": 4},
        quota=5,
        trouble=("use_up_access_points",),
        trouble_seconds=5.0,
        binder_seconds=0.5,
        start_seconds=0.5,
        step_seconds=0.2,
        removals_hang=0.7,
    ),
    # File systems become full one after the other.
    Theme(
        name="full",
        backends=_CSI,
        classes=("points", "beside", "named", "tunnel"),
        pace=1.0,
        actions=_BUSY_CLAIMS,
        quota=2,
        trouble=("fill_file_system", "toggle_file_system", "kill_leader"),
        trouble_seconds=10.0,
        targets={"CreateAccessPoint": (Fault.UNANSWERED, 0.3)},
    ),
    # A leader is paused for longer than its successor waits for its calls.
    Theme(
        name="pauses",
        backends=_CSI,
        classes=("reused",),
        pace=4.0,
        actions={"create_claim": 6, "delete_claim": 4, "delete_and_create_claim": 4, "set_policy": 0.0},
        trouble=("pause_at_read",),
        trouble_seconds=20.0,
        replicas=2,
        active_seconds=420.0,
    ),
    # File systems that go and come: nobody can tell meanwhile where volumes lie that are known by an address,
    # and of what went then a leader learns nothing when its watch expires.
    Theme(
        name="file systems",
        backends=_CSI,
        classes=("second", "plain-second"),
        pace=1.5,
        actions={"create_claim": 8, "delete_claim": 6, "make_static": 6},
        sources=("address",),
        places=("same",),
        trouble=("toggle_file_system", "expire_watches", "expire_watches"),
        trouble_seconds=5.0,
        replicas=1,
        lag=(0.5, 10.0),
        start_seconds=0.5,
        step_seconds=0.2,
    ),
    # Two worker pools in one process: those of the leader and of the CSI service.
    Theme(
        name="csi-provisioner",
        backends=_CSI,
        classes=("plain", "plain-named", "point", "named", "tunnel", "beside"),
        pace=1.5,
        actions={**_BUSY_CLAIMS, "make_static": 4, "set_policy": 5, "delete_volume": 3},
        # The CSI service does not know the file systems of ports and addresses.
        sources=("dns", "annotated", "csi", "point", "same point"),
        trouble=("kill", "kill_sidecar", "cut_watches"),
        trouble_seconds=30.0,
        start_seconds=0.5,
        step_seconds=0.2,
        has_socket=True,
    ),
    # Copies whose sources and claims are deleted meanwhile, by controllers and pods that end at any moment. A
    # leader lives long enough to begin removals, because a new one first waits for late volumes.
    Theme(
        name="copies",
        backends=_ALL,
        # Only the roots of access points may be missing.
        classes=("tunnel", "point", "point", "plain", "group"),
        pace=3.0,
        actions={
            "create_claim": 8,
            "create_copy": 8,
            "delete_claim": 2,
            "delete_and_create_claim": 2,
            "make_static": 1,
            "set_policy": 2,
        },
        trouble=(
            "kill_leader",
            "pause_leader",
            "cut_watches",
            "cut_off",
            "delete_pods",
            "delete_pods",
            "delete_pods",
        ),
        trouble_seconds=50.0,
        quota=100,
        binder_seconds=0.5,
        start_seconds=0.5,
        step_seconds=2.0,
        removals_hang=0.3,
        copies_hang=0.3,
        active_seconds=300.0,
        targets={"POST persistentvolumes": (Fault.LATE, 0.3)},
    ),
    # File systems for claims, which are created and removed while controllers end.
    Theme(
        name="own file systems",
        backends=_CSI,
        classes=("own", "own-shared", "own-shared"),
        pace=3.0,
        actions={**_BUSY_CLAIMS, "make_static": 3, "set_policy": 3, "delete_static": 3},
        sources=("csi", "dns", "point", "same point"),
        places=("same", "root"),
        trouble=("kill_leader", "kill_leader", "pause_leader", "cut_watches"),
        trouble_seconds=15.0,
        start_seconds=0.5,
        step_seconds=0.2,
        emptying_hangs=0.3,
        targets={
            "CreateFileSystem": (Fault.LATE, 0.2),
            "DeleteFileSystem": (Fault.LATE, 0.3),
            "TagResource": (Fault.LATE, 0.1),
        },
    ),
    # The same through csi-provisioner.
    Theme(
        name="own file systems by csi-provisioner",
        backends=_CSI,
        classes=("own", "own-shared", "own-shared"),
        pace=3.0,
        actions={**_BUSY_CLAIMS, "make_static": 2, "set_policy": 3, "delete_static": 3},
        sources=("csi", "dns"),
        places=("same", "root"),
        trouble=("kill", "kill_sidecar", "cut_watches"),
        trouble_seconds=20.0,
        start_seconds=0.5,
        step_seconds=0.2,
        has_socket=True,
    ),
    # Access points of S3 Files, in, above and below the directories of other volumes.
    Theme(
        name="s3 files",
        backends=_CSI,
        classes=("bucket", "bucket-named", "bucket-named"),
        pace=1.5,
        actions={**_BUSY_CLAIMS, "make_static": 2, "delete_static": 2, "set_policy": 1},
        sources=("csi", "point", "same point"),
        places=("same", "below"),
        trouble=(*_KILLS, "cut_watches"),
        trouble_seconds=40.0,
        quota=100,
        start_seconds=0.5,
        step_seconds=0.2,
        targets={"CreateAccessPoint": (Fault.LATE, 0.2), "DeleteAccessPoint": (Fault.LATE, 0.1)},
        has_bucket=True,
    ),
    # The same through csi-provisioner.
    Theme(
        name="s3 files by csi-provisioner",
        backends=_CSI,
        classes=("bucket", "bucket-named", "bucket-named"),
        pace=1.5,
        actions={**_BUSY_CLAIMS, "make_static": 4, "set_policy": 4, "delete_volume": 3},
        sources=("csi", "point", "same point"),
        trouble=("kill", "kill_sidecar", "cut_watches"),
        trouble_seconds=30.0,
        quota=100,
        start_seconds=0.5,
        step_seconds=0.2,
        has_socket=True,
        has_bucket=True,
    ),
    # Replicas whose csi-provisioners take turns: each remembers what it knew before the other one served.
    Theme(
        name="csi-provisioners in turn",
        backends=_CSI,
        classes=("point", "named", "plain"),
        pace=1.5,
        actions={"create_claim": 8, "delete_claim": 2, "set_policy": 2},
        trouble=("kill_sidecar",),
        trouble_seconds=15.0,
        replicas=2,
        start_seconds=0.5,
        step_seconds=0.2,
        has_socket=True,
    ),
    # Changes of the machines' clocks.
    Theme(
        name="clocks",
        backends=_CSI,
        classes=("point", "points", "tunnel"),
        pace=1.0,
        actions={**_BUSY_CLAIMS, "set_policy": 2},
        trouble=("step_clock",),
        trouble_seconds=10.0,
        binder_seconds=2.0,
        start_seconds=0.5,
        targets={"CreateAccessPoint": (Fault.LATE, 0.4)},
    ),
)


def theme_of(seed: int) -> Theme:
    """The theme of every second seed, in turn."""
    return THEMES[seed // 2 % len(THEMES)] if seed % 2 else Theme()
