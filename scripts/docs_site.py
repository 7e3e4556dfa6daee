"""How mkdocs makes the site: docs/index.md is its navigation, and files beside docs/ belong to it.

Pages indent what belongs to an element of a list by the width of its marker, as GitHub and most programs
understand it. Python-Markdown, which mkdocs uses, wants four blanks, and no fences there.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT: Final = Path(__file__).parents[1]
_DOCS: Final = "docs/"
# Where on the site lies what pages link to outside of docs/.
_BESIDE: Final = "project/"
_HEADING: Final = re.compile(r"## (.+)")
_ENTRY: Final = re.compile(r"\* \[([^\]]+)\]\(([^)#:]+\.md)\)")
_LINK: Final = re.compile(r"\]\(([^)#:\s]+)")
_ITEM: Final = re.compile(r" *(?:[*-]|[0-9]+\.) +(?=\S)")
_FENCE: Final = re.compile(r" *```")
_MARK: Final = re.compile(r" *<!-- .* -->")
_STEP: Final = 4 * " "
# mike sets it when it builds the site of a release.
_VERSION: Final = "MIKE_DOCS_VERSION"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the index: each heading with the list below it.

    Only published sites have a menu of versions, because others have no list of them.
    """
    if _VERSION in os.environ:
        config.extra_javascript.append("versions.js")
    sections: list[dict[str, object]] = [{"Home": "index.md"}]
    entries: list[dict[str, str]] = []
    for line in (Path(config.docs_dir) / "index.md").read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            entries = []
            sections.append({heading[1]: entries})
        elif entry := _ENTRY.match(line):
            entries.append({entry[1]: _on_site(posixpath.normpath(_DOCS + entry[2]))})
    config.nav = sections
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files beside docs/ that pages link to, and those that these link to."""
    found: set[str] = set()
    wanted = {link for page in files.documentation_pages() for link in _links(page)}
    while new := wanted - found:
        found |= new
        for name in sorted(new):
            file = File.generated(config, _BESIDE + name, abs_src_path=str(_ROOT / name))
            files.append(file)
            if file.is_documentation_page():
                wanted |= set(_links(file))
    return files


def _links(page: File) -> Iterator[str]:
    """The files beside docs/ that a page links to, all of a folder for the folder, by their paths."""
    text = Path(page.abs_src_path or "").read_text(encoding="utf-8")
    for link in _LINK.finditer(text):
        name = _in_project(page, link[1])
        path = _ROOT / name
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        if not name.startswith(_DOCS):
            yield from (one.relative_to(_ROOT).as_posix() for one in inside if one.is_file())


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links between docs/ and what is beside it lead to where that is on the site."""

    def relative(link: re.Match[str]) -> str:
        target = _on_site(_in_project(page.file, link[1]))
        if files.get_file_from_path(target) is None:  # a folder: its first file stands for it
            inside = sorted(file.src_uri for file in files if file.src_uri.startswith(f"{target}/"))
            target = inside[0] if inside else target
        return f"]({posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or '.')}"

    return "\n".join(_indented(_LINK.sub(relative, markdown).split("\n")))


def _indented(lines: list[str]) -> Iterator[str]:
    """The lines with four blanks for each list that they are in; fenced blocks there are indented instead."""
    # Where the text of each element begins that the line is in.
    starts: list[int] = []
    fence: int | None = None
    after_blank, after_block = True, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if fence is not None:
            if _FENCE.match(line):
                yield "" if starts else line
                fence, after_block = None, True
            else:
                yield f"{_STEP * (len(starts) + 1)}{line[fence:]}".rstrip() if starts else line
            continue
        if line.strip() and (indent or after_blank or line[0] == "#"):
            starts = [start for start in starts if start <= indent]
        if item := _ITEM.match(line):
            starts = [start for start in starts if start <= indent]
            yield f"{_STEP * len(starts)}{line.lstrip()}"
            starts.append(item.end())
        elif _FENCE.match(line):
            fence = indent
            if starts and after_block:
                yield f"{_STEP * len(starts)}<!-- another block -->\n"
            yield "" if starts else line
        elif not starts:
            yield line
        elif not _MARK.fullmatch(line):
            yield f"{_STEP * len(starts)}{line.lstrip()}".rstrip()
        after_blank = not line.strip()
        after_block = after_block and (after_blank or bool(_MARK.fullmatch(line)))


def on_post_page(output: str, **_: object) -> str:
    """Add the two elements without which the theme's menu of colors fails: they belong to highlightjs."""
    return output.replace("</head>", '<style id="hljs-light"></style><style id="hljs-dark"></style></head>')


def on_post_template(output_content: str, **_: object) -> str:
    """The same for the page of an unknown address."""
    return on_post_page(output_content)


def _in_project(page: File, link: str) -> str:
    """The path in the project that a link of the page means."""
    uri = page.src_uri
    name = uri.removeprefix(_BESIDE) if uri.startswith(_BESIDE) else _DOCS + uri
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), link))


def _on_site(name: str) -> str:
    return name.removeprefix(_DOCS) if name.startswith(_DOCS) else _BESIDE + name
