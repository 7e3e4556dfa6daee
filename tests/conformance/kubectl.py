"""The program kubectl."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with one kubeconfig; a command may take ``seconds``."""

    kubeconfig: Path
    seconds: float = 120.0

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """The output; fails unless the command succeeds."""
        answer = await self.run(*arguments, stdin=stdin)
        assert answer.status == 0, answer.errors
        return answer.output

    async def run(self, *arguments: str, stdin: str = "") -> Answer:
        """The result, also of a failed command."""
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # It ends before collecting garbage is worth the time.
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "GOGC": "off"},
        )
        try:
            async with asyncio.timeout(self.seconds):
                output, errors = await process.communicate(stdin.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Answer(process.returncode or 0, output.decode(), errors.decode())
