"""What stands for an image."""

import pytest

from tinykube.kubelet.images import Image, find_image, repository

OURS, OTHER = Image(command=("ours",)), Image(command=("other",))
IMAGES = {"quay.io/ours/ours": OURS, "registry:5000/other:1": OTHER}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("quay.io/ours/ours:0.2.0", OURS, id="any version"),
        pytest.param(f"quay.io/ours/ours@sha256:{64 * 'a'}", OURS, id="by digest"),
        pytest.param("quay.io/ours/ours", OURS, id="no version"),
        pytest.param("registry:5000/other:1", OTHER, id="just this version"),
        pytest.param("registry:5000/other:2", None, id="another version than the one there is"),
        pytest.param("quay.io/ours/ourselves:0.2.0", None, id="another name"),
    ],
)
def test_an_image_is_found_by_name_and_version(name: str, found: Image | None) -> None:
    assert find_image(IMAGES, name) is found


def test_a_port_is_no_version() -> None:
    assert repository("registry:5000/other") == "registry:5000/other"
