"""When a volume exceeds its request, and the document with usages."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model import usage
from kube_efs.model.errors import InvalidValue
from kube_efs.model.sizes import format_size
from kube_efs.model.usage import (
    EarlierSize,
    TreeSize,
    VolumeUsage,
    is_over,
    parse_usage,
    render_usage,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TIMES = st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@pytest.mark.parametrize(
    ("used", "complete", "was_over", "expected"),
    [
        pytest.param(999, True, False, False, id="below"),
        pytest.param(1000, True, False, False, id="exactly full"),
        pytest.param(1001, True, False, True, id="over"),
        pytest.param(1001, False, False, True, id="over, also if incomplete"),
        pytest.param(500, False, False, False, id="incomplete and below"),
        pytest.param(960, True, True, True, id="slightly below"),
        pytest.param(950, True, True, False, id="clearly below"),
        pytest.param(500, False, True, True, id="incomplete and clearly below"),
    ],
)
def test_volume_is_over_its_request_with_hysteresis(
    used: int, complete: bool, was_over: bool, expected: bool
) -> None:
    size = TreeSize(used_bytes=used, entries=1, complete=complete)
    assert is_over(size, 1000, was_over=was_over) is expected


def test_volume_without_a_request_is_never_over() -> None:
    assert not is_over(TreeSize(used_bytes=1, entries=1), 0, was_over=False)


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.builds(
            VolumeUsage,
            size=st.builds(
                TreeSize,
                used_bytes=st.integers(0, 2**63),
                entries=st.integers(0, 2**40),
                complete=st.booleans(),
            ),
            measured_at=TIMES,
            over=st.booleans(),
            earlier=st.none() | st.builds(EarlierSize, used_bytes=st.integers(0, 2**63), measured_at=TIMES),
        ),
    )
)
def test_rendered_usage_is_read_back(known: dict[str, VolumeUsage]) -> None:
    assert parse_usage(render_usage(known)) == known


def _measured(used: int, *, complete: bool = True) -> TreeSize:
    return TreeSize(used_bytes=used, entries=1, complete=complete)


def test_growth_is_that_since_a_measurement_within_a_day() -> None:
    usage = VolumeUsage(size=_measured(100), measured_at=NOW)
    assert usage.growth_bytes_a_day is None

    usage = usage.followed_by(_measured(150), measured_at=NOW + timedelta(hours=12), over=False)
    assert usage.growth_bytes_a_day == 100
    usage = usage.followed_by(_measured(70), measured_at=NOW + timedelta(hours=24), over=True)
    assert (usage.growth_bytes_a_day, usage.over) == (-30, True)
    # The first size is more than a day old now, so the last one takes its place.
    usage = usage.followed_by(_measured(80), measured_at=NOW + timedelta(hours=36), over=False)
    assert usage.growth_bytes_a_day == 20


def test_growth_from_or_to_a_lower_bound_is_not_known() -> None:
    bound = VolumeUsage(size=_measured(100, complete=False), measured_at=NOW)
    later = bound.followed_by(_measured(200), measured_at=NOW + timedelta(hours=1), over=False)
    assert later.growth_bytes_a_day is None
    again = later.followed_by(
        _measured(300, complete=False), measured_at=NOW + timedelta(hours=2), over=False
    )
    assert again.growth_bytes_a_day is None


def test_document_of_an_earlier_version_is_read() -> None:
    assert parse_usage('{"volumes": {"pv": [1, 2, 3, true, false]}}')["pv"].earlier is None


def test_fullest_volumes_are_kept_when_the_document_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_DOCUMENT_MAX_CHARACTERS", 1000)
    known = {
        f"pvc-{number}": VolumeUsage(size=TreeSize(used_bytes=number, entries=1), measured_at=NOW)
        for number in range(100)
    }
    text = render_usage(known)
    kept = parse_usage(text)
    assert len(text) <= 1000
    assert 10 < len(kept) < 100
    assert min(one.size.used_bytes for one in kept.values()) == 100 - len(kept)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"volumes": []}',
        '{"volumes": {"a": [1]}}',
        '{"volumes": {"a": [1, 1, 1e30, 1, 1]}}',
        '{"volumes": {"a": ["x", 1, 1, 1, 1]}}',
    ],
)
def test_invalid_usage_document_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not a usage document"):
        parse_usage(text)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (1024**3 - 1, "1.0 GiB"),
        (5 * 1024**4, "5.0 TiB"),
        (2048 * 1024**5, "2048.0 PiB"),
    ],
)
def test_sizes_are_formatted(size: int, words: str) -> None:
    assert format_size(size) == words
