"""The program helm, with the chart of this tree."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.conformance.kubectl import Answer
from tests.conformance.programs import PROGRAMS

from kube_efs.model.names import NEW_INSTALLATION

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "kube-efs"
# Helm reads no cluster for a template, so it needs the facts of the cluster.
_VERSION = ("--kube-version", "1.36")
_SECONDS = 120.0
_answers: dict[tuple[str, str], Answer] = {}


async def helm(*arguments: str, stdin: str = "", kubeconfig: Path | None = None) -> Answer:
    """The answer to a command, which runs in the root directory of this tree."""
    process = await asyncio.create_subprocess_exec(
        PROGRAMS / "helm",
        *arguments,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)},
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Answer(process.returncode or 0, output.decode(), errors.decode())


async def template(values: Mapping[str, Any], *, namespace: str = NEW_INSTALLATION.names.namespace) -> Answer:
    """The output of ``helm template`` for these values, which is cached."""
    flags = ("--namespace", namespace, *_VERSION, "--values", "-")
    key = (namespace, yaml.safe_dump(dict(values)))
    if key not in _answers:
        _answers[key] = await helm("template", "efs", str(CHART), *flags, stdin=key[1])
    return _answers[key]


async def objects(values: Mapping[str, Any], **options: str) -> dict[str, Any]:
    """The objects for these values, by kind, namespace if it is not the release's, and name."""
    answer = await template(values, **options)
    assert answer.status == 0, answer.errors
    return keyed([one for one in yaml.safe_load_all(answer.output) if one is not None])


def keyed(manifests: list[Any]) -> dict[str, Any]:
    """Objects by kind and name, and by namespace if several have the same name."""
    found = {}
    for one in manifests:
        metadata = one["metadata"]
        key = f"{one['kind']}/{metadata['name']}"
        if key in found:
            key = f"{one['kind']}/{metadata['namespace']}/{metadata['name']}"
        assert key not in found
        found[key] = one
    return found
