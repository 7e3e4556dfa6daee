from hypothesis import given
from hypothesis import strategies as st

from tinykube.kubelet.launch import Bind, Launch, parse_launch, render_launch

texts = st.text(st.characters(codec="utf-8"), max_size=20)
binds = st.builds(Bind, source=texts, target=texts, read_only=st.booleans())
launches = st.builds(
    Launch,
    argv=st.lists(texts).map(tuple),
    env=st.dictionaries(texts, texts),
    scratch=texts,
    uid=st.integers(0, 2**32),
    gid=st.integers(0, 2**32),
    groups=st.lists(st.integers(0, 2**32)).map(tuple),
    read_only_root=st.booleans(),
    binds=st.lists(binds).map(tuple),
    hidden=st.lists(texts).map(tuple),
)


@given(launches)
def test_what_is_rendered_is_parsed_the_same(launch: Launch) -> None:
    assert parse_launch(render_launch(launch)) == launch
