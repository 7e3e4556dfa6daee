"""Readable YAML: long texts are blocks, and equal parts have no aliases."""

from collections.abc import Iterable
from typing import Any, Final

import yaml

HEADER: Final = "# Written by `make forms` from src/kube_efs/operator/assets.\n"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def text_of(content: Any) -> str:  # noqa: ANN401 - any JSON
    """One document."""
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False))


def document(content: Any) -> str:  # noqa: ANN401 - any JSON
    """One document, with the header."""
    return HEADER + text_of(content)


def documents(contents: Iterable[Any]) -> str:
    """Several documents, with the header."""
    texts = yaml.dump_all(contents, Dumper=_Dumper, sort_keys=False, explicit_start=True)
    return f"{HEADER}{texts}"
