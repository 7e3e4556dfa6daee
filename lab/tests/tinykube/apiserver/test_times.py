"""Times as kube-apiserver takes and keeps them."""

import pytest

from tinykube.objects.values import Undecodable, canonical_micro_time, canonical_time


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", id="as it is kept"),
        pytest.param("2026-01-02T03:04:05.678901Z", "2026-01-02T03:04:05Z", id="to the second"),
        pytest.param("2026-01-02T03:04:05+01:00", "2026-01-02T02:04:05Z", id="in UTC"),
    ],
)
def test_times_are_kept_to_the_second(text: str, kept: str) -> None:
    assert canonical_time(text) == kept


def test_micro_times_are_kept_in_utc() -> None:
    assert canonical_micro_time("2026-01-02T03:04:05.000006-01:00") == "2026-01-02T04:04:05.000006Z"


@pytest.mark.parametrize("text", ["yesterday", "2026-02-30T00:00:00.000000Z", "2026-01-02T03:04:05"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(Undecodable, match=text):
        canonical_micro_time(text)
