from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_efs.kube.client import connect, load_config
from kube_efs.model.errors import InvalidSetting


def kubeconfig(**changes: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    } | changes


def written(folder: Path, document: object) -> Path:
    path = folder / "config"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    return path


async def test_current_context_is_used(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, kubeconfig()))
    assert (config.cluster.server, config.namespace) == ("http://127.0.0.1:1", "team")
    async with connect(config) as client:
        assert client.namespace == "team"


async def test_context_without_a_user_is_accepted(tmp_path: Path) -> None:
    contexts = [{"name": "x", "context": {"cluster": "c"}}]
    config = load_config(written(tmp_path, kubeconfig(contexts=contexts)))
    async with connect(config) as client:
        assert client.namespace == "default"


def test_environment_is_used_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path, kubeconfig())))
    assert load_config().context_name == "x"


@pytest.mark.parametrize(
    "document",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="not YAML"),
        pytest.param("[]", id="a list"),
        pytest.param({}, id="empty document"),
        pytest.param(kubeconfig(clusters=[{"name": "c"}]), id="a cluster without content"),
        pytest.param(kubeconfig(clusters=[{"name": "c", "cluster": {"server": 7}}]), id="a number as server"),
        pytest.param(kubeconfig(clusters=[]), id="context without a cluster"),
        pytest.param(kubeconfig(users=[]), id="context without a user"),
        pytest.param(kubeconfig(**{"current-context": "y"}), id="missing context"),
        pytest.param(kubeconfig(**{"current-context": None}), id="no current context"),
    ],
)
def test_unusable_file_is_refused(tmp_path: Path, document: object) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load_config(written(tmp_path, document))
    assert caught.value.field == "KUBECONFIG"
    assert caught.value.problem.startswith("cannot be used (")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load_config(tmp_path / "none")
    assert f"{tmp_path}/none not found" in caught.value.problem


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({"server": "http://host:port"}, id="invalid address"),
        pytest.param(
            {"server": "https://x", "certificate-authority": "gone.crt"}, id="missing authority file"
        ),
    ],
)
def test_invalid_cluster_is_refused(tmp_path: Path, cluster: dict[str, str]) -> None:
    config = load_config(written(tmp_path, kubeconfig(clusters=[{"name": "c", "cluster": cluster}])))
    with pytest.raises(InvalidSetting) as caught:
        connect(config)
    assert caught.value.problem.startswith("cannot be used (")
