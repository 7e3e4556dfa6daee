"""Group IDs: the lowest free one is assigned, and only its holder can release it."""

from contextlib import suppress
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import WorkerFailed
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import Location
from kube_efs.provisioning.gid_ledger import GidIndex, GidLedger

THREE = GidRange(minimum=2000, maximum=2002)


def test_lowest_free_group_is_assigned_and_freed_groups_first() -> None:
    index = GidIndex()
    assert [index.take(THREE, name) for name in "abc"] == [2000, 2001, 2002]
    index.release("b")
    assert index.take(THREE, "d") == 2001


def test_full_range_gives_no_group_until_one_is_released() -> None:
    index = GidIndex()
    for name in "abc":
        index.take(THREE, name)
    assert index.take(THREE, "d") is None
    assert index.of("d") is None
    index.release("c")
    assert index.take(THREE, "d") == 2002


def test_holder_gets_the_same_group_again() -> None:
    index = GidIndex()
    index.take(THREE, "a")
    assert [index.take(THREE, "b"), index.take(THREE, "b")] == [2001, 2001]


def test_holder_of_a_group_outside_the_range_gets_one_inside() -> None:
    index = GidIndex()
    index.hold(50, "a")
    assert index.take(THREE, "a") == 2000
    assert index.holders(50) == frozenset()


def test_holder_of_a_shared_group_gets_its_own() -> None:
    index = GidIndex()
    for name in "ab":
        index.hold(2000, name)
    assert index.lowest_free(THREE, "b") == 2001
    assert [index.take(THREE, "b"), index.take(THREE, "a")] == [2001, 2000]


def test_group_with_two_holders_is_free_when_both_release_it() -> None:
    index = GidIndex()
    for name in "ab":
        index.hold(2000, name)
    index.release("a")
    assert index.take(THREE, "c") == 2001
    index.release("b")
    assert index.take(THREE, "d") == 2000


def test_group_held_elsewhere_is_not_assigned() -> None:
    index = GidIndex()
    index.take(GidRange(minimum=2001, maximum=3000), "other class")
    assert [index.take(THREE, "a"), index.take(THREE, "b")] == [2000, 2002]


def test_release_of_an_unknown_holder_changes_nothing() -> None:
    index = GidIndex()
    index.take(THREE, "a")
    index.release("b")
    assert index.holders(2000) == {"a"}


def kept(index: GidIndex) -> int:
    """How many entries the index keeps for IDs without a holder."""
    cursors = index._cursors.values()
    return sum(1 + len(cursor.freed) + len(cursor.is_freed) for cursor in cursors)


def test_deleted_classes_leave_nothing_behind() -> None:
    index = GidIndex()
    index.take(THREE, "a")
    index.release("a")
    for minimum in range(10_000, 12_000):
        index.take(GidRange(minimum=minimum, maximum=minimum + 5000), "b")
        index.release("b")
    assert kept(index) < 300
    assert [index.take(THREE, "a"), index.take(THREE, "b")] == [2000, 2001]


def test_repeatedly_freed_group_is_stored_once() -> None:
    index, wide = GidIndex(), GidRange(minimum=2000, maximum=2999)
    for name in "abc":
        index.take(wide, name)
    index.release("a")
    for _ in range(1000):
        index.hold(2001, "elsewhere")
        index.hold(2002, "elsewhere")
        index.release("b")
        index.release("c")
        index.release("elsewhere")
    assert kept(index) < 10


_RANGES = st.sampled_from(
    [GidRange(minimum=low, maximum=high) for low in range(2000, 2006) for high in range(low, 2008)]
)
_HOLDERS = st.sampled_from("abcdefghij")


class Allocation(RuleBasedStateMachine):
    """Compares the index with a simple dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.index = GidIndex()
        self.truth: dict[str, int] = {}

    @rule(within=_RANGES, holder=_HOLDERS)
    def take(self, within: GidRange, holder: str) -> None:
        free = [gid for gid in range(within.minimum, within.maximum + 1) if gid not in self.truth.values()]
        own = self.truth.get(holder)
        is_kept = own is not None and own in within and list(self.truth.values()).count(own) == 1
        expected = own if is_kept else min(free, default=None)
        assert self.index.take(within, holder) == expected
        if expected is not None:
            self.truth[holder] = expected

    @rule(gid=st.integers(min_value=1999, max_value=2009), holder=_HOLDERS)
    def hold(self, gid: int, holder: str) -> None:
        self.index.hold(gid, holder)
        self.truth[holder] = gid

    @rule(holder=_HOLDERS)
    def release(self, holder: str) -> None:
        self.index.release(holder)
        self.truth.pop(holder, None)

    @invariant()
    def agrees(self) -> None:
        assert {holder: self.index.of(holder) for holder in self.truth} == self.truth
        assert len(self.index) == len(set(self.truth.values()))


TestAllocation = Allocation.TestCase


@given(st.lists(st.integers(min_value=0, max_value=999), unique=True, max_size=400))
def test_released_groups_are_reused_lowest_first(released: list[int]) -> None:
    index, wide = GidIndex(), GidRange(minimum=2000, maximum=2999)
    for number in range(1000):
        index.take(wide, str(number))
    for number in released:
        index.release(str(number))
    again = [index.take(wide, f"new-{number}") for number in range(len(released))]
    assert again == sorted(2000 + number for number in released)


def test_scan_that_began_before_a_repeated_attempt_does_not_free_its_group() -> None:
    ledger, base = (
        GidLedger({}),
        Location(file_system_id=FileSystemId("fs-1"), directory=parse_directory("/")),
    )
    within, place = GidRange(minimum=2000, maximum=3000), replace(base, directory=parse_directory("/a"))
    ledger.add_base(base)
    with suppress(WorkerFailed), ledger.taking(within, "a", place):
        raise WorkerFailed("did not answer")
    scan = ledger.begin_scan()
    # The directory is created now, and only the answer is lost.
    with suppress(WorkerFailed), ledger.taking(within, "a", place):
        raise WorkerFailed("did not answer")
    ledger.found(scan, base, {})
    with ledger.taking(within, "b", replace(base, directory=parse_directory("/b"))) as gid:
        assert gid == 2001
    # A later scan shows that it does not exist.
    ledger.found(ledger.begin_scan(), base, {"b": (place, 2001)})
    assert ledger.gids.of("a") is None
