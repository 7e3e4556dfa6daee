from pathlib import Path

import pytest

from tinykube.kubelet.host_folders import HostFolders

FOLDERS = HostFolders(
    {"/var/lib": Path("/m/lib"), "/var/lib/kubelet": Path("/m/k"), "/run/x": Path("/m/run")}
)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        pytest.param("/var/lib/kubelet", "/m/k", id="the folder itself"),
        pytest.param("/var/lib/kubelet/pods/u", "/m/k/pods/u", id="what is in it, and not in the outer one"),
        pytest.param("/var/lib/kube-efs", "/m/lib/kube-efs", id="what is in the outer one only"),
        pytest.param("/var/library", "/var/library", id="a name that begins like it"),
    ],
)
def test_paths_are_translated_to_and_fro(there: str, here: str) -> None:
    assert FOLDERS.here(there) == Path(here)
    assert FOLDERS.there(Path(here)) == there
