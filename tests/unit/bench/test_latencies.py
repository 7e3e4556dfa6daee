"""The figures of a load: the distribution of claims, and percentiles."""

from collections import Counter

import pytest
from bench.claiming import orders
from bench.latencies import Summary, Timing, percentile, rate, slope, spread, summarize
from bench.load import parse_mix

from kube_efs.model.errors import InvalidValue


@pytest.mark.parametrize(
    ("weights", "count", "names"),
    [
        ({"a": 1}, 3, "aaa"),
        ({"a": 1, "b": 1}, 4, "abab"),
        ({"a": 3, "b": 1}, 8, "aabaaaba"),
        ({"a": 1, "b": 2, "c": 1}, 4, "bacb"),
        ({"a": 1, "b": 1}, 0, ""),
    ],
)
def test_classes_are_mixed_evenly(weights: dict[str, int], count: int, names: str) -> None:
    assert "".join(spread(weights, count)) == names


def test_mix_is_exact_over_complete_rounds() -> None:
    assert Counter(spread({"a": 5, "b": 2, "c": 3}, 1_000)) == {"a": 500, "b": 200, "c": 300}


@pytest.mark.parametrize(
    ("percent", "wanted"), [(0, 1.0), (50, 5.0), (51, 6.0), (90, 9.0), (99, 10.0), (100, 10.0)]
)
def test_percentile_is_one_of_the_values(percent: float, wanted: float) -> None:
    assert percentile([float(number) for number in range(1, 11)], percent) == wanted


def test_empty_list_has_no_percentile() -> None:
    assert percentile([], 50) is None


def test_time_is_measured_from_the_due_time_of_a_claim() -> None:
    timings = [
        Timing(name="1", storage_class="b", due=1.0, bound=1.5),
        Timing(name="2", storage_class="b", due=2.0),
        Timing(name="3", storage_class="a", due=0.0, bound=4.0),
    ]
    assert summarize(timings) == [
        Summary(storage_class="a", claims=1, bound=1, p50=4.0, p90=4.0, p99=4.0, longest=4.0),
        Summary(storage_class="b", claims=2, bound=1, p50=0.5, p90=0.5, p99=0.5, longest=0.5),
        Summary(storage_class="all", claims=3, bound=2, p50=0.5, p90=4.0, p99=4.0, longest=4.0),
    ]


def test_rate_and_slope() -> None:
    moments = [0.25 * number + 2 for number in range(1, 101)]
    assert rate(moments) == pytest.approx(100 / 27)
    assert slope(moments[::-1]) == pytest.approx(0.25)
    assert rate([]) == 0.0


def test_orders_are_due_at_the_rate_and_select_where_they_must() -> None:
    made = orders(["efs-sc", "tunnel-sc", "efs-sc"], 4.0, selecting={"tunnel-sc"})
    assert [(one.name, one.due, one.labels) for one in made] == [
        ("claim-0", 0.0, None),
        ("claim-1", 0.25, {"volume_name": "volume_1"}),
        ("claim-2", 0.5, None),
    ]
    assert {one.due for one in orders(["efs-sc"] * 3, None)} == {0.0}


@pytest.mark.parametrize(
    ("texts", "mix"),
    [
        (["efs-sc"], {"efs-sc": 1}),
        (["efs-sc=3", "tunnel-sc"], {"efs-sc": 3, "tunnel-sc": 1}),
        (["efs-sc=3", "efs-sc"], {"efs-sc": 4}),
    ],
)
def test_classes_have_weights(texts: list[str], mix: dict[str, int]) -> None:
    assert parse_mix(texts) == mix


@pytest.mark.parametrize(
    "text", ["", "=3", "efs-sc=0", "efs-sc=-1", "efs-sc=1.5", "efs-sc=many", "efs-sc=000"]
)
def test_invalid_weights_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_mix([text])
