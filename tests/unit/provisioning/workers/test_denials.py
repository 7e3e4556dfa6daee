"""When worker pods avoid a node, and when they pause."""

from kube_efs.provisioning.workers.denials import Denials

WHY = "access denied by server"


def denied(*nodes: str, now: float = 1000.0) -> Denials:
    """After pods that ran one after the other."""
    denials = Denials()
    for node in nodes:
        denials = denials.after_denial(node, WHY, avoided=denials.nodes(now=now), now=now, has_others=True)
    return denials


def test_one_denied_node_is_avoided_without_a_pause() -> None:
    denials = denied("one")
    assert denials.nodes(now=1000) == {"one"}
    assert denials.paused_until == 0


def test_avoided_node_that_is_used_has_no_alternative() -> None:
    assert denied("one", "one").paused_until == 1300


def test_pods_on_one_node_at_the_same_time_are_no_pause() -> None:
    first = Denials().after_denial("one", WHY, avoided=(), now=1000, has_others=True)
    assert first.after_denial("one", WHY, avoided=(), now=1000, has_others=True).paused_until == 0


def test_denial_without_a_known_node_is_a_pause_and_no_node_is_avoided() -> None:
    denials = Denials().after_denial(None, WHY, avoided=(), now=1000, has_others=True)
    assert (denials.nodes(now=1000), denials.paused_until) == (frozenset(), 1300)


def test_third_node_in_succession_is_a_denial_of_all() -> None:
    assert denied("one", "two").paused_until == 0
    assert denied("one", "two", "three").paused_until == 1300


def test_success_on_another_node_ends_the_succession_and_the_pause() -> None:
    denials = denied("one", "two", "two").after_success()
    assert denials.paused_until == 0
    assert denials.nodes(now=1000) == {"one", "two"}
    after = denials.after_denial("three", WHY, avoided={"one", "two"}, now=1000, has_others=True)
    assert after.paused_until == 0


def test_denial_of_the_only_node_is_one_of_all() -> None:
    denials = Denials().after_denial("one", WHY, avoided=(), now=1000, has_others=False)
    assert (denials.paused_until, denials.reason) == (1300, WHY)


def test_reason_of_a_pause_stays_until_its_end() -> None:
    """Pods that started before the pause are denied during it, and each text is another event of a claim."""
    paused = denied("one", "one")
    later = paused.after_denial("one", "of another pod", avoided=(), now=1299, has_others=False)
    assert later.reason == WHY
    assert paused.after_denial("one", "newer", avoided=(), now=1300, has_others=False).reason == "newer"


def test_after_a_pause_one_more_denial_is_sufficient() -> None:
    paused = denied("one", "one")
    again = paused.after_denial("one", WHY, avoided=paused.nodes(now=1301), now=1301, has_others=True)
    assert again.paused_until == 1601


def test_avoided_nodes_are_forgotten() -> None:
    assert denied("one").nodes(now=1000 + 3600) == frozenset()
