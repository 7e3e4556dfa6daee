"""Checks of the whole tree: versions agree, pages match the code, nothing private is in it."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kube_efs

ROOT = Path(__file__).parents[2]
_BINARY = {".png", ".crt", ".ico"}


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _tracked() -> Iterator[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in _BINARY:
            yield path


def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.walk_packages(kube_efs.__path__, "kube_efs."))


def test_version_is_the_newest_in_the_changelog() -> None:
    version = tomllib.loads(_text("pyproject.toml"))["project"]["version"]
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", _text("CHANGELOG.md"), flags=re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == version


_OURS = {
    "bench",
    "conftest",
    "fake_efs",
    "kube_efs",
    "kube_efs_lab",
    "lab",
    "scripts",
    "tests",
    "tiny_ca",
    "tinykube",
}
_LAB = "lab/pyproject.toml"
# Parts of a dependency that its own documentation says to import.
_PART_OF = {"botocore": "aiobotocore", "lightkube-models": "lightkube"}
# Modules whose first name several distributions share; of two prefixes, the longer one is first.
_SHARED = {
    "google.protobuf": "protobuf",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-api",
}


def _imported(folder: str) -> set[str]:
    """The distributions that the modules of a directory import directly."""
    found: set[str] = set()
    for path in _tracked():
        if path.suffix == ".py" and path.is_relative_to(ROOT / folder):
            for module in _imported_modules(path):
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names | _OURS:
                    found.add(_distribution_of(module))
    return found


_providers = cache(packages_distributions)


def _distribution_of(module: str) -> str:
    for prefix, name in _SHARED.items():
        if module == prefix or module.startswith(f"{prefix}."):
            return name
    top = module.partition(".")[0]
    name = _canonical(_providers().get(top, [top])[0])
    return _PART_OF.get(name, name)


# Not with the parser, which needs ten seconds of CPU time for all modules.
_IMPORT = re.compile(
    r"^ *(?:from (\w[\w.]*) import|import (\w[\w.]*)(?: as \w+)?(?: +#.*)?$)", flags=re.MULTILINE
)


def _imported_modules(path: Path) -> set[str]:
    found = _IMPORT.findall(path.read_text(encoding="utf-8"))
    return {start or whole for start, whole in found}


def _canonical(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def _declared(project: str = "pyproject.toml", *extras: str) -> set[str]:
    declared = tomllib.loads(_text(project))["project"]
    optional = [name for extra in extras for name in declared["optional-dependencies"][extra]]
    return {_canonical(requirement) for requirement in [*declared["dependencies"], *optional]} - {"kube-efs"}


def test_every_imported_package_is_a_declared_dependency() -> None:
    assert _imported("src") - _declared() == set()
    assert _imported("lab/src") - _declared() - _declared(_LAB) == set()
    around = _imported("tests") | _imported("lab/tests") | _imported("scripts") | _imported("bench")
    assert around - _declared("pyproject.toml", "dev", "docs") - _declared(_LAB) == set()


def test_every_dependency_of_the_lab_is_imported() -> None:
    run_as_programs = {"moto"}
    assert _declared(_LAB) - _imported("lab/src") - run_as_programs == set()


def test_lab_has_the_version_of_the_product() -> None:
    ours = tomllib.loads(_text("pyproject.toml"))["project"]["version"]
    assert "version" not in tomllib.loads(_text(_LAB))["project"], "it is read from the other file"
    assert (version("kube-efs"), version("kube-efs-lab")) == (ours, ours)


def test_readme_begins_with_both_commands() -> None:
    first_block = _text("README.md").split("```")[1]
    assert re.findall(r"^make \w+", first_block, flags=re.MULTILINE) == ["make demo", "make test"]


def test_settings_page_matches_the_code() -> None:
    check = subprocess.run(
        [sys.executable, "scripts/settings_table.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr


def test_design_page_lists_every_layer() -> None:
    page = _text("docs/design.md")
    layers = [
        path.name for path in (ROOT / "src/kube_efs").iterdir() if path.is_dir() and path.name[0] != "_"
    ]
    assert [name for name in layers if f"{name}/" not in page] == []


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(ROOT).as_posix() for path in _tracked() if path.suffix == ".md")
)
def test_links_between_pages_have_targets(page: str) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", _text(page))
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_tree_contains_no_index_url_and_no_local_path() -> None:
    # Written in parts, so that this file does not contain what it looks for.
    unwanted = re.compile(
        "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "find" + "-links", "index" + "-url"])
    )
    here = f"{ROOT}/"
    found = [
        (path.relative_to(ROOT).as_posix(), line)
        for path in _tracked()
        for line in path.read_text(encoding="utf-8").splitlines()
        if unwanted.search(line) or here in line
    ]
    assert found == []


def test_constraints_pin_one_version_each() -> None:
    lines = _text("constraints.txt").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)] == []
    assert len({line.partition("==")[0].lower() for line in lines}) == len(lines)


def test_constraints_are_within_the_declared_ranges() -> None:
    project = tomllib.loads(_text("pyproject.toml"))["project"]
    declared = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    pins = dict(line.split("==") for line in _text("constraints.txt").splitlines())
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    requirements = [Requirement(line) for line in declared]
    assert [str(r) for r in requirements if pinned[canonicalize_name(r.name)] not in r.specifier] == []


@pytest.mark.parametrize(
    ("lock", "section", "key"),
    [("requirements.lock", "project", "dependencies"), ("build.lock", "build-system", "requires")],
)
def test_locks_have_the_hashes_of_the_pinned_versions(lock: str, section: str, key: str) -> None:
    required = [Requirement(line) for line in tomllib.loads(_text("pyproject.toml"))[section][key]]
    pins = dict(line.split("==") for line in _text("constraints.txt").splitlines())
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    entries = _text(f"deploy/image/{lock}").replace("\\\n", " ").splitlines()
    locked = {}
    for entry in entries:
        requirement, *hashes = entry.split(" --hash=")
        name, _, version = requirement.strip().partition("==")
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one.strip()) for one in hashes)
        locked[canonicalize_name(name)] = version
    assert locked.items() <= pinned.items()
    assert [str(r) for r in required if locked[canonicalize_name(r.name)] not in r.specifier] == []


def test_every_package_that_pip_fetches_for_the_image_has_a_hash() -> None:
    lines = [*_text("Containerfile").splitlines(), *_text("deploy/image/install").splitlines()]
    installing = [line for line in lines if re.search(r"\bpip3? +(install|download|wheel)\b", line)]
    # Only kube-efs has no hash: nothing can be fetched while it is built and installed.
    [unhashed] = [line for line in installing if "--require-hashes" not in line]
    assert {"--no-index", "--no-deps", "--no-build-isolation"} < set(unhashed.split())
    assert len(installing) == 3
    others = ("pipx", "uv ", "easy_install", "curl", "wget")
    assert [line for line in lines if any(word in line for word in others)] == []


@pytest.mark.parametrize("name", _modules())
def test_public_names_exist(name: str) -> None:
    module = importlib.import_module(name) if name != "kube_efs.__main__" else kube_efs
    assert [public for public in getattr(module, "__all__", ()) if not hasattr(module, public)] == []


@pytest.mark.parametrize(
    "package", [name for name in _modules() if (ROOT / "src" / name.replace(".", "/")).is_dir()]
)
def test_package_has_a_docstring_and_contains_no_program(package: str) -> None:
    tree = ast.parse((ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    programs = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    assert [node.name for node in ast.walk(tree) if isinstance(node, programs)] == []
