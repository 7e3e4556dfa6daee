"""The commands of the pages are run here and must print what the pages show."""

import os
import sys
from pathlib import Path

import pytest
from lightkube.resources.storage_v1 import StorageClass
from tests.docs.blocks import PAGES, Command, blocks_of, read_blocks
from tests.docs.conftest import environment_of
from tests.docs.sessions import run_page

from fake_efs.aws_api import ACCOUNT_ID
from kube_efs_lab.cluster import EmbeddedCluster

ROOT = Path(__file__).parents[2]
# They install kube-efs, so their cluster has nothing of it.
_ON_CLUSTER = {"docs/how-to/disaster-recovery.md", "docs/how-to/nfs-to-csi.md"}
INSTALLING = {"docs/efs-provisioner.md", "docs/install.md", "docs/operator.md"} | {
    page for page in PAGES if page.startswith("docs/how-to/") and page not in _ON_CLUSTER
}
_EXAMPLE_IDS = ("fs-0123456789abcdef0", "fs-0fedcba9876543210")
# The account that has the file system; that of the cluster is another one in the pages.
_EXAMPLE_ACCOUNT = "444455556666"
_EXAMPLE_SUBNETS = ("subnet-0a1b2c3d", "subnet-1a2b3c4d")
_BEFORE = "<!-- given: nothing -->\n```console\n$ true\n```"


@pytest.mark.skipif(os.geteuid() != 0, reason="the embedded cluster needs root")
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in INSTALLING and any(one.is_run for one in blocks_of(page))]
)
async def test_sessions_print_the_documented_output(
    page: str, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    try:
        await _run(page, cluster, tmp_path)
    finally:  # the pages share a cluster, and create classes of the same names
        async for one in cluster.client.list(StorageClass):
            await cluster.client.delete(StorageClass, str(one.metadata and one.metadata.name))


@pytest.mark.skipif(os.geteuid() != 0, reason="the embedded cluster needs root")
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("page", sorted(INSTALLING))
async def test_installation_sessions_print_the_documented_output(
    page: str, bare_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    await run_page(list(read_blocks(page, _BEFORE)), tmp_path, environment_of(bare_cluster, tmp_path))
    await _run(page, bare_cluster, tmp_path)


async def _run(page: str, cluster: EmbeddedCluster, folder: Path) -> None:
    for name in ("bench", "deploy"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / ".kube-efs").symlink_to(cluster.kubeconfig.parent)  # where kube-efs up writes it
    text = (ROOT / page).read_text(encoding="utf-8")
    subnets = sorted(subnet.subnet_id for subnet in cluster.efs.subnets)
    ids = zip(_EXAMPLE_IDS + _EXAMPLE_SUBNETS, [*cluster.file_system_ids[:2], *subnets], strict=False)
    for example, there in (*ids, (_EXAMPLE_ACCOUNT, ACCOUNT_ID)):
        text = text.replace(example, there)
    await run_page(list(read_blocks(page, text)), folder, environment_of(cluster, folder))


# --- what the two above stand on


def test_session_is_parsed_into_commands_with_output() -> None:
    text = "```console\n$ one \\\n> two\nshown\n\n$ three\n```\n"
    (block,) = read_blocks("page", text)
    assert block.is_run
    assert block.commands == (Command(text="one \\\ntwo", shown=("shown",)), Command(text="three"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("```console\n$ true\n```", "", id="session"),
        pytest.param("```console\ntrue\n```", "a session has a line", id="session without a command"),
        pytest.param("```sh\ntrue\n```", "say above why", id="shell without a reason"),
        pytest.param("<!-- not run: needs oc -->\n```sh\noc\n```", "", id="shell with a reason"),
        pytest.param("<!-- not run: needs oc -->\n```console\n$ oc\n```", "", id="session that is not run"),
        pytest.param("<!-- as in: page -->\n```console\n$ true\n```", "", id="session of another page"),
        pytest.param("<!-- as in: page -->\n```sh\ntrue\n```", "say above why", id="shell of another page"),
        pytest.param("<!-- run by: test -->\n```console\n$ true\n```", "", id="session that a test takes"),
        pytest.param("<!-- run by: test -->\n```sh\ntrue\n```", "say above why", id="shell for a test"),
        pytest.param("```\ntrue\n```", "no language is not one of", id="no language"),
        pytest.param("```bash\ntrue\n```", "bash is not one of", id="shell with another name"),
        pytest.param(
            "<!-- not run: it is YAML -->\n```yaml\n```", "it is no command", id="unnecessary reason"
        ),
    ],
)
def test_markers_of_blocks_are_validated(text: str, problem: str) -> None:
    (block,) = read_blocks("page", text)
    assert block.problem.startswith(problem)
    assert bool(block.problem) == bool(problem)


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        pytest.param(("NAME STATUS", "pvc-… Bound"), [], id="white space and ellipsis"),
        pytest.param(("pvc-… Lost",), ["pvc-… Lost"], id="another word"),
        pytest.param(("pvc-1 Bound", "NAME …"), ["NAME …"], id="another order"),
        pytest.param(("pvc-1",), ["pvc-1"], id="part of a line"),
    ],
)
def test_documented_output_must_be_printed(shown: tuple[str, ...], missing: list[str]) -> None:
    assert Command(text="", shown=shown).missing("NAME    STATUS\npvc-1   Bound\n") == missing


@pytest.mark.parametrize(
    ("command", "is_part"),
    [
        pytest.param("kubectl get pods", True, id="same"),
        pytest.param("kubectl get", True, id="fewer words"),
        pytest.param("kubectl get pods -A", False, id="more words"),
        pytest.param("get kubectl pods", False, id="another order"),
    ],
)
def test_part_of_a_command_is_recognized(command: str, is_part: bool) -> None:
    assert Command(text=command).is_part_of(Command(text="kubectl get \\\npods")) is is_part


async def test_commands_of_a_page_share_a_shell_and_a_directory(tmp_path: Path) -> None:
    page = "<!-- file: claim.yaml -->\n```yaml\nkind: Claim\n```\n\n```console\n$ name=claim.yaml\n```\n"
    page += "```console\n$ cat $name\nkind: Claim\n```\n"
    await run_page(list(read_blocks("page", page)), tmp_path, dict(os.environ))


@pytest.mark.parametrize(
    ("session", "complaint"),
    [
        pytest.param("$ true\n$ (exit 3)", "exit status 3 of page:1", id="command that fails"),
        pytest.param("$ echo one\ntwo", "not printed: ['two']", id="other output"),
        pytest.param("$ exit 0", "the shell has ended", id="shell ends"),
        pytest.param("$ sleep 60", "not done in", id="command that hangs"),
    ],
)
async def test_page_with_wrong_output_fails(session: str, complaint: str, tmp_path: Path) -> None:
    blocks = list(read_blocks("page", f"```console\n{session}\n```"))
    with pytest.raises(AssertionError) as caught:
        await run_page(blocks, tmp_path, dict(os.environ), seconds=0.5 if "sleep" in session else 60)
    assert complaint in str(caught.value)
