"""Access points when AWS does not answer, a file system is full, or other clients change it."""

import asyncio
from dataclasses import replace

import pytest
from tests.unit.provisioning.backends.csi.csi_world import FS, OTHER, Api, S3Api, request

from kube_efs.model.csi.access_points import (
    AccessPoint,
    AccessPointRequest,
    PosixUser,
    VolumeRequest,
    access_point_request,
    client_token,
    own_token,
)
from kube_efs.model.csi.errors import ExistingVolumeDiffers, VolumePending
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsDenied,
    AwsError,
    AwsLimitReached,
    AwsNotFound,
    AwsNotListed,
    AwsRefused,
    AwsThrottled,
    AwsUnavailable,
    GidRangeFull,
    KubeEfsError,
    NotYet,
)
from kube_efs.model.volumes import CsiSource, Location, Volume
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.volume_index import VolumeIndex

NARROW = {"gidRangeStart": "1000", "gidRangeEnd": "1001"}
BOTH = {"fileSystemId": f"{FS},{OTHER}"}
LOST = AwsUnavailable("was not answered in time", field="create")


class Scene:
    """The access points of one controller, and a clock."""

    def __init__(self, *, quota: int = 10, api: Api | None = None, is_alone: bool = True) -> None:
        self.api, self.now = api or Api(), 0.0
        self.quota = quota
        self.is_alone = is_alone
        self.notices: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Start another controller, with an empty index."""
        self.index = VolumeIndex()
        self.points = AccessPoints(
            self.api, self.index, quota=self.quota, is_alone=self.is_alone, clock=lambda: self.now
        )

    async def create(self, wanted: VolumeRequest, *places: FileSystemId) -> AccessPoint:
        return await self.points.create(wanted, places or [FS], self.notices.append)

    async def fail(self, wanted: VolumeRequest, error: KubeEfsError, *places: FileSystemId) -> None:
        """An attempt that AWS answers with the error, without creating anything."""
        self.api.faults["create"] = error
        with pytest.raises(type(error)):
            await self.create(wanted, *places)
        del self.api.faults["create"]

    async def lose(self, wanted: VolumeRequest, *places: FileSystemId) -> None:
        """An attempt that succeeds but whose answer is lost."""
        self.api.lost.add("create")
        with pytest.raises(AwsUnavailable):
            await self.create(wanted, *places)
        self.api.lost.clear()

    @property
    def held(self) -> set[int]:
        """The IDs of the range that are held."""
        return {gid for gid in (1000, 1001) if self.index.gids.holders(gid)}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def handle(made: AccessPoint) -> VolumeHandle:
    return VolumeHandle(file_system_id=made.file_system_id, access_point_id=made.access_point_id)


def foreign(scene: Scene, name: str, gid: int, file_system_id: FileSystemId = FS) -> AccessPoint:
    """An access point that the driver of another cluster creates."""
    wanted = access_point_request(request(name), file_system_id, PosixUser(uid=gid, gid=gid))
    made = AccessPoint(
        access_point_id=f"fsap-{gid:017x}",  # type: ignore[arg-type]  # an id
        file_system_id=file_system_id,
        directory=wanted.directory,
        user=wanted.user,
        client_token=wanted.client_token,
    )
    scene.api.points[made.access_point_id] = made
    return made


async def test_file_system_with_a_known_access_point_is_listed_before_one_is_created(
    scene: Scene,
) -> None:
    foreign(scene, "pvc-8", 1000, OTHER)
    scene.points.known.keep(foreign(scene, "pvc-9", 1001, OTHER))
    wanted = request(**{**NARROW, "gidRangeEnd": "1002"})
    await scene.fail(wanted, AwsLimitReached("is full", field="file system"), OTHER)
    scene.now = 61
    assert (await scene.create(wanted, OTHER)).user == PosixUser(uid=1002, gid=1002)


async def test_deleted_access_points_hold_a_limited_number_of_ids(scene: Scene) -> None:
    for number in range(10_002):
        gone = AccessPoint(
            access_point_id=AccessPointId(f"fsap-{number:017x}"),
            file_system_id=FS,
            user=PosixUser(uid=50_000 + number, gid=50_000 + number),
        )
        scene.points.known.keep(gone)
        scene.points.known.retire(gone)
        if number == 1:
            # A later list contains it again.
            scene.points.known.keep(gone)
    assert len(scene.index.gids) == 10_001
    assert [bool(scene.index.gids.holders(50_000 + number)) for number in range(3)] == [False, True, True]


async def test_file_system_that_is_deleted_while_others_are_listed_is_no_internal_error(scene: Scene) -> None:
    await scene.points.known.loaded(FS)
    list_now = scene.api.list

    async def list_slowly(file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        # Meanwhile, another task learns that the first one does not exist any more.
        scene.points.known.forget(FS)
        return await list_now(file_system_id)

    scene.api.list = list_slowly  # type: ignore[method-assign]
    await scene.create(request(**BOTH), FS, OTHER)


async def test_forgotten_file_system_is_listed_again(scene: Scene) -> None:
    """AWS may have answered wrongly that it does not exist."""
    known = scene.points.known
    await known.loaded(FS)
    known.forget(FS)
    made = foreign(scene, "pvc-9", 1000)
    assert await known.location(handle(made)) == Location(file_system_id=FS, directory=made.directory)


async def test_file_system_that_is_forgotten_at_the_end_of_a_list_is_missing(scene: Scene) -> None:
    list_now = scene.api.list

    async def list_and_forget(file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        # After the end of the list, and before those that wait for it continue.
        asyncio.get_running_loop().call_soon(scene.points.known.forget, FS)
        return await list_now(file_system_id)

    scene.api.list = list_and_forget  # type: ignore[method-assign]
    with pytest.raises(AwsNotFound, match="was deleted"):
        await scene.points.known.roots(FS)


# --- creations with a lost answer


@pytest.mark.parametrize("how", ["lost", "denied after a lost request"])
async def test_creation_on_a_file_system_that_was_deleted_is_settled(scene: Scene, how: str) -> None:
    await scene.fail(request(**NARROW), LOST if how == "lost" else _repeated(AwsDenied))
    assert scene.points.may_have("pvc-1")
    scene.points.known.forget(FS)
    assert (scene.points.may_have("pvc-1"), scene.held, scene.points.is_blank) == (False, set(), True)


async def test_creation_that_ends_without_an_answer_after_its_file_system_was_deleted_is_settled(
    scene: Scene,
) -> None:
    async def create(request: AccessPointRequest) -> AccessPoint:
        scene.points.known.forget(request.file_system_id)
        raise LOST

    scene.api.create = create  # type: ignore[method-assign]
    with pytest.raises(AwsUnavailable):
        await scene.create(request(**NARROW))
    assert (scene.points.may_have("pvc-1"), scene.held) == (False, set())
    scene.now += 300
    assert scene.points.is_blank


@pytest.mark.parametrize("kind", [AwsDenied, AwsRefused, AwsThrottled])
async def test_refusal_of_a_repeated_request_does_not_free_the_id_of_the_first_one(
    scene: Scene, kind: type[AwsError]
) -> None:
    error = _repeated(kind)
    await scene.fail(request(**NARROW), error)
    assert (error.outcome_unknown, scene.held) == (True, {1000})
    made = await scene.create(request(**NARROW))
    with pytest.raises(NotYet, match="may be created again by an earlier call"):
        scene.points.check_stays_gone(made)


async def test_removal_does_not_wait_for_a_creation_that_was_throttled_with_its_repetitions(
    scene: Scene,
) -> None:
    await scene.fail(request(**NARROW), AwsThrottled("was throttled each time", field="create"))
    scene.points.check_stays_gone(await scene.create(request(**NARROW)))


async def test_claim_gets_the_next_file_system_if_the_first_one_is_full_after_repetitions(
    scene: Scene,
) -> None:
    await scene.points.known.loaded(OTHER)
    create = scene.api.create

    async def create_on_other(request: AccessPointRequest) -> AccessPoint:
        if request.file_system_id == FS:
            raise _repeated(AwsLimitReached)
        return await create(request)

    scene.api.create = create_on_other  # type: ignore[method-assign]
    made = await scene.create(request(**NARROW), FS, OTHER)
    assert made.file_system_id == OTHER


async def test_missing_file_system_decides_about_the_first_request_too(scene: Scene) -> None:
    await scene.points.known.loaded(FS)
    error = _repeated(AwsNotFound)
    await scene.fail(request(**NARROW), error)
    assert (error.outcome_unknown, scene.held) == (False, set())


def _repeated(kind: type[AwsError]) -> AwsError:
    """The answer to a repetition by the library, after a request that may have been carried out."""
    error = kind("was answered", field="create")
    error.is_unclear = True
    return error


@pytest.mark.parametrize(
    "error",
    [
        AwsDenied("is not allowed", field="create"),
        AwsLimitReached("is full", field="create"),
        AwsRefused("was answered with BadRequest", field="create"),
    ],
    ids=["denied", "full", "refused"],
)
async def test_creation_refused_by_aws_holds_no_id(scene: Scene, error: KubeEfsError) -> None:
    await scene.fail(request(**NARROW), error)
    assert scene.held == set()


async def test_retry_after_a_lost_answer_gives_the_same_access_point(scene: Scene) -> None:
    await scene.lose(request(**NARROW))
    assert scene.held == {1000}
    assert (await scene.create(request("pvc-2", **NARROW))).user == PosixUser(uid=1001, gid=1001)
    made = await scene.create(request(**NARROW))
    assert made.user == PosixUser(uid=1000, gid=1000)
    assert len(scene.api.points) == 2
    await scene.points.delete(made, is_directory_gone=True)
    assert scene.held == {1001}


async def test_repeated_creation_keeps_its_id_when_another_volume_has_it(scene: Scene) -> None:
    await scene.lose(request(**NARROW))
    scene.index.gids.hold(1000, "a volume that was created again late")
    scene.index.gids.hold(1001, "another one")
    assert (await scene.create(request(**NARROW))).user == PosixUser(uid=1000, gid=1000)


async def test_access_point_of_a_lost_answer_is_found_after_a_refusal(scene: Scene) -> None:
    await scene.lose(request(**NARROW))
    scene.api.faults["create"] = AwsDenied("is not allowed", field="create")
    made = await scene.create(request(**NARROW))
    assert list(scene.api.points.values()) == [made]
    assert scene.held == {1000}


@pytest.mark.parametrize("kind", [AwsDenied, AwsRefused])
async def test_refused_creation_releases_its_id_when_no_earlier_attempt_can_take_effect(
    scene: Scene, kind: type[KubeEfsError]
) -> None:
    early, late = (kind("is not allowed", field="create") for _ in range(2))
    await scene.fail(request(**NARROW), LOST)
    scene.now += 299
    await scene.fail(request(**NARROW), early)
    assert early.outcome_unknown  # the first attempt can still take effect
    assert scene.held == {1000}
    scene.now += 1
    await scene.fail(request(**NARROW), late)
    assert not late.outcome_unknown
    assert scene.held == set()


@pytest.mark.parametrize("is_made", [True, False], ids=["created", "not created"])
async def test_refusal_decides_nothing_while_aws_denies_the_list(scene: Scene, is_made: bool) -> None:
    if is_made:
        await scene.lose(request(**NARROW))
    else:
        await scene.fail(request(**NARROW), LOST)
    scene.now += 301
    scene.api.faults["list"] = AwsDenied("is not allowed", field="list")
    scene.api.faults["create"] = AwsRefused("was answered with BadRequest", field="create")
    with pytest.raises(AwsDenied) as caught:
        await scene.create(request(**NARROW))
    assert caught.value.outcome_unknown
    assert scene.held == {1000}
    del scene.api.faults["list"]
    if is_made:
        assert [await scene.create(request(**NARROW))] == list(scene.api.points.values())
    else:
        with pytest.raises(AwsRefused) as refused:
            await scene.create(request(**NARROW))
        assert not refused.value.outcome_unknown
        assert scene.held == set()


async def test_denied_list_does_not_decide_an_earlier_creation() -> None:
    scene = Scene(is_alone=False)
    await scene.lose(request(**NARROW))
    scene.now += 20
    denied = scene.api.faults["list"] = AwsDenied("is not allowed", field="list")
    with pytest.raises(AwsDenied):
        await scene.create(request(**NARROW))
    assert denied.outcome_unknown
    scene.api.faults["list"] = other = AwsDenied("is not allowed", field="list")
    with pytest.raises(AwsDenied):
        await scene.create(request("pvc-2", **NARROW))
    assert not other.outcome_unknown


async def test_access_point_that_exists_but_cannot_be_read_is_not_refused(scene: Scene) -> None:
    await scene.create(request(**NARROW))
    scene.restart()
    scene.api.hidden = True
    denied = scene.api.faults["get"] = AwsDenied("is not allowed", field="get")
    with pytest.raises(AwsDenied):
        await scene.create(request(**NARROW))
    assert denied.outcome_unknown


async def test_deletion_of_the_file_system_decides_a_creation_on_it() -> None:
    scene = Scene(is_alone=False)
    await scene.fail(request(**NARROW), LOST)
    scene.now += 20
    gone = scene.api.faults["list"] = AwsNotFound("was answered with FileSystemNotFound", field="list")
    with pytest.raises(AwsNotFound):
        await scene.create(request(**NARROW))
    assert not gone.outcome_unknown
    assert scene.held == set()


@pytest.mark.parametrize("is_made", [True, False], ids=["created", "not created"])
@pytest.mark.parametrize("reuse", ["true", "false"])
async def test_volume_may_have_an_access_point_until_its_creation_is_decided(
    scene: Scene, is_made: bool, reuse: str
) -> None:
    wanted = request(reuseAccessPoint=reuse)
    assert not scene.points.may_have("pvc-1")
    if is_made:
        await scene.lose(wanted)
    else:
        await scene.fail(wanted, LOST)
    assert scene.points.may_have("pvc-1")
    assert not scene.points.may_have("pvc-2")
    scene.now += 301
    await scene.points.known.refresh(FS)
    # A shared one stays for later claims of the name.
    assert scene.points.may_have("pvc-1") is (is_made and reuse == "false")
    scene.restart()
    assert not scene.points.may_have("pvc-1")
    await scene.points.known.refresh(FS)
    assert scene.points.may_have("pvc-1") is (is_made and reuse == "false")


@pytest.mark.parametrize("is_made", [True, False], ids=["created", "not created"])
async def test_list_decides_whether_an_abandoned_creation_holds_its_id(scene: Scene, is_made: bool) -> None:
    if is_made:
        await scene.lose(request(**NARROW))
    else:
        await scene.fail(request(**NARROW), LOST)
    scene.now += 299
    await scene.points.known.refresh_known()
    assert scene.held == {1000}
    assert scene.index.gids.of("pvc-1") == 1000  # it can still take effect
    scene.now += 1
    await scene.points.known.refresh_known()
    assert scene.index.gids.of("pvc-1") is None
    assert scene.held == ({1000} if is_made else set())


async def test_throttled_creation_may_have_succeeded(scene: Scene) -> None:
    error = AwsThrottled("is throttled", field="create")
    await scene.fail(request(**NARROW), error)
    assert error.outcome_unknown
    assert scene.held == {1000}


async def test_list_of_another_file_system_decides_no_creation(scene: Scene) -> None:
    await scene.lose(request(**NARROW))
    scene.now += 300
    await scene.points.known.refresh(OTHER)
    assert scene.held == {1000}


async def test_list_decides_no_creation_that_can_take_effect_after_its_beginning(scene: Scene) -> None:
    await scene.fail(request(**NARROW), LOST)
    scene.now += 299
    slow = Slow(scene)
    listing = asyncio.create_task(scene.points.known.refresh(FS))
    await slow.rest()
    scene.now += 1
    slow.began[0].set_result(None)
    await listing
    assert scene.held == {1000}


@pytest.mark.parametrize("reuse", ["true", "false"])
@pytest.mark.parametrize("is_restarted", [True, False], ids=["after a restart", "at once"])
async def test_volume_gets_no_second_access_point_on_another_file_system(
    reuse: str, is_restarted: bool
) -> None:
    scene = Scene(quota=1)
    wanted = request(**BOTH, reuseAccessPoint=reuse)
    await scene.lose(wanted, FS, OTHER)
    if is_restarted:
        scene.restart()
    else:
        await scene.points.known.refresh(FS)  # which shows that the first is full
    made = await scene.create(wanted, FS, OTHER)
    assert made.file_system_id == FS
    assert list(scene.api.points.values()) == [made]


async def test_access_point_on_the_first_file_system_is_found_when_its_range_is_full(scene: Scene) -> None:
    made = await scene.create(request(**BOTH, **NARROW), FS, OTHER)
    await scene.create(request("pvc-2", **BOTH, **NARROW), FS, OTHER)
    assert (made.file_system_id, scene.held) == (FS, {1000, 1001})
    assert await scene.create(request(**BOTH, **NARROW), FS, OTHER) == made


async def test_unclear_creation_is_repeated_on_the_same_file_system(scene: Scene) -> None:
    wanted = request(**BOTH, reuseAccessPoint="true")
    await scene.fail(wanted, LOST, FS, OTHER)
    assert (await scene.create(wanted, OTHER, FS)).file_system_id == FS


async def test_unclear_creation_uses_another_file_system_when_it_can_no_longer_take_effect(
    scene: Scene,
) -> None:
    wanted = request(**BOTH, reuseAccessPoint="true")
    await scene.fail(wanted, LOST, FS, OTHER)
    real = scene.api.create

    async def full_there(request: AccessPointRequest) -> AccessPoint:
        if request.file_system_id == FS:
            raise AwsLimitReached("is full", field="create")
        return await real(request)

    scene.api.create = full_there  # type: ignore[method-assign]
    scene.now += 299
    with pytest.raises(AwsLimitReached) as refused:
        await scene.create(wanted, FS, OTHER)
    assert refused.value.outcome_unknown
    scene.now += 1
    made = await scene.create(wanted, FS, OTHER)
    assert list(scene.api.points.values()) == [made]
    assert made.file_system_id == OTHER


# --- access points of earlier claims


REUSING = request(**NARROW, reuseAccessPoint="true")
NONE_FOUND = f"No access point of an earlier claim data is on {FS}; a new one is created"


def of_claim(scene: Scene, token: str, file_system_id: FileSystemId = FS) -> AccessPoint:
    """An access point of an earlier claim, with that token."""
    made = replace(foreign(scene, "pvc-of-before", 1000, file_system_id), client_token=token)
    scene.api.points[made.access_point_id] = made
    return made


async def test_access_point_of_the_aws_driver_is_reused(scene: Scene) -> None:
    made = of_claim(scene, client_token(REUSING))
    assert await scene.create(REUSING) == made
    assert (scene.api.calls["create"], scene.notices) == (0, [])


async def test_access_point_of_the_same_claim_comes_before_that_of_the_aws_driver(scene: Scene) -> None:
    shared = replace(of_claim(scene, client_token(REUSING)), access_point_id=AccessPointId(f"fsap-{1:017x}"))
    scene.api.points[shared.access_point_id] = shared
    made = of_claim(scene, own_token(REUSING, FS))
    assert await scene.create(REUSING) == made
    elsewhere = replace(REUSING, name="pvc-2", origin=replace(REUSING.origin, claim_namespace="other"))
    assert await scene.create(elsewhere) == shared


async def test_claims_of_one_name_share_the_access_point(scene: Scene) -> None:
    made = await scene.create(REUSING)
    elsewhere = replace(REUSING, name="pvc-2", origin=replace(REUSING.origin, claim_namespace="other"))
    assert await scene.create(elsewhere) == made
    assert made.client_token == client_token(REUSING)
    assert scene.notices == [NONE_FOUND]


async def test_user_gets_a_notice_before_another_access_point_is_created(scene: Scene) -> None:
    there = of_claim(scene, client_token(REUSING), OTHER)
    made = await scene.create(REUSING)
    assert (made.file_system_id, made.client_token) == (FS, own_token(REUSING, FS))
    elsewhere = f"Access point {there.access_point_id} of an earlier claim of this name is on {OTHER}"
    assert scene.notices == [NONE_FOUND, f"{elsewhere}, so another one is created on {FS}"]
    scene.restart()
    assert await scene.create(REUSING) == made


async def test_repeated_creation_of_another_access_point_keeps_its_token(scene: Scene) -> None:
    there = of_claim(scene, client_token(REUSING), OTHER)
    real = scene.api.create

    async def lose_the_second(request: AccessPointRequest) -> AccessPoint:
        if request.client_token == own_token(REUSING, FS):
            scene.api.lost.add("create")
        return await real(request)

    scene.api.create = lose_the_second  # type: ignore[method-assign]
    with pytest.raises(AwsUnavailable):
        await scene.create(REUSING)
    scene.api.create = real  # type: ignore[method-assign]
    scene.api.lost.clear()
    # With the token of the AWS driver, AWS would create a second one now.
    del scene.api.points[there.access_point_id]
    made = await scene.create(REUSING)
    assert list(scene.api.points.values()) == [made]


async def test_unsuitable_access_point_of_the_aws_driver_is_refused(scene: Scene) -> None:
    made = of_claim(scene, client_token(REUSING))
    scene.api.points[made.access_point_id] = replace(made, user=PosixUser(uid=5, gid=5))
    with pytest.raises(ExistingVolumeDiffers, match="has gid 5, which is not in 1000-1001"):
        await scene.create(REUSING)
    assert scene.api.calls["create"] == 0


async def test_access_point_being_deleted_is_not_reused(scene: Scene) -> None:
    made = await scene.create(request(**NARROW))
    scene.api.points[made.access_point_id] = replace(made, leaving=True)
    with pytest.raises(VolumePending, match="is being deleted"):
        await scene.create(request(**NARROW))
    scene.restart()
    with pytest.raises(VolumePending, match="is being deleted"):
        await scene.create(request(**NARROW))
    assert scene.index.gids.of("pvc-1") is None


async def test_access_point_that_only_the_creation_finds_is_checked_too(scene: Scene) -> None:
    made = await scene.create(request(**NARROW))
    scene.restart()
    scene.api.hidden = True
    with pytest.raises(ExistingVolumeDiffers, match="has gid 1000, which is not in 5-6"):
        await scene.create(request(gidRangeStart="5", gidRangeEnd="6"))
    scene.api.points[made.access_point_id] = replace(made, leaving=True)
    with pytest.raises(VolumePending, match="is being deleted"):
        await scene.create(request(**NARROW))


async def test_volume_on_a_file_system_that_the_class_no_longer_names_is_not_created_again(
    scene: Scene,
) -> None:
    made = await scene.create(request(fileSystemId=OTHER), OTHER)
    scene.restart()
    with pytest.raises(ExistingVolumeDiffers, match=f"is on {OTHER}, which the class does not name"):
        await scene.create(request())
    assert list(scene.api.points.values()) == [made]


async def test_access_point_on_another_file_system_of_the_class_is_reused_before_it_is_listed(
    scene: Scene,
) -> None:
    for place in (FS, OTHER):
        await scene.points.known.loaded(place)
    made = of_claim(scene, client_token(REUSING), OTHER)
    wanted = request(**BOTH, **NARROW, reuseAccessPoint="true")
    assert await scene.create(wanted, FS, OTHER) == made


async def test_creation_that_differs_from_the_existing_volume_holds_no_id(scene: Scene) -> None:
    await scene.create(request(**NARROW))
    scene.restart()
    with pytest.raises(ExistingVolumeDiffers):
        await scene.create(request(basePath="/elsewhere", gidRangeStart="5", gidRangeEnd="6"))
    assert not scene.index.gids.holders(5)


# --- access points of S3 Files, which are listed without their tokens


@pytest.mark.parametrize(
    ("name", "place", "may_get", "is_used", "is_found"),
    [
        ("pvc-1", "/shared", True, False, True),
        ("pvc-1", "/shared", False, False, True),
        ("pvc-1", "/shared", False, True, False),
        ("pvc-2", "/shared", True, False, False),
        ("pvc-1", "/other", False, False, False),
    ],
    ids=[
        "with the token of the volume",
        "with an unknown token",
        "with an unknown token, used by another volume",
        "with the token of another volume",
        "of another directory, with an unknown token",
    ],
)
async def test_volume_gets_only_its_own_access_point_of_the_directory(
    name: str, place: str, may_get: bool, is_used: bool, is_found: bool
) -> None:
    api = S3Api()
    api.may_get, scene = may_get, Scene(api=api)
    parameters = {"provisioningMode": "s3files-ap", "ensureUniqueDirectory": "false"}
    there = replace(foreign(scene, name, 50000), directory=parse_directory(place))
    api.points[there.access_point_id] = there
    if is_used:
        source = CsiSource(handle=f"s3files:{FS}::{there.access_point_id}")
        scene.index.put_volume(Volume(name="pvc-2", uid="1", csi=source))
    api.faults["create"] = AwsAlreadyExists("was answered with ConflictException", field="create")
    wanted = request(**parameters, basePath="/", subPathPattern="shared")
    if is_found:
        assert (await scene.create(wanted)).access_point_id == there.access_point_id
    else:
        with pytest.raises(AwsAlreadyExists):
            await scene.create(wanted)


# --- deletions


async def test_deletion_without_an_answer_is_repeated_until_it_is_confirmed(scene: Scene) -> None:
    made = await scene.create(request(**NARROW))
    scene.api.lost.add("delete")
    with pytest.raises(AwsUnavailable):
        await scene.points.delete(made, is_directory_gone=True)
    assert scene.held == {1000}
    await scene.points.delete(made, is_directory_gone=True)
    assert scene.held == set()


async def test_id_of_a_directory_that_stays_is_reassigned_last(scene: Scene) -> None:
    three = {"gidRangeStart": "1000", "gidRangeEnd": "1002"}
    made = await scene.create(request("pvc-1", **three))
    await scene.points.delete(made, is_directory_gone=False)
    later = [await scene.create(request(name, **three)) for name in ("pvc-2", "pvc-3", "pvc-4")]
    assert [one.user.gid for one in later if one.user] == [1001, 1002, 1000]


@pytest.mark.parametrize("start", ["1001", "2000"], ids=["ranges overlap", "ranges are apart"])
async def test_id_of_a_directory_that_stays_is_reassigned_last_whatever_other_classes_do(
    scene: Scene, start: str
) -> None:
    wide = {"gidRangeStart": start, "gidRangeEnd": "2099"}
    gone = [await scene.create(request(f"pvc-{number}", **wide)) for number in range(3)]
    for one in gone:
        await scene.points.delete(one, is_directory_gone=False)
    for number in range(2):
        await scene.create(request(f"pvc-a{number}", **NARROW))
    with pytest.raises(GidRangeFull):
        await scene.create(request("pvc-a2", **NARROW))
    made = await scene.create(request("pvc-b", **wide))
    assert made.user
    assert made.user.gid == int(start) + 3


async def test_id_of_the_directory_that_stays_for_longest_is_reassigned_first(scene: Scene) -> None:
    made = [await scene.create(request(name, **NARROW)) for name in ("pvc-1", "pvc-2")]
    for one in reversed(made):
        await scene.points.delete(one, is_directory_gone=False)
    later = [await scene.create(request(name, **NARROW)) for name in ("pvc-3", "pvc-4")]
    assert [one.user.gid for one in later if one.user] == [1001, 1000]
    assert not scene.points.known._retired


async def test_only_the_id_in_the_range_is_reassigned(scene: Scene) -> None:
    """The user ID of an access point with a fixed group ID is allocated, too."""
    made = await scene.create(request("pvc-1", **NARROW, gid="7"))
    assert made.user == PosixUser(uid=1000, gid=7)
    await scene.points.delete(made, is_directory_gone=False)
    for number, expected in enumerate((1001, 1000)):
        one = await scene.create(request(f"pvc-{number}", **NARROW))
        assert one.user == PosixUser(uid=expected, gid=expected)
    assert scene.index.gids.holders(7) == {made.access_point_id}
    other = await scene.create(request("pvc-3", gidRangeStart="7", gidRangeEnd="8"))
    assert other.user == PosixUser(uid=8, gid=8)


async def test_listed_access_point_deleted_by_others_is_not_found(scene: Scene) -> None:
    made = await scene.create(request(**NARROW))
    assert await scene.points.known.find(handle(made)) == made
    del scene.api.points[made.access_point_id]
    assert await scene.points.known.find(handle(made)) is None
    await scene.points.delete(made, is_directory_gone=True)
    assert scene.held == set()


# --- full file systems


@pytest.mark.parametrize("is_listed", [True, False], ids=["known from the list", "reported by AWS"])
async def test_full_file_system_is_tried_again_after_a_minute(is_listed: bool) -> None:
    scene = Scene(quota=1 if is_listed else 10)
    other = foreign(scene, "other", 5)
    if not is_listed:
        await scene.fail(request(), AwsLimitReached("is full", field="create"))
    else:
        with pytest.raises(AwsLimitReached):
            await scene.create(request())
    del scene.api.points[other.access_point_id]
    calls = dict(scene.api.calls)
    with pytest.raises(AwsLimitReached):
        await scene.create(request())
    assert scene.api.calls == calls  # AWS is not called for each attempt
    scene.now += 60
    assert (await scene.create(request())).file_system_id == FS


# --- lists


class Slow:
    """Lists that are answered on request, with the access points that existed when they began."""

    def __init__(self, scene: Scene) -> None:
        self.began: list[asyncio.Future[None]] = []
        self._real = scene.api.list
        scene.api.list = self._list  # type: ignore[method-assign]

    async def _list(self, file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        found = await self._real(file_system_id)
        self.began.append(asyncio.get_running_loop().create_future())
        await self.began[-1]
        return found

    async def rest(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_roots_come_from_a_list_that_began_after_the_call(scene: Scene) -> None:
    await scene.create(request())
    slow = Slow(scene)
    first = asyncio.create_task(scene.points.known.roots(FS))
    await slow.rest()
    late = foreign(scene, "late", 5)
    others = [asyncio.create_task(scene.points.known.roots(FS)) for _ in range(3)]
    await slow.rest()
    assert len(slow.began) == 1
    slow.began[0].set_result(None)
    assert late not in await first
    await slow.rest()
    assert len(slow.began) == 2
    slow.began[1].set_result(None)
    for one in others:
        assert late in await one


async def test_roots_omit_access_points_being_deleted(scene: Scene) -> None:
    made = await scene.create(request())
    scene.api.points[made.access_point_id] = replace(made, leaving=True)
    assert await scene.points.known.roots(FS) == ()


async def test_roots_contain_what_a_list_omits_unless_aws_says_that_it_does_not_exist(scene: Scene) -> None:
    listed, omitted = await scene.create(request("pvc-1")), await scene.create(request("pvc-2"))
    scene.restart()
    elsewhere = replace(omitted, access_point_id=AccessPointId("fsap-9"), file_system_id=OTHER)
    scene.api.points[elsewhere.access_point_id] = elsewhere
    scene.api.omitted.add(omitted.access_point_id)
    assert await scene.points.known.roots(FS) == (listed,)
    gone = AccessPointId("fsap-0")
    named = {listed.access_point_id, omitted.access_point_id, elsewhere.access_point_id, gone}
    gets = scene.api.calls["get"]
    assert await scene.points.known.roots(FS, named) == (listed, omitted)
    assert scene.api.calls["get"] - gets == 3
    scene.api.faults["get"] = AwsUnavailable("is away", field="get")
    with pytest.raises(AwsUnavailable):
        await scene.points.known.roots(FS, named)


GONE = frozenset(AccessPointId(f"fsap-{number:017x}") for number in range(900, 1200))


async def test_access_points_that_are_missing_for_a_minute_cost_no_more_calls(scene: Scene) -> None:
    """Volumes with the policy Retain name them indefinitely."""
    omitted = await scene.create(request())
    scene.restart()
    known = scene.points.known
    scene.api.omitted.add(omitted.access_point_id)
    named = {*GONE, omitted.access_point_id}
    calls = []
    for scene.now in (0, 59, 60, 61, 62):
        before = scene.api.calls["get"]
        assert await known.roots(FS, named) == (omitted,)
        # As for the last removal on a file system, which needs only the list.
        await known.roots(FS)
        calls.append(scene.api.calls["get"] - before)
    assert calls == [301, 301, 301, 1, 1]
    # What no volume names is not remembered.
    calls.clear()
    for scene.now in (100, 161, 222, 223):
        if scene.now < 222:
            await known.roots(FS, {omitted.access_point_id})
        before = scene.api.calls["get"]
        await known.roots(FS, named)
        calls.append(scene.api.calls["get"] - before)
    assert calls == [301, 301, 301, 1]


async def test_access_point_that_was_missing_for_a_moment_is_read_again(scene: Scene) -> None:
    """AWS may not know a new access point everywhere."""
    made = await scene.create(request())
    scene.api.omitted.add(made.access_point_id)
    for scene.now, is_there in ((0, False), (30, True), (70, False), (71, True)):
        scene.api.points = {made.access_point_id: made} if is_there else {}
        found = await scene.points.known.roots(FS, {made.access_point_id})
        assert found == ((made,) if is_there else ())


async def test_new_access_point_that_a_list_omits_stays_known_for_a_minute(scene: Scene) -> None:
    made, known = await scene.create(request(**NARROW)), scene.points.known
    scene.api.omitted.add(made.access_point_id)
    for scene.now in (0, 59):
        assert await known.roots(FS) == (made,)
        assert known.on(FS) == {made.access_point_id: made}
    gets = scene.api.calls["get"]
    scene.now = 60
    assert await known.roots(FS) == ()
    assert (known.on(FS), scene.api.calls["get"]) == ({}, gets)
    # A list can contain it again.
    scene.api.omitted.clear()
    assert await known.roots(FS) == (made,)
    scene.api.omitted.add(made.access_point_id)
    assert await known.roots(FS) == (made,)


async def test_new_access_point_that_others_have_deleted_is_no_root(scene: Scene) -> None:
    """Otherwise, it would keep the directory of another one."""
    await scene.create(request())
    scene.api.points.clear()
    assert await scene.points.known.roots(FS) == ()


async def test_access_point_that_another_controller_has_just_created_stays_known_too(scene: Scene) -> None:
    made, known = foreign(scene, "pvc-9", 1000), scene.points.known
    await known.loaded(FS)
    scene.api.omitted.add(made.access_point_id)
    scene.now = 59
    assert await known.roots(FS) == (made,)


async def test_volumes_get_different_ids_although_a_list_omits_one(scene: Scene) -> None:
    first, second = [await scene.create(request(name, **NARROW)) for name in ("pvc-1", "pvc-2")]
    scene.api.omitted.add(second.access_point_id)
    await scene.points.known.refresh(FS)
    with pytest.raises(GidRangeFull):
        await scene.create(request("pvc-3", **NARROW))
    await scene.points.delete(first, is_directory_gone=True)
    third = await scene.create(request("pvc-3", **NARROW))
    assert {one.user.gid for one in (second, third) if one.user} == {1000, 1001}


async def test_lists_without_the_named_access_points_are_no_proof_for_a_minute() -> None:
    """Without GetAccessPoint; one minute is enough for all of them."""
    scene = Scene()
    scene.api = api = S3Api(lambda: scene.now)
    api.may_get = False
    scene.restart()
    made = await scene.create(request())
    scene.restart()
    api.omitted.add(made.access_point_id)
    named = {made.access_point_id, *GONE}
    for scene.now in (0, 59):
        with pytest.raises(AwsNotListed):
            await scene.points.known.roots(FS, named)
    api.omitted.clear()
    scene.now = 60
    (found,) = await scene.points.known.roots(FS, named)
    assert found.access_point_id == made.access_point_id


async def test_minute_begins_with_the_answer(scene: Scene) -> None:
    """A slow call may say what was true long after it began."""
    made = await scene.create(request())
    scene.api.omitted.add(made.access_point_id)
    get, scene.api.points = scene.api.get, {}

    async def get_slowly(access_point_id: AccessPointId, _file_system_id: FileSystemId) -> AccessPoint:
        scene.now += 100
        return await get(access_point_id, _file_system_id)

    scene.api.get = get_slowly  # type: ignore[method-assign]
    for _ in range(2):
        assert await scene.points.known.roots(FS, {made.access_point_id}) == ()
    scene.api.points = {made.access_point_id: made}
    assert await scene.points.known.roots(FS, {made.access_point_id}) == (made,)


async def test_waiting_callers_share_the_calls_for_omitted_access_points(scene: Scene) -> None:
    get, running, most, has_begun = scene.api.get, 0, 0, asyncio.Event()

    async def get_slowly(access_point_id: AccessPointId, _file_system_id: FileSystemId) -> AccessPoint:
        nonlocal running, most
        running += 1
        most = max(most, running)
        has_begun.set()
        await asyncio.sleep(0)
        running -= 1
        return await get(access_point_id, _file_system_id)

    scene.api.get = get_slowly  # type: ignore[method-assign]
    await asyncio.gather(*(scene.points.known.roots(FS, GONE) for _ in range(20)))
    assert (most, scene.api.calls["get"]) == (8, len(GONE))
    # A later caller must not get an earlier answer.
    first = asyncio.create_task(scene.points.known.roots(FS, GONE))
    has_begun.clear()
    await has_begun.wait()
    await asyncio.gather(first, *(scene.points.known.roots(FS, GONE) for _ in range(20)))
    assert scene.api.calls["get"] == 3 * len(GONE)


async def test_failed_call_for_an_omitted_access_point_ends_the_others(scene: Scene) -> None:
    get, calls = scene.api.get, 0

    async def fail_once(access_point_id: AccessPointId, _file_system_id: FileSystemId) -> AccessPoint:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise AwsUnavailable("is away", field="get")
        await asyncio.sleep(0)
        return await get(access_point_id, _file_system_id)

    scene.api.get = fail_once  # type: ignore[method-assign]
    with pytest.raises(AwsUnavailable):
        await scene.points.known.roots(FS, GONE)
    await asyncio.sleep(0.1)
    assert calls < 50
    assert await scene.points.known.roots(FS, GONE) == ()


async def test_list_does_not_undo_concurrent_changes(scene: Scene) -> None:
    leaving = await scene.create(request("pvc-1", **NARROW))
    slow = Slow(scene)
    listing = asyncio.create_task(scene.points.known.refresh(FS))
    await slow.rest()
    await scene.points.delete(leaving, is_directory_gone=True)
    made = await scene.create(request("pvc-2", **NARROW))
    assert made.user == PosixUser(uid=1000, gid=1000)
    slow.began[0].set_result(None)
    await listing
    assert scene.points.known.counts == {FS: 1}
    assert (await scene.create(request("pvc-3", **NARROW))).user == PosixUser(uid=1001, gid=1001)
    with pytest.raises(GidRangeFull):
        await scene.create(request("pvc-4", **NARROW))


async def test_age_of_a_list_is_counted_from_its_beginning() -> None:
    scene = Scene(is_alone=False)
    slow = Slow(scene)
    first = asyncio.create_task(scene.points.known.loaded(FS))
    await slow.rest()
    foreign(scene, "of another replica", 1000)  # which the list does not contain
    scene.now += 15
    slow.began[0].set_result(None)
    await first
    creation = asyncio.create_task(scene.create(request(**NARROW)))
    await slow.rest()
    slow.began[1].set_result(None)
    assert (await creation).user == PosixUser(uid=1001, gid=1001)


async def test_failed_list_is_repeated_for_the_next_caller(scene: Scene) -> None:
    scene.api.faults["list"] = AwsUnavailable("is away", field="list")
    with pytest.raises(AwsUnavailable):
        await scene.points.known.roots(FS)
    scene.api.faults.clear()
    assert await scene.points.known.roots(FS) == ()


async def test_creation_without_an_answer_is_decided_if_its_file_system_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After five minutes, in which the first request could still take effect."""

    def refuse(name: str) -> None:
        if name in {"create", "list"}:
            raise AwsNotFound("was answered with FileSystemNotFound", field=name)

    scene = Scene()
    await scene.fail(request(), LOST)
    monkeypatch.setattr(scene.api, "call", refuse)
    unknown = []
    for _ in range(10):
        scene.now += 60
        with pytest.raises(AwsNotFound) as caught:
            await scene.create(request())
        unknown.append(caught.value.outcome_unknown)
    assert unknown == [True] * 4 + [False] * 6
