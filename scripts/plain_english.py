"""Finds words that have a plainer alternative, and exits with 1 when there are any.

``PLACES`` are the files and directories to check, as git lists them. ``READERS`` has, for each suffix, the
function that returns the prose of a file, and the words to find there. To check another kind of file, add
its place and its reader.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PLACES: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "bench",
    "deploy",
    "docs",
    "lab/src",
    "src/kube_efs",
    "tests",
)
# The examples of this check.
_EXAMPLES: Final = ROOT / "tests/unit/scripts/test_plain_english.py"

# Regular expressions of words, and what to write instead. A blank stands for any white space.
WORDS: Final[Mapping[str, str]] = {
    "whoever|whomever": "users who, or the name of the user or process",
    "(can|cannot|could|can not) be had|to be had": "is (not) available, or name the action: cannot be bound",
    "(is|are|was|were|been|be) told": "gets, is configured with, or is reported",
    "tells|told": "says, shows, reports or contains",
    "(is|are|was|were) to (be|become|go|have|help|say|stay|wake)": "must, will, or the imperative",
    "so no more": "no longer",
    "none of (its|his|our|their) business": "say what the process does not do",
    "own business": "say which program is responsible",
    "nobody's": "not ours, or name the owner",
    "(make|makes|made|making) anew": "recreate",
    "anew": "again",
    "(goes|go|went|going|gone) on": "continues",
    "comes? along": "is included",
    "let go( of)?|lets go": "release",
    "take away|takes away|taken away|took away": "remove",
    "does as well|do as well": "also works",
    "does not come to be|did not come to be": "failed",
    "heed|heeds|heeded": "respect, or consider",
    "folders?": "directory",
    "for ever": "permanently, or indefinitely",
    "mostly": "usually",
    "rights": "permissions",
    "to hand|at hand": "available",
    "nothing but": "only",
    "but for": "except",
    "amid|amongst|whilst": "in, among, while",
    "hence|thus|thereof|hitherto|lest": "therefore, of it, until now, so that",
    "beforehand": "in advance",
    "in the place of": "instead of",
    "(is|are|was|were|be) (looked at|looked after)": "is checked, or is managed",
    "should (it|they|the|a|an|you)": "if",
    "odd|oddly|oddity|oddities": "unexpected, or invalid",
    "utili[sz]e[sd]?": "use",
    "in order to": "to",
    "prior to": "before",
    "via": "through, or with",
    r"e\.g\.": "for example",
    r"i\.e\.": "that is",
    "behaviours?": "behavior, as in Kubernetes",
    "colours?": "color, as in Kubernetes",
    "catalogues?": "catalog, as in Kubernetes",
    "time-outs?": "timeout",
    "anymore": "no longer",
    "upon|till|unto": "on, or until",
    "(there|where|here)(by|in|upon|to)": "by this, in it, or a new sentence",
    "as it were|so to speak": "delete it",
    "seldom": "rarely",
    "save for": "except",
    "a (good|great) (deal|many)": "much, or many",
}
# More words, for what administrators read. Modules still contain them.
PAGE_WORDS: Final[Mapping[str, str]] = {
    "whom|of which": "a new sentence with the noun",
    "(is|are|was|were) no (valid|such|member|part)": "is not",
    "so (it|they) (is|are|has|have)": "it is also, or a new sentence",
    "(stands?|stood) (on|in the way)": "depends on, or prevents",
    "(lies|lie|lay) (in|on|at|below|above|between|with)": "is",
    "(is|are|was|were) let( go)?": "can, or is allowed",
    "looks? (at|after)": "check, or manage",
    "asks? for": "request",
    "hand(s|ed)? out": "assign",
    "not to be": "must not be",
    "once more": "again",
    "forever": "permanently, or indefinitely",
    "(or|and) the like": "or similar, or the names",
    "of (its|their) kind": "name the kind",
    "wins? over": "takes precedence over",
    "knows? no": "has no, or cannot",
    "besides": "also, or in addition",
    "wherever|whichever": "where, any, or each",
}
_ALL: Final = {**WORDS, **PAGE_WORDS}
# What a page quotes is checked where it comes from.
_QUOTED: Final = re.compile(
    r"""
    <!--\ begin:\ .*?<!--\ end\ -->                  # a table that is generated from code or compared with it
    | ^\ *```.*?^\ *```$                             # a fenced block
    | <!--.*?-->                                     # a comment
    | (?<!`)(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)    # code
    | \]\([^)]*\)                                    # the target of a link
    | "(?:[^"\n]|\n(?!\n))*"                         # a message
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_YAML_COMMENT: Final = re.compile(r"(?:^|\s)#(.*)")
# A comment or a string of Python. The standard library's tokenizer takes ten times as long.
_COMMENT_OR_STRING: Final = re.compile(
    r"""
    \#[^\n]*
    | (?P<quotes>"{3}|'{3})(?:\\.|[^\\])*?(?P=quotes)
    | (?P<quote>"|')(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)
    """,
    re.DOTALL | re.VERBOSE,
)
_NOT_PROSE: Final = re.compile(
    r"""
    \A\#                                           # the start of a comment
    | \A(?:"{3}|'{3}|"|')                          # the quotes around a string
    | (?:"{3}|'{3}|"|')\Z
    | (?<!`)(?P<code>`+)(?!`).+?(?<!`)(?P=code)(?!`)
    | \{[^{}\n]*\}                                 # an expression in a string, or a placeholder
    | \\n                                          # the end of a line in a string
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A word in the prose of a file; the line is counted from 1."""

    line: int
    word: str
    instead: str


def prose_of_page(text: str) -> str:
    """A Markdown page with blanks in place of code, quotes and comments; the lines keep their numbers."""
    return _without(_QUOTED, text)


def prose_of_module(text: str) -> str:
    """The comments and strings of a Python module, one blank in place of other text; lines stay the same.

    A string without a blank is a name, a key or a path.
    """
    parts, end = [], 0
    for found in _COMMENT_OR_STRING.finditer(text):
        parts += [" ", "\n" * text.count("\n", end, found.start())]
        parts.append(_without(_NOT_PROSE, found[0]) if " " in found[0] else "\n" * found[0].count("\n"))
        end = found.end()
    return "".join(parts)


def prose_of_manifest(text: str) -> str:
    """The comments of a YAML file, without code and quotes; lines keep their numbers."""
    comments = [found[1] if (found := _YAML_COMMENT.search(line)) else "" for line in text.split("\n")]
    return _without(_QUOTED, "\n".join(comments))


def _without(unwanted: re.Pattern[str], text: str) -> str:
    return unwanted.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


READERS: Final[Mapping[str, tuple[Callable[[str], str], Mapping[str, str]]]] = {
    ".md": (prose_of_page, _ALL),
    ".yaml": (prose_of_manifest, _ALL),
    ".py": (prose_of_module, WORDS),
}


def findings(prose: str, words: Mapping[str, str] = WORDS) -> Iterator[Finding]:
    """The words that have a plainer alternative, in the order of their lines; each place counts once."""
    if not _finder(*words).search(prose):
        return
    found: dict[int, Finding] = {}
    for phrase, instead in words.items():
        for match in _finder(phrase).finditer(prose):
            line = prose.count("\n", 0, match.start()) + 1
            found.setdefault(
                match.end(), Finding(line=line, word=" ".join(match[0].split()), instead=instead)
            )
    yield from sorted(found.values(), key=lambda one: one.line)


@cache
def _finder(*phrases: str) -> re.Pattern[str]:
    """Finds any of the phrases."""
    any_phrase = "|".join(phrases).replace(" ", r"\s+")
    return re.compile(rf"\b(?:{any_phrase})(?!\w)", re.IGNORECASE)


def _files() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in READERS and path != _EXAMPLES and path.is_file():
            yield path


def main() -> int:
    """Prints each finding; the exit status."""
    lines = [
        f'{path.relative_to(ROOT)}:{one.line}: "{one.word}": write {one.instead}\n'
        for path in _files()
        for prose_of, words in [READERS[path.suffix]]
        for one in findings(prose_of(path.read_text(encoding="utf-8")), words)
    ]
    sys.stdout.writelines(lines)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
