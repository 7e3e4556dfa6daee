"""Builds the module ``gcm_instructions.c`` for the kernel of guests.

The module needs sources of that version, which Debian has in a package, and the configuration of the kernel,
which it prints. Only headers are generated from them, which takes some seconds. The sources can be some
corrections newer than the kernel. The module gets the release of the kernel, which checks only that and the
options it was built with. What the module uses does not change within a version.
"""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.kernel.uml import KERNEL

_MODULES: Final = Path("/usr/lib/uml/modules")
_SOURCES: Final = Path("/usr/src")
_CPUS: Final = Path("/proc/cpuinfo")
_INSTRUCTIONS: Final = frozenset({"aes", "pclmulqdq", "sse4_1"})
_NAME: Final = "gcm_instructions"
_FILES: Final = tuple(Path(__file__).with_name(name) for name in (f"{_NAME}.c", "Kbuild"))
_PROGRAMS: Final = ("make", "gcc", "flex", "bison", "bc", "xz")
_SECONDS: Final = 300.0


def build_cipher(cache: Path) -> Path:
    """The module, which stays in ``cache``; raises RuntimeError with what is missing and what installs it."""
    releases = sorted(_MODULES.glob("*"))
    if len(releases) != 1:
        problem = f"{_MODULES} has the modules of {len(releases)} kernels instead of one"
        raise RuntimeError(f"{problem}; install the package user-mode-linux, and remove other kernels")
    release = releases[0].name
    digest = hashlib.sha256(b"".join((release.encode(), *(file.read_bytes() for file in _FILES))))
    built = cache / f"{_NAME}-{digest.hexdigest()[:12]}.ko"
    if not built.exists():
        sources = _SOURCES / f"linux-source-{'.'.join(release.split('.')[:2])}.tar.xz"
        _check(sources)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _build(Path(folder), sources, release).replace(built)
    return built


def _check(sources: Path) -> None:
    if not _INSTRUCTIONS.issubset(_CPUS.read_text().split()):
        raise RuntimeError(f"the processor lacks one of {', '.join(sorted(_INSTRUCTIONS))}")
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if not sources.exists():
        missing.append(str(sources))
    if missing:
        raise RuntimeError(
            f"{', '.join(missing)} cannot be found; scripts/install-programs cipher installs them"
        )


def _build(folder: Path, sources: Path, release: str) -> Path:
    tree, module = folder / "linux", folder / "module"
    tree.mkdir()
    module.mkdir()
    _run("tar", "-xf", str(sources), "-C", str(tree), "--strip-components=1")
    (tree / ".config").write_text(_run(KERNEL, "--showconfig"))
    for file in _FILES:
        shutil.copy(file, module)
    make = ("make", "-C", str(tree), "ARCH=um", f"KERNELRELEASE={release}")
    _run(*make, "olddefconfig", "modules_prepare")
    # The kernel itself is not built, so the names of its symbols are not known here.
    _run(*make, f"M={module}", "KBUILD_MODPOST_WARN=1", "modules")
    return module / f"{_NAME}.ko"


def _run(*command: str) -> str:
    """What the command prints; raises RuntimeError with the end of its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done.stdout
