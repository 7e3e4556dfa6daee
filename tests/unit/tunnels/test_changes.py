"""Work for changed values only."""

from kube_efs.tunnels.changes import Incremental, changed_keys


def test_new_changed_and_removed_keys_have_changed() -> None:
    kept, old, new = [1], [2], [2]
    before = {"kept": kept, "changed": old, "removed": old}
    now = {"kept": kept, "changed": new, "added": new}
    assert changed_keys(before, now) == {"changed", "removed", "added"}
    assert changed_keys(before, dict(before)) == changed_keys(before, before) == set()


def test_result_is_computed_again_only_for_another_object() -> None:
    computed: list[str] = []

    def compute(text: str) -> str:
        computed.append(text)
        return text.upper()

    results = Incremental(compute)
    a, b = "a", "b"
    assert results.results({"2": b, "1": a}) == ["A", "B"]
    assert results.results({"1": a, "2": b, "3": "c"}) == ["A", "B", "C"]
    assert results.results({"2": b, "1": "x"}) == ["X", "B"]
    assert results.results({"1": "x", "2": b, "3": "c"}) == ["X", "B", "C"]
    assert computed == ["a", "b", "c", "x", "c"]
