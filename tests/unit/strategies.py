"""Strategies of hypothesis that several tests use."""

from hypothesis import strategies as st


def file_names(*, max_size: int, excluded: str = "/") -> st.SearchStrategy[str]:
    """Printable names of files and directories, without the ``excluded`` characters.

    The alphabet has only such characters. With a filter for whole names, hypothesis sometimes gives up.
    """
    printable = st.characters(
        exclude_categories=["C", "Z"], include_characters=" ", exclude_characters=excluded
    )
    return st.text(printable, min_size=1, max_size=max_size).filter(lambda name: name not in {".", ".."})
