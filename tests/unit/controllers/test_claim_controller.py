"""The claim controller, with the fakes around the engine and recorded events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError
from prometheus_client import CollectorRegistry
from tests.unit.model.csi.test_csi_claims import CLAIM as CSI_CLAIM
from tests.unit.model.csi.test_csi_claims import CLASS as CSI_CLASS
from tests.unit.provisioning.backends.csi.csi_world import FS, OTHER, CsiWorld
from tests.unit.provisioning.world import (
    AWS_EFS,
    EFS,
    Moments,
    Store,
    World,
    claim,
    directory_claim,
    reachable,
)

from kube_efs.aws.errors import translate
from kube_efs.controllers import queue as queue_module
from kube_efs.controllers.claims import ClaimController
from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.model.claims import Claim, ClaimPhase
from kube_efs.model.csi.access_points import AccessPoint, AccessPointRequest
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.efs.file_systems import Discovery
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import (
    KubeEfsError,
    KubeUnavailable,
    LeftAlone,
    NotYet,
    WorkerFailed,
)
from kube_efs.model.volumes import Volume
from kube_efs.provisioning.backends.csi.claims import CsiBackend
from kube_efs.provisioning.engine import Engine, Plan
from kube_efs.provisioning.guards import Guards
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics

pytestmark = pytest.mark.virtual_time

MISSING = "spec.selector.matchLabels.volume_name: is missing; name the directory with a-z, 0-9, _ and -"
UNKNOWN = "file system: 'fs-9' is not known (yet); known file systems: fs-1, fs-2"


class Told(ProvisioningEvents):
    """Records events instead of publishing them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.marks: list[bool] = []
        self.fault: KubeEfsError | None = None

    async def refused(self, claim: Claim, reason: str, *, marked: bool) -> None:
        if self.fault:
            raise self.fault
        self.lines.append(f"refused {reason}")
        self.marks.append(marked)

    async def accepted(self, claim: Claim) -> None:
        self.lines.append("accepted")

    def left_alone(self, claim: Claim, reason: LeftAlone) -> None:
        self.lines.append(f"left alone {reason}")

    def provisioning(self, plan: Plan) -> None:
        self.lines.append("provisioning")

    def provisioned(self, plan: Plan, volume: Volume) -> None:
        self.lines.append("provisioned")

    def failed(self, claim: Claim, error: Exception, *, retry_seconds: float) -> None:
        self.lines.append(f"failed {error}")


class Scene:
    def __init__(self, backoff_seconds: float) -> None:
        self.world = World()
        self.told = Told()
        self.registry = CollectorRegistry()
        self.claims = ClaimController(
            engine=self.world.engine,
            index=self.world.index,
            events=self.told,
            metrics=ControllerMetrics(self.registry),
            duties=Duties(self.registry),
            backoff_seconds=backoff_seconds,
        )

    async def rest(self) -> None:
        """Run every task until it waits."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def see(self, *claims: Claim) -> None:
        for one in claims:
            self.claims.seen(one)
        await self.rest()

    async def failure(self) -> None:
        """Wait until the failure is reported."""
        while "failed" not in " ".join(self.told.lines):  # noqa: ASYNC110 - each step may bring it
            await asyncio.sleep(0)

    @property
    def volumes(self) -> list[str]:
        """The claims with volumes."""
        return sorted(str(volume.claim and volume.claim.uid) for volume in self.world.store.volumes.values())

    def count(self, outcome: str, provisioner: str = EFS.provisioner) -> float | None:
        labels = {"provisioner": provisioner, "outcome": outcome}
        return self.registry.get_sample_value("kube_efs_provisionings_total", labels)

    @property
    def waiting(self) -> float | None:
        return self.registry.get_sample_value("kube_efs_claims_waiting")

    def add_file_system(self, name: str) -> None:
        index, fs = self.world.index, FileSystemId(name)
        index.discovery = Discovery(
            file_systems={**index.discovery.file_systems, fs: reachable(fs)},
            complete=True,
        )
        index.targets = TunnelTargets(
            targets={**index.targets.targets, fs: TunnelTarget(file_system_id=fs, port=20499)}
        )


@asynccontextmanager
async def scene(backoff_seconds: float = 3600) -> AsyncIterator[Scene]:
    made = Scene(backoff_seconds)
    async with asyncio.timeout(10), made.claims:
        yield made


def asking_for(file_system: str) -> Claim:
    return replace(claim(), match_labels={"volume_name": "example", "file_system_id": file_system})


NAMELESS = replace(claim(), match_labels={})


async def test_claim_is_served_once() -> None:
    async with scene() as here:
        await here.see(claim())
        await here.see(claim())
        here.claims.file_systems_changed()
        here.claims.class_changed("efs")
        await here.rest()
        assert here.told.lines == ["provisioning", "provisioned"]
        assert (here.volumes, here.count("succeeded"), here.waiting) == (["u1"], 1, 0)


async def test_list_replaces_all_known_claims() -> None:
    async with scene() as here:
        here.world.classes.clear()
        here.world.index.classes.clear()
        await here.see(claim("u1"), claim("u2"))
        here.claims.listed([claim("u2"), claim("u3")])
        here.world.index.classes[EFS.name] = EFS
        here.claims.class_changed(EFS.name)
        await here.rest()
        assert here.volumes == ["u2", "u3"]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(claim(), phase=ClaimPhase.BOUND), id="bound"),
        pytest.param(replace(claim(), deleting=True), id="being deleted"),
        pytest.param(replace(claim(), volume_name="pv"), id="with volumeName"),
        pytest.param(replace(claim(), storage_class="other"), id="another class"),
    ],
)
async def test_claim_that_needs_no_volume_gets_none(seen: Claim) -> None:
    async with scene() as here:
        await here.see(seen)
        assert (here.volumes, here.told.lines) == ([], [])


async def test_claim_is_served_again_if_its_volume_goes_before_it_is_bound() -> None:
    async with scene() as here:
        await here.see(claim())
        volume = here.world.store.volumes.popitem()[1]
        here.world.index.drop_volume(volume)
        await here.rest()
        assert here.volumes == ["u1"]


async def test_claim_is_served_again_if_a_list_has_no_volume_for_it() -> None:
    """Both watches list again after etcd was restored, that of claims first."""
    async with scene() as here:
        await here.see(claim())
        here.world.index.put_volume(here.world.store.volumes.popitem()[1])
        await here.see(replace(claim(), phase=ClaimPhase.BOUND))
        here.claims.listed([claim()])
        await here.rest()
        assert here.volumes == []
        here.world.index.replace_volumes([])
        await here.rest()
        assert here.volumes == ["u1"]


async def test_refusal_is_reported_once() -> None:
    async with scene() as here:
        await here.see(NAMELESS)
        # Our annotation, a foreign annotation, another change.
        marked = replace(NAMELESS, rejection=MISSING, resource_version="2")
        await here.see(marked, replace(marked, resource_version="3"))
        here.claims.file_systems_changed()
        here.claims.class_changed("efs")
        await here.rest()
        assert here.told.lines == [f"refused {MISSING}"]
        assert (here.count("refused"), here.waiting) == (1, 0)


async def test_event_from_before_the_annotation_repeats_no_refusal() -> None:
    async with scene() as here:
        await here.see(NAMELESS)
        await here.see(replace(NAMELESS, resource_version="2"))
        here.claims.file_systems_changed()
        await here.rest()
        assert here.told.lines == [f"refused {MISSING}"]


async def test_restarted_controller_does_not_repeat_the_refusal() -> None:
    async with scene() as here:
        await here.see(replace(NAMELESS, rejection=MISSING))
        assert here.told.lines == []


async def test_refusal_for_another_reason_is_reported_again() -> None:
    async with scene() as here:
        await here.see(replace(NAMELESS, rejection="something else"))
        assert here.told.lines == [f"refused {MISSING}"]


async def test_removal_of_the_annotation_repeats_the_refusal() -> None:
    async with scene() as here:
        await here.see(NAMELESS)
        await here.see(replace(NAMELESS, rejection=MISSING))
        await here.see(NAMELESS)
        assert here.told.lines == [f"refused {MISSING}"] * 2


@pytest.mark.parametrize("is_marked", [True, False], ids=["annotation seen", "annotation not seen yet"])
async def test_corrected_class_serves_its_refused_claims(is_marked: bool) -> None:
    async with scene() as here:
        here.world.index.classes["efs"] = replace(EFS, parameters={})
        await here.see(claim())
        (line,) = here.told.lines
        assert line.startswith("refused ")
        if is_marked:
            await here.see(replace(claim(), rejection=line.removeprefix("refused ")))
        here.world.index.classes["efs"] = EFS
        here.claims.class_changed("other")
        await here.rest()
        assert here.volumes == []
        here.claims.class_changed("efs")
        await here.rest()
        assert here.told.lines[1:] == ["accepted", "provisioning", "provisioned"]
        assert here.volumes == ["u1"]


async def test_copied_refusal_annotations_are_left_on_a_directory_claim() -> None:
    async with scene() as here:
        await here.world.scan()
        await here.see(directory_claim(rejection=MISSING))
        assert here.told.lines == ["provisioning", "provisioned"]


async def test_claim_with_a_changed_selector_is_retried() -> None:
    async with scene() as here:
        await here.see(NAMELESS)
        await here.see(replace(claim(), rejection=MISSING))
        assert here.told.lines[1:] == ["accepted", "provisioning", "provisioned"]


@pytest.mark.parametrize("labels", [{}, {"app": "shop"}], ids=["annotations", "labels"])
async def test_waiting_claim_with_changed_labels_or_annotations_is_retried(labels: dict[str, str]) -> None:
    async with scene() as here:
        wrong = asking_for("fs-9")
        await here.see(wrong)
        here.add_file_system("fs-9")
        await here.see(replace(wrong, labels=labels, annotations={} if labels else {"app": "shop"}))
        assert here.told.lines[1:] == ["provisioning", "provisioned"]


async def test_author_of_a_failing_claim_causes_few_attempts() -> None:
    wrong = asking_for("fs-9")
    async with scene(backoff_seconds=60) as here:
        for number in range(90):
            # The author can also make it invalid meanwhile, or remove a refusal.
            await here.see(replace(NAMELESS if number % 2 else wrong, annotations={"note": f"{number}"}))
            await asyncio.sleep(0.1)
        assert here.told.lines.count(f"failed {UNKNOWN}") <= 6


async def test_author_of_a_failing_claim_delays_no_attempt_for_another_reason() -> None:
    async with scene(backoff_seconds=60) as here:
        for number in range(100):
            await here.see(replace(asking_for("fs-9"), annotations={"note": f"{number}"}))
        here.add_file_system("fs-9")
        here.claims.file_systems_changed()
        await here.rest()
        assert here.volumes == ["u1"]


async def test_correction_of_a_claim_is_followed_at_once_after_any_number_of_failures() -> None:
    async with scene(backoff_seconds=2) as here:
        await here.see(asking_for("fs-9"))
        await asyncio.sleep(7)
        assert here.told.lines.count(f"failed {UNKNOWN}") == 4
        await here.see(asking_for("fs-1"))
        assert here.volumes == ["u1"]


async def test_failed_write_of_a_refusal_is_retried() -> None:
    async with scene(backoff_seconds=0.2) as here:
        here.told.fault = KubeUnavailable("is down")
        await here.see(NAMELESS)
        assert here.told.lines == ["failed is down"]
        here.told.fault = None
        while here.told.lines[-1] != f"refused {MISSING}":  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_new_file_system_serves_the_claims_that_wait_for_it() -> None:
    async with scene() as here:
        await here.see(asking_for("fs-9"))
        assert (here.told.lines, here.waiting, here.count("retried")) == ([f"failed {UNKNOWN}"], 1, 1)
        here.add_file_system("fs-9")
        here.claims.file_systems_changed()
        await here.rest()
        assert here.told.lines[1:] == ["provisioning", "provisioned"]
        assert (here.volumes, here.waiting) == (["u1"], 0)


async def test_failure_is_retried_after_the_backoff_and_not_before() -> None:
    async with scene(backoff_seconds=0.5) as here:
        faults = iter([KubeUnavailable("is down")])

        def fail_once(_: str) -> int:
            if fault := next(faults, None):
                raise fault
            return 0

        here.world.moment.on_moment = fail_once
        began = asyncio.get_running_loop().time()
        await here.see(claim())
        await here.see(replace(claim(), resource_version="9"), replace(claim(), resource_version="10"))
        assert here.told.lines == ["provisioning", "failed is down"]
        while not here.volumes:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert asyncio.get_running_loop().time() - began >= 0.5
        await here.rest()
        assert here.told.lines == ["provisioning", "failed is down", "provisioning", "provisioned"]


async def test_internal_error_is_reported_and_the_claim_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Claim) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(queue_module, "FAULT_DELAY_SECONDS", 0.5)
    async with scene() as here:
        with monkeypatch.context() as patched:
            patched.setattr(here.world.engine, "plan", fail)
            await here.see(claim("u1"))
        assert here.told.lines == ["failed a mistake"]
        assert here.waiting == 1
        await asyncio.sleep(1)
        await here.rest()
        assert (here.volumes, here.waiting) == (["u1"], 0)


async def test_deleted_claim_no_longer_waits() -> None:
    async with scene(backoff_seconds=0.2) as here:
        await here.see(asking_for("fs-9"))
        here.claims.gone(asking_for("fs-9"))
        await asyncio.sleep(0.4)
        assert here.told.lines == [f"failed {UNKNOWN}"]
        assert here.waiting == 0


async def test_hanging_claim_does_not_delay_others() -> None:
    async with scene() as here:
        here.world.moment.on_moment = lambda _: 10_000 if here.world.moment.passed == ["before make"] else 0
        await here.see(claim("slow"), claim("quick", volume_name="other"))
        assert here.volumes == ["quick"]


# --- directory volumes


async def full(here: Scene) -> list[Volume]:
    """Three volumes, which use all group IDs of the class, and a fourth claim that waits."""
    await here.world.scan()
    here.world.index.gids.on_free = here.claims.gid_released
    volumes = [await here.world.provision(directory_claim(number)) for number in (1, 2, 3)]
    await here.see(directory_claim(4))
    return volumes


def remove(here: Scene, volume: Volume) -> None:
    """Delete the volume after its directory."""
    assert volume.nfs
    here.world.folders.there = {
        one for one in here.world.folders.there if str(one.directory) != volume.nfs.path
    }
    here.world.index.removed_volume(volume, with_directory=True)


async def test_full_range_is_reported_and_counted() -> None:
    async with scene() as here:
        await full(here)
        (line,) = here.told.lines
        assert line.startswith(
            "failed StorageClass aws-efs parameters.gidMin-gidMax: '2000-2002' has no free"
        )
        assert (here.waiting, here.count("retried", AWS_EFS.provisioner)) == (1, 1)
        labels = {"storage_class": "aws-efs"}
        assert here.registry.get_sample_value("kube_efs_gid_range_full_total", labels) == 1


async def test_freed_group_retries_only_the_claims_that_need_it() -> None:
    async with scene() as here:
        await here.see(asking_for("fs-9"))
        volume, *_ = await full(here)
        here.told.lines.clear()
        remove(here, volume)
        await here.rest()
        assert here.told.lines == ["provisioning", "provisioned"]
        assert here.waiting == 1
        here.claims.gid_released()
        await here.rest()
        assert here.told.lines == ["provisioning", "provisioned"]


async def test_one_of_two_waiting_claims_gets_the_freed_group() -> None:
    async with scene() as here:
        volume, other, _ = await full(here)
        await here.see(directory_claim(5))
        for gone in (volume, other):
            remove(here, gone)
            await here.rest()
        assert here.waiting == 0
        assert here.told.lines.count("provisioned") == 2


async def test_deleted_claim_is_not_served_when_a_group_is_free() -> None:
    async with scene() as here:
        volume, *_ = await full(here)
        here.claims.gone(directory_claim(4))
        here.told.lines.clear()
        remove(here, volume)
        await here.rest()
        assert here.told.lines == []


async def test_refused_directory_claim_is_not_annotated_and_is_retried_without_an_event() -> None:
    async with scene() as here:
        await here.world.scan()
        here.world.index.classes[AWS_EFS.name] = replace(AWS_EFS, parameters={"gidMin": "1"})
        await here.see(directory_claim())
        here.claims.file_systems_changed()
        await here.rest()
        (line,) = here.told.lines
        assert line.startswith("refused StorageClass aws-efs parameters.gidMin: '1' is not a valid group ID")
        assert here.told.marks == [False]
        here.world.index.classes[AWS_EFS.name] = AWS_EFS
        here.claims.class_changed(AWS_EFS.name)
        await here.rest()
        assert here.told.lines[1:] == ["provisioning", "provisioned"]


async def test_refused_tunnel_claim_is_annotated() -> None:
    async with scene() as here:
        await here.see(NAMELESS)
        assert here.told.marks == [True]


async def test_claim_is_retried_when_kubernetes_assigns_it_to_us() -> None:
    async with scene() as here:
        await here.see(replace(claim(), storage_provisioner="other.example/efs"))
        (line,) = here.told.lines
        assert line.startswith("left alone annotation volume.kubernetes.io/storage-provisioner: ")
        await here.see(replace(claim(), storage_provisioner=EFS.provisioner))
        assert here.volumes == ["u1"]


async def test_claim_that_is_seen_before_its_class_is_served_without_a_warning() -> None:
    async with scene() as here:
        here.world.index.classes.clear()
        await here.see(replace(claim(), storage_provisioner=EFS.provisioner))
        here.world.index.classes[EFS.name] = EFS
        here.claims.class_changed(EFS.name)
        await here.rest()
        assert here.told.lines == ["provisioning", "provisioned"]


async def test_new_class_serves_the_claims_that_wait_for_it() -> None:
    async with scene() as here:
        here.world.index.classes.clear()
        await here.see(replace(claim(), storage_provisioner=EFS.provisioner))
        await asyncio.sleep(3)
        assert here.told.lines == [
            "failed spec.storageClassName: 'efs' does not exist; create the StorageClass"
        ]
        here.world.index.classes[EFS.name] = EFS
        here.claims.class_changed(EFS.name)
        await here.rest()
        assert here.volumes == ["u1"]


# --- started creations are completed


def failing_once(here: Scene, at: str, error: KubeEfsError) -> None:
    """Let the first step of that name fail."""
    failing_in_turn(here, (at, error))


def failing_in_turn(here: Scene, *faults: tuple[str, KubeEfsError]) -> list[tuple[str, KubeEfsError]]:
    """Let the first step of each name fail, one after the other; the result are the faults to come."""
    left = list(faults)

    def fail(moment: str) -> int:
        if left and moment == left[0][0]:
            raise left.pop(0)[1]
        return 0

    here.world.moment.on_moment = fail
    return left


@pytest.mark.parametrize(
    ("at", "error"),
    [
        pytest.param("after create", KubeUnavailable("no answer"), id="lost answer of the API server"),
        pytest.param("after make", WorkerFailed("no answer"), id="lost worker pod"),
    ],
)
async def test_volume_of_an_unclear_creation_is_created_for_a_deleted_claim(
    at: str, error: KubeEfsError
) -> None:
    async with scene(backoff_seconds=0) as here:
        failing_once(here, at, error)
        here.claims.seen(claim())
        await here.failure()
        here.claims.gone(claim())
        await here.rest()
        assert here.volumes == ["u1"]


@pytest.mark.parametrize(
    ("error", "volumes"),
    [
        pytest.param(NotYet("is being removed"), ["u1"], id="removal that may be given up"),
        pytest.param(InvalidArgument("was deleted"), [], id="final refusal"),
    ],
)
async def test_volume_of_a_deleted_claim_is_created_although_it_must_wait_meanwhile(
    error: KubeEfsError, volumes: list[str]
) -> None:
    """Otherwise its access point would stay."""
    async with scene(backoff_seconds=0) as here:
        faults = failing_in_turn(here, ("after make", WorkerFailed("no answer")), ("before make", error))
        here.claims.seen(claim())
        await here.failure()
        here.claims.gone(claim())
        await here.rest()
        assert not faults
        assert here.volumes == volumes


async def test_directory_of_a_deleted_claim_is_free_while_its_volume_waits_for_a_removal() -> None:
    """The removal waits for the directory, so each could wait for the other."""
    async with scene(backoff_seconds=0.1) as here:
        failing_once(here, "after make", WorkerFailed("no answer"))
        here.claims.seen(claim())
        await here.failure()
        plan = here.world.engine.plan(claim())
        assert plan
        (place,) = await plan.locations()
        removed, refused = asyncio.Event(), asyncio.Event()

        def refuse(moment: str) -> int:
            if moment == "before make" and not removed.is_set():
                refused.set()
                error = NotYet("is about to be removed")
                error.has_begun = True
                raise error
            return 0

        here.world.moment.on_moment = refuse
        here.claims.gone(claim())
        await refused.wait()
        async with asyncio.timeout(5), here.world.guards.reservations.removing(place):
            removed.set()
        while not here.volumes:  # noqa: ASYNC110 - the scene has a deadline
            await asyncio.sleep(0.01)
        assert here.volumes == ["u1"]


async def test_refusal_before_a_deleted_claim_is_gone_is_not_final() -> None:
    """The data source counts as long as the claim exists, and its directory would stay otherwise."""
    lost, refused = WorkerFailed("no answer"), InvalidArgument("is elsewhere")
    async with scene(backoff_seconds=0) as here:
        faults = failing_in_turn(here, ("after make", lost), ("before make", refused))
        here.claims.seen(claim())
        await here.failure()
        await here.see(replace(claim(), deleting=True))
        assert not faults
        assert here.volumes == []
        # A list that no longer contains it, as after a broken watch.
        here.claims.listed([])
        await here.rest()
        assert here.volumes == ["u1"]


async def test_refusal_of_a_claim_that_goes_meanwhile_is_not_final() -> None:
    faults = [("after make", WorkerFailed("no answer")), ("before make", InvalidArgument("is elsewhere"))]

    async with scene(backoff_seconds=0) as here:

        def fail(moment: str) -> int:
            if faults and moment == faults[0][0]:
                if len(faults) == 1:
                    here.claims.gone(replace(claim(), deleting=True))
                raise faults.pop(0)[1]
            return 0

        here.world.moment.on_moment = fail
        here.claims.seen(claim())
        await here.failure()
        await here.see(replace(claim(), deleting=True))
        await here.rest()
        assert here.volumes == ["u1"]


async def test_nothing_is_started_for_a_deleted_claim() -> None:
    async with scene(backoff_seconds=0) as here:
        failing_once(here, "before make", NotYet("is not there yet"))
        here.claims.seen(claim())
        await here.failure()
        here.claims.gone(claim())
        here.world.moment.passed.clear()
        await here.rest()
        assert here.volumes == []


async def test_unclear_creation_is_repeated_in_place_after_the_class_changed() -> None:
    """On another file system, the claim would get a second volume if the first creation succeeds late."""
    async with scene(backoff_seconds=0) as here:
        failing_once(here, "after create", KubeUnavailable("no answer"))
        here.claims.seen(claim())
        await here.failure()
        elsewhere = {"default_file_system_id": "fs-2", "file_system_ids": "fs-2"}
        here.world.index.classes[EFS.name] = replace(EFS, parameters=elsewhere)
        here.claims.class_changed(EFS.name)
        await here.rest()
        assert here.volumes == ["u1"]


class RefusingScene:
    """A claim of the CSI driver, on a file system where AWS refuses to create access points."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        world = self.world = CsiWorld(clock=clock)
        self.attempts = 0
        create = world.api.create

        async def refuse_there(request: AccessPointRequest) -> AccessPoint:
            if request.file_system_id == FS:
                self.attempts += 1
                answer = {"Error": {"Code": "BadRequest"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
                refused = ClientError(answer, "CreateAccessPoint")
                raise translate(refused, operation="CreateAccessPoint", iam_action="")
            return await create(request)

        world.api.create = refuse_there  # type: ignore[method-assign]
        self.store = Store(Moments())
        backend = CsiBackend(volumes=world.volumes, copies=world.copies, references=world.texts)
        guards = Guards(index=world.index, store=self.store, roots=world.roots)
        engine = Engine(index=world.index, backends=[backend], store=self.store, guards=guards, clock=clock)
        registry = CollectorRegistry()
        world.index.classes = {CSI_CLASS.name: CSI_CLASS}
        self.claims = ClaimController(
            engine=engine,
            index=world.index,
            events=Told(),
            metrics=ControllerMetrics(registry),
            duties=Duties(registry),
            backoff_seconds=30,
        )


async def test_creation_that_aws_refuses_follows_the_corrected_class() -> None:
    here = RefusingScene()
    async with here.claims:
        here.claims.seen(CSI_CLAIM)
        await asyncio.sleep(100)
        corrected = {**CSI_CLASS.parameters, "fileSystemId": str(OTHER)}
        here.world.index.classes = {CSI_CLASS.name: replace(CSI_CLASS, parameters=corrected)}
        here.claims.class_changed(CSI_CLASS.name)
        await asyncio.sleep(100)
        assert [one.file_system_id for one in here.world.api.points.values()] == [OTHER]
        assert len(here.store.volumes) == 1


async def test_creation_that_aws_refuses_ends_with_its_claim() -> None:
    here = RefusingScene()
    async with here.claims:
        here.claims.seen(CSI_CLAIM)
        await asyncio.sleep(100)
        here.claims.gone(CSI_CLAIM)
        await asyncio.sleep(100)
        attempts = here.attempts
        await asyncio.sleep(36_000)
        assert here.attempts == attempts
        assert not len(here.world.index.gids)


async def test_claim_waits_for_a_volume_that_an_earlier_leader_can_have_requested() -> None:
    async with scene() as here:
        await here.see(asking_for("fs-9"))
        here.claims.expect_late_volumes()
        waiting = asyncio.create_task(here.claims.outlast_late_volumes())
        await here.rest()
        assert not waiting.done()
        here.add_file_system("fs-9")
        here.claims.file_systems_changed()
        await waiting
        assert here.volumes == ["u1"]


@pytest.mark.parametrize(
    "unshared",
    [
        pytest.param(replace(claim(), storage_class=""), id="no class"),
        pytest.param(directory_claim(), id="directory volume"),
    ],
)
async def test_claim_with_its_own_directory_does_not_wait_for_late_volumes(unshared: Claim) -> None:
    async with scene() as here:
        await here.see(unshared)
        here.claims.expect_late_volumes()
        await here.claims.outlast_late_volumes()
