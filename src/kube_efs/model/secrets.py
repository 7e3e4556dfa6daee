"""The rules that find secrets, for logs, messages, events, gRPC texts and bundles.

A text passes four steps. The time of each is proportional to the length of the text:

1. Secrets whose value is known (``hidden_here``, ``hide_always``) are replaced everywhere.
2. Shapes: private keys, JWTs, AWS session tokens and secret access keys, long runs of base64, passwords in
   URLs and in addresses of proxies.
3. XML elements with the name of a secret, as in answers of STS.
4. Values with the name of a secret before them: ``password=x``, ``"token": "x"``, ``Cookie: x``,
   ``--token x``.

Every rule also finds the beginning of a secret, because texts may arrive truncated: a quote that is not
closed ends with the text. Texts are truncated here only after their secrets are removed, see ``shortened``.
These rules are the last defense: code must not put secrets into texts.

Certificates, digests, UUIDs, IDs and ARNs are kept, because administrators need them.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Final
from urllib.parse import quote, quote_plus

REMOVED: Final = "[removed]"
_PLACE: Final = "\ue000"  # a private-use character

_hidden_here: ContextVar[frozenset[str]] = ContextVar("hidden_here", default=frozenset())
_hidden_always: frozenset[str] = frozenset()

# In a text that is too long, so many characters after the shown ones are searched: more than any rule needs
# to find a secret.
_LOOKAHEAD: Final = 4096

# These values are not secret. If they were removed, no text could contain "true".
_HARMLESS_VALUES: Final = frozenset({"", "true", "false", "null", "none", "nil", REMOVED})


# -- Names ---------------------------------------------------------------------------

_NAME_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_ENDINGS: Final = tuple(
    ending + plural
    for ending in (
        *("token", "secret", "password", "passwd", "passphrase", "pwd", "pass", "auth", "authorization"),
        *("credential", "cred", "cookie", "signature", "jwt", "psk", "dockercfg", "dockerconfigjson"),
        *("privatekey", "secretkey", "accesskey", "apikey", "clientkey", "sessionkey", "signingkey"),
        *("encryptionkey", "masterkey", "accountkey", "sshkey", "tlskey"),
    )
    for plural in ("", "s")
)
# Idempotency tokens and pages of AWS's APIs are needed to follow a volume; the rest are English words.
_HARMLESS_ENDINGS: Final = (
    *("clienttoken", "creationtoken", "idempotencytoken", "requesttoken", "nexttoken"),
    *("bypass", "compass", "surpass", "trespass"),
)
# Words after which the name of a secret is still one, unlike the word `file`.
_NAME_TAILS: Final = frozenset(
    {"value", "data", "text", "string", "raw", "plain", "plaintext", "old", "new", "previous", "current"}
    | {"base", "b", "hash", "json", "v"}  # base64 and b64 are two words
)
_NAME_MAX: Final = 200


def is_secret_name(name: str) -> bool:
    """Whether something with that name is a secret: DB_PASS, clientSecret, but not TOKEN_FILE."""
    return _ends_as_secret(name[-_NAME_MAX:])


@lru_cache(maxsize=1024)  # log lines have few names, and each is judged in each line
def _ends_as_secret(name: str) -> bool:
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    while len(words) > 1 and (words[-1] in _NAME_TAILS or words[-1].isdigit()):
        words.pop()
    joined = "".join(words)
    return joined.endswith(_SECRET_ENDINGS) and not joined.endswith(_HARMLESS_ENDINGS)


# -- Secrets whose value is known ----------------------------------------------------


@contextmanager
def hidden_here(values: Iterable[str]) -> Iterator[None]:
    """In this context, and in tasks that start in it, these values are removed from every text."""
    token = _hidden_here.set(_hidden_here.get().union(*map(_forms, values)))
    try:
        yield
    finally:
        _hidden_here.reset(token)


def hide_always(values: Iterable[str]) -> None:
    """From now on, these values are removed from every text of this process."""
    global _hidden_always  # noqa: PLW0603 - a process has one environment
    _hidden_always = _hidden_always.union(*map(_forms, values))


def _forms(value: str) -> set[str]:
    """The value as it is, and as escaped in Python, JSON and URLs."""
    if value.lower() in _HARMLESS_VALUES:
        return set()
    return {value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value)}


def _known() -> frozenset[str]:
    return _hidden_always | _hidden_here.get()


def _without_known(text: str) -> str:
    known = _known()
    if not any(value in text for value in known):
        return text
    # A known secret of one letter must not be replaced inside of REMOVED.
    text = text.replace(REMOVED, _PLACE)
    for value in sorted(known, key=len, reverse=True):  # the longest first: one may be a part of another
        text = text.replace(value, _PLACE)
    return text.replace(_PLACE, REMOVED)


def _beginning_without_known(text: str, length: int) -> str:
    """The beginning of the text without known secrets: at least ``length`` characters, if it has so many.

    Long secrets leave little of a text. Therefore the searched part is doubled until enough is left.
    """
    if len(text) <= length:
        return _without_known(text)
    longest = max(map(len, _known()), default=0)
    end = length + longest
    while end < len(text):
        clean = _without_known(text[:end])
        if len(clean) >= length + longest:
            return clean[:length]  # what follows may be the beginning of a secret
        end *= 2
    return _without_known(text)


# -- Texts ---------------------------------------------------------------------------


def text_without_secrets(text: str) -> str:
    """The text with ``[removed]`` in place of all that has the shape, the name or the value of a secret."""
    return _without_unknown(_without_known(text))


def _without_unknown(text: str) -> str:
    if "-----" not in text:
        return _cleaned(text)
    parts = _CERTIFICATE().split(_without_private_keys(text))  # every other part is a certificate
    return "".join(part if index % 2 else _cleaned(part) for index, part in enumerate(parts))


def shortened(text: str, limit: int) -> str:
    """The text without secrets, truncated to ``limit`` characters, with a note of its original length.

    A secret at the end of the shown part is removed completely. The time does not depend on the omitted part.
    With a very small limit, the result is only the note.
    """
    # One more character shows whether the text is longer than what is searched.
    begin = _beginning_without_known(text, limit + _LOOKAHEAD + 1)
    if len(begin) <= limit + _LOOKAHEAD:
        clean = _without_unknown(begin)
        if len(clean) <= limit:
            return clean
    else:
        # The end of what was searched may be the beginning of a secret that no rule finds.
        clean = _without_unknown(begin[: limit + _LOOKAHEAD])[:-_LOOKAHEAD]
    note = f"... ({len(text)} characters)"
    return clean[: max(0, limit - len(note))] + note


def _cleaned(text: str) -> str:
    for marks, pattern, replacement in _shapes():
        for mark in marks:
            if mark in text:
                text = pattern.sub(replacement, text)
                break
    if "@" in text:
        text = _PROXY().sub(lambda found: found[1] + proxy_without_password("proxy", found[2]), text)
    if "<" in text or "&lt;" in text:
        text = _ELEMENT().sub(_judged_element, text)
    if "=" in text or ":" in text or "%3" in text or "--" in text:
        text = _without_named(text)
    # The last step, because it would treat "%3D" between name and value as a part of the value.
    return _RUN().sub(_judged_run, text) if len(text) >= _KEY_LENGTH else text


def _lazily(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """The pattern, compiled at its first use: most workers never use one.

    Quantifiers of groups are not possessive, ``(?:...)*+``, but in an atomic group, ``(?>(?:...)*)``: Python
    before 3.11.5 continues after the text of a group that has failed (CPython gh-106052).
    """
    return cache(lambda: re.compile(pattern, flags))


# -- Shapes --------------------------------------------------------------------------

_CERTIFICATE: Final = _lazily(
    r"(-----BEGIN (?:TRUSTED )?CERTIFICATE-----[A-Za-z0-9+/=\s\\]*+"
    r"(?:-----END (?:TRUSTED )?CERTIFICATE-----|\Z))"
)
_PRIVATE_KEY: Final = _lazily(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_PRIVATE_KEY_END: Final = _lazily(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\ \t\r\n"

# As it is, and as escaped in URLs and JSON.
_BASE64: Final = r"(?:[A-Za-z0-9+/_=-]|\\/|%(?:25)?(?:2[BbFf]|3[Dd]))"


@cache
def _shapes() -> tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...]:
    """Patterns and replacements, each for texts that contain one of its marks."""
    return (
        (("://",), re.compile(r"(?<=://)[^\s/\"]+(?=@)"), REMOVED),
        # JWTs, and other JSON objects in base64, which have the same first bytes.
        (
            ("eyJ", "ewog", "ewoJ", "eyAi"),
            re.compile(
                rf"(?<![A-Za-z0-9])(?:eyJ|ewog|ewoJ|eyAi)(?>{_BASE64}{{8,}})(?:(?:\.|%2[Ee])(?>{_BASE64}*)){{0,4}}"
            ),
            REMOVED,
        ),
        # Session tokens of AWS, of any length.
        (
            ("IQoJ", "FwoG", "FQoG", "FwoD", "FQoD", "AQoD"),
            re.compile(rf"(?<![A-Za-z0-9])(?:IQoJ|F[wQ]o[GD]|AQoD)(?>{_BASE64}{{4,}})"),
            REMOVED,
        ),
        # Private keys in base64, as in Secrets and kubeconfigs, which begin with "-----BEGIN".
        (
            ("LS0tLS1CRUdJTi",),
            re.compile(
                r"LS0tLS1CRUdJTi(?!BDRVJUSUZJQ0FURS)[A-Za-z0-9+/=]*+"
                r"(?>(?:(?>(?:\\n|\s)+)[A-Za-z0-9+/]{40,}+={0,2}+(?![\w+/=]))*)"
            ),
            REMOVED,
        ),
        # Tokens of OpenShift and GitHub.
        (
            ("sha256~", "gh", "github_pat_"),
            re.compile(
                r"(?<![A-Za-z0-9])(?:sha256~[\w-]{16,}+|gh[a-z]_[A-Za-z0-9]{20,}+|github_pat_\w{20,}+)"
            ),
            REMOVED,
        ),
        (
            ("earer", "EARER", "asic", "ASIC"),
            re.compile(r"\b(Bearer|Basic)(\s++)(?!\[removed\])[\w.~+/=%-]{6,}+", re.IGNORECASE),
            rf"\1\2{REMOVED}",
        ),
    )


# Variables of proxies also have addresses without a scheme. Each character is read once, for linear time.
_PROXY: Final = _lazily(r"(proxy(?:[-_]?url)?[\"'\\\s=:]++)([^\s/\"]++)", re.IGNORECASE)


def proxy_without_password(name: str, address: str) -> str:
    """The address without user and password, if the name is that of a proxy: ``user:password@host:port``."""
    user, at, host = address.rpartition("@")
    is_unsafe = name.lower().endswith(("proxy", "proxy-url")) and ":" in user and "://" not in user
    return f"{REMOVED}{at}{host}" if is_unsafe else address


def _without_private_keys(text: str) -> str:
    """The text without private keys, and without the end of one whose beginning is missing."""
    *before, last = _PRIVATE_KEY_END().split(_PRIVATE_KEY().sub(REMOVED, text))
    return "".join([*(f"{one.rstrip(_KEY_LINES)}{REMOVED}" for one in before), last])


_RUN: Final = _lazily(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{40,}+={0,2}")
_KEY_LENGTH: Final = 40  # of AWS's secret access keys
_LONG_RUN: Final = 64
_LONG_WORD: Final = 20  # in a run that is a path or a name
_CERTIFICATE_START: Final = b"-----BEGIN CERTIFICATE-----"


def _judged_run(found: re.Match[str]) -> str:
    """A run of base64 or ``[removed]``. Digests are hexadecimal, names have one case, paths short words."""
    run = found[0]
    if not _is_mixed(run) or _is_certificate(run):
        return run
    words = [word for word in re.split(r"[/_=-]", run) if _is_mixed(word)]
    longest = max(map(len, words), default=0)
    is_name_or_path = run.startswith("/") or "_" in run or "-" in run
    if longest >= _KEY_LENGTH or (len(run) >= _LONG_RUN and (longest >= _LONG_WORD or not is_name_or_path)):
        return REMOVED
    return _AWS_KEY().sub(lambda key: REMOVED if _is_mixed(key[0]) else key[0], run)


_AWS_KEY: Final = _lazily(r"(?<![A-Za-z0-9/+])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
_UPPER, _LOWER, _DIGIT = (re.compile(f"[{one}]") for one in ("A-Z", "a-z", "0-9"))


def _is_mixed(text: str) -> bool:
    return bool(_UPPER.search(text) and _LOWER.search(text) and _DIGIT.search(text))


def _is_certificate(run: str) -> bool:
    """Whether it is certificates in base64, as in kubeconfigs and webhooks, without a private key."""
    if not run.startswith("LS0tLS1CRUdJTiBDRVJU"):
        return False
    try:
        content = base64.b64decode(run[: len(run) // 4 * 4])
    except binascii.Error:
        return False
    return content.startswith(_CERTIFICATE_START) and b"PRIVATE" not in content


# -- XML -----------------------------------------------------------------------------

_ELEMENT: Final = _lazily(
    r"(?P<tag>(?:<|&lt;)(?P<name>[A-Za-z][\w.:-]*+)[^<>&]*+(?:>|&gt;))"
    r"(?P<value>(?>(?:<!\[CDATA\[.*?(?:\]\]>|\Z)|(?!&lt;)[^<])*))(?P<end>(?:(?:<|&lt;)/)?)",
    re.DOTALL,
)
_FIRST_WORD: Final = _lazily(r"\s*\S+")


def _judged_element(found: re.Match[str]) -> str:
    name, tag, value, end = found["name"], found["tag"], found["value"], found["end"]
    # The ID of a key is half of the credentials in an answer of STS.
    if not value.strip() or not (is_secret_name(name) or name == "AccessKeyId"):
        return found[0]
    if end:
        return f"{tag}{REMOVED}{end}"
    if value[0] in " \t":  # a placeholder in a sentence, such as <token>
        return found[0]
    # The answer is truncated inside of the secret. The rest belongs to the text around it.
    return tag + _FIRST_WORD().sub(REMOVED, value, count=1)


# -- Named values --------------------------------------------------------------------

_NAME: Final = _lazily(
    # ARNs have colons between names.
    r"(?P<arn>\barn:aws[\w-]*+:[\w:/.@*+-]*+)"
    # An option before its value, in a command or in a list of arguments.
    r"|(?P<option>(?<![\w.-])--\w[\w-]*+)(?:[ \t]++|[\"'][ \t]*+,[ \t]*+)(?=[^\s=:,])"
    r"|(?P<name>(?<![\w.-])[\w.-]++)"
    r"(?>(?:\\*+[\"']|%2[27])?)[ \t]*+(?:=>|[=:]|%3[AaDd])[ \t]*+"
    # The value may be on the next line, unless that has a name of its own, or is an element of a list.
    r"(?>(?:\r?\n[ \t]*+(?!-(?:\s|\Z)|[\w.-]++[ \t]*+[:=]))?)"
)
_QUOTED: Final = _lazily(
    # Of TOML and Python with three quotes.
    r"(?P<open>[bru]?(?P<escape>\\*+)(?P<quote>[\"'])(?P<more>(?:(?P=escape)(?P=quote)){2})?)"
    r"(?P<body>.*?)(?P<close>(?<!\\)(?P=escape)(?P=quote)(?(more)(?P=more))|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_QUOTED_IN_URL: Final = _lazily(r"(?P<open>%2[27])(?P<body>.*?)(?P<close>%2[27]|(?=[\s&])|\Z)", re.DOTALL)
_LIST: Final = _lazily(r"(?P<open>)(?P<body>\[\s*+\\*+[\"'][^\]]*+(?:\]|\Z))(?P<close>)")
# In YAML: all lines with the indentation of the first one.
_BLOCK: Final = _lazily(
    r"(?P<open>[|>][-+0-9]*[ \t]*(?:\r?\n|\\+n)(?P<indent>[ \t]+))(?P<body>.*?)"
    r"(?P<close>(?=(?:\n|\\+n)(?!(?P=indent)))|\Z)",
    re.DOTALL,
)
# Values of headers contain blanks: they end with the line, or with a quote.
_SCHEME: Final = _lazily(r"(?P<open>(?:Bearer|Basic)\s+)(?P<body>[^\s\"',;&<]+)(?P<close>)", re.IGNORECASE)
_SIGNED: Final = _lazily(
    r"(?P<open>(?:AWS4-[\w-]+|Digest|Negotiate|OAuth|Hawk) +)(?P<body>[^\r\n\"']+)(?P<close>)", re.IGNORECASE
)
_LINE: Final = _lazily(r"(?P<open>)(?P<body>[^\r\n\"']+)(?P<close>)")
_BARE: Final = _lazily(
    r"(?P<open>)(?P<body>(?:[^\s\"',;&<{\\]|\\+(?![\\\"']))(?>(?:[^\s\"',;&<\\]|\\+(?![\\\"']))*))(?P<close>)"
)

# The namespace and name of a Secret of Kubernetes.
_REFERENCE: Final = _lazily(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*")
# "credentials: could not be read" is a sentence.
_PROSE: Final = _lazily(
    r"(?:could|can|cannot|was|were|is|are|not|no|has|have|had|must|may|does|did|do|will|would|should|gave|unable|failed"
    r"|invalid|missing|expired|denied|permission|connection|request)\b(?=[ ][a-z])"
)
_GONE: Final = _lazily(r"\[removed\](?=[\]})]*(?:[\s,;\"'&<]|\Z))")


def _without_named(text: str) -> str:
    clean, done = [], 0
    names = _NAME()
    while found := names.search(text, done):
        clean.append(text[done : found.end()])
        done = found.end()
        name = found["name"] or found["option"]
        if name is None or not is_secret_name(name):
            continue
        value = _value_at(text, done, name)
        if value is None or value["body"].strip().lower() in _HARMLESS_VALUES:
            continue
        if name.lower() == "secret" and _REFERENCE().fullmatch(value["body"]):
            continue
        # A truncated quote is closed, so that it does not include the text after this one.
        close = value["close"] or value["open"].lstrip("bBrRuU") if value.re is _QUOTED() else value["close"]
        clean.append(f"{value['open']}{REMOVED}{close}")
        done = value.end()
    return "".join([*clean, text[done:]])


def _value_at(text: str, position: int, name: str) -> re.Match[str] | None:
    if text[position - 1].isspace() and _PROSE().match(text, position):
        return None
    if _GONE().match(text, position):
        return None
    patterns = [_QUOTED, _QUOTED_IN_URL, _LIST, _BLOCK, _SCHEME, _SIGNED, _BARE]
    if name.lower().endswith("cookie"):
        patterns.insert(-1, _LINE)
    return next((found for one in patterns if (found := one().match(text, position))), None)
