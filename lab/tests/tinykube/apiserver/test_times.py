"""Times as they are kept."""

import pytest

from tinykube.objects.values import Undecodable, canonical_time


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", id="as it is"),
        pytest.param("2026-01-02T03:04:05.000006-01:00", "2026-01-02T04:04:05.000006Z", id="a fraction"),
        pytest.param("2026-01-02T03:04:05+01:00", "2026-01-02T02:04:05Z", id="in UTC"),
    ],
)
def test_times_are_kept_in_utc(text: str, kept: str) -> None:
    assert canonical_time(text) == kept


@pytest.mark.parametrize("text", ["yesterday", "2026-02-30T00:00:00.000000Z", "2026-01-02T03:04:05"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(Undecodable, match=text):
        canonical_time(text)
