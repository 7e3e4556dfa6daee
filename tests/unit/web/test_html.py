"""HTML from values."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from kube_efs.web.html import Html, element, escaped, joined


class Read(HTMLParser):
    """The elements, attributes and texts of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(min_size=1))
def test_text_is_escaped(text: str) -> None:
    made = element("p", text, title=text)
    read = Read(made)
    assert read.tags == [("p", [("title", text)])]
    assert read.text == text


def test_html_is_not_escaped_again() -> None:
    inner = element("b", "a & b")
    assert element("p", inner) == "<p><b>a &amp; b</b></p>"
    assert escaped(inner) is inner
    assert joined(("<", None, Html("<br>"))) == "&lt;<br>"


def test_attributes_have_the_names_of_html() -> None:
    assert element("a", "x", class_="y", aria_label="z", viewBox="0 0 1 1") == (
        '<a class="y" aria-label="z" viewBox="0 0 1 1">x</a>'
    )
    assert element("td", hidden=True, colspan=None, scope=False, tabindex=0) == (
        '<td hidden tabindex="0"></td>'
    )


def test_only_void_elements_have_no_end_tag() -> None:
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert element("rect") == "<rect></rect>"
