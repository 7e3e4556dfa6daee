"""The services of a ``stunnel.conf``of any author."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from kube_efs.doctor.node_facts import ConfiguredTunnel

_Section: TypeAlias = Mapping[str, Sequence[str]]

_COMMENTS = ("#", ";")


def parse_configuration(text: str) -> tuple[ConfiguredTunnel, ...]:
    """The client services that listen on a port, in the order of the file; all other lines are left out."""
    return tuple(
        tunnel for name, section in _sections(text).items() if (tunnel := _tunnel(name, section)) is not None
    )


def _sections(text: str) -> Mapping[str, _Section]:
    """Every value of every key, by section; a section without its own authorities has the global ones."""
    sections: dict[str, defaultdict[str, list[str]]] = {"": defaultdict(list)}
    name = ""
    for line in _lines(text):
        if line.startswith("[") and line.endswith("]"):
            name = line[1:-1]
            sections[name] = defaultdict(list, {"CAfile": list(sections[""]["CAfile"])})
            continue
        key, separator, value = line.partition("=")
        if separator:
            sections[name][key.strip()].append(value.strip())
    return {name: section for name, section in sections.items() if name}


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(_COMMENTS):
            yield stripped


def _tunnel(name: str, section: _Section) -> ConfiguredTunnel | None:
    accept = _last(section, "accept").rpartition(":")[2]
    if not accept.isdigit():
        return None
    return ConfiguredTunnel(
        name=name,
        port=int(accept),
        addresses=tuple(one.rpartition(":")[0] for one in section.get("connect", ())),
        check_host=_last(section, "checkHost"),
        ca_file=Path(_last(section, "CAfile") or _last(section, "CApath").removesuffix(".d")),
    )


def _last(section: _Section, key: str) -> str:
    values = section.get(key, ())
    return values[-1] if values else ""
