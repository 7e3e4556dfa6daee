"""The figures of the data planes, from samples."""

import pytest
from bench.data_planes import relay_ratios, side_by_side
from bench.figures import Figure
from bench.plane_samples import COUNTS, Metric, Samples
from bench.planes import BARE, EFS_PROXY, RELAY, STUNNEL

_OF_ROUNDS = tuple(metric for metric in Metric if metric not in {Metric.ADD_TIME, Metric.ADD_CPU})
_OF_NEW_TUNNELS = tuple(metric.at(count) for count in COUNTS for metric in (Metric.ADD_TIME, Metric.ADD_CPU))


def _samples(**changed: dict[str, list[float]]) -> Samples:
    """Each plane needs another amount of everything; ``changed`` are samples of the relay."""
    amounts = {STUNNEL: 10.0, RELAY: 5.0, BARE: 8.0, EFS_PROXY: 50.0}
    found = {
        plane: {metric: [amount, amount, amount] for metric in (*_OF_ROUNDS, *_OF_NEW_TUNNELS)}
        for plane, amount in amounts.items()
    }
    found[RELAY] |= changed.get("relay", {})
    return found


def _without(samples: Samples, *planes: str) -> Samples:
    return {plane: found for plane, found in samples.items() if plane not in planes}


def _figure(figures: list[Figure], name: str) -> Figure:
    return next(one for one in figures if one.name == name)


def test_other_planes_are_beside_stunnel() -> None:
    figures = list(side_by_side(_without(_samples(), RELAY)))
    speed = _figure(figures, "speed of writes")
    assert (speed.value, speed.unit, speed.goal) == (10.0, "MiB/s", "")
    assert speed.detail == "bare stunnel 8, efs-proxy 50"


def test_missing_efs_proxy_is_said() -> None:
    figures = list(side_by_side(_without(_samples(), RELAY, EFS_PROXY)))
    assert _figure(figures, "CPU of a GiB written").detail == (
        "bare stunnel 8, efs-proxy left out, because EFS_PROXY names no program"
    )
    assert _figure(figures, "speed of reads").detail == "bare stunnel 8"


def test_plane_with_a_process_for_each_tunnel_has_no_samples_of_many() -> None:
    samples = _samples()
    bare = {name: values for name, values in samples[BARE].items() if "1,000" not in name}
    figures = list(side_by_side({STUNNEL: samples[STUNNEL], BARE: bare}))
    assert _figure(figures, "time until a new tunnel answers at 1,000 tunnels").detail == ""


def test_ratio_is_the_median_of_the_rounds() -> None:
    samples = _samples(relay={Metric.WRITE_CPU: [6.0, 9.0, 7.0]})
    found = _figure(list(relay_ratios(samples)), "CPU of a GiB written, relay ÷ stunnel of the agent")
    assert (found.value, found.goal, found.met) == (0.7, "≤ 0.65", False)


def test_ratio_of_a_guest_says_so_and_has_the_amounts() -> None:
    name = "speed of reads, relay ÷ stunnel of the agent, in a guest"
    found = _figure(list(relay_ratios(_samples(), where=", in a guest")), name)
    assert (found.value, found.met, found.detail) == (0.5, None, "5 MiB/s ÷ 10 MiB/s")


@pytest.mark.parametrize(
    ("metric", "goal"),
    [
        (Metric.WRITE_CPU, "≤ 0.8"),
        (Metric.READ_CPU, "≤ 0.8"),
        (Metric.BUSY_MEMORY, "≤ 0.05"),
        (Metric.ADD_TIME.at(10), "≤ 0.1"),
        (Metric.ADD_CPU.at(10), "≤ 0.1"),
        (Metric.IDLE_MEMORY, ""),
    ],
)
def test_relay_has_goals_beside_efs_proxy(metric: str, goal: str) -> None:
    found = _figure(list(relay_ratios(_samples())), f"{metric}, relay ÷ efs-proxy")
    assert (found.value, found.goal) == (0.1, goal)


def test_without_efs_proxy_there_is_no_ratio_to_it() -> None:
    names = [one.name for one in relay_ratios(_without(_samples(), EFS_PROXY))]
    assert names
    assert not [name for name in names if EFS_PROXY in name]
