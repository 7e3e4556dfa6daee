"""What all tests of calls to AWS share."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from botocore.loaders import JSONFileLoader, Loader


class _CachedDescriptions(JSONFileLoader):  # type: ignore[misc]  # the library has no types
    """Reads each description of a service once: a client of its own needs a tenth of a second for that."""

    _loaded: ClassVar[dict[str, Any]] = {}

    def load_file(self, file_path: str) -> Any:
        """The content, None when there is no such file."""
        if file_path not in self._loaded:
            self._loaded[file_path] = super().load_file(file_path)
        return self._loaded[file_path]


@pytest.fixture(scope="module", autouse=True)
def descriptions_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "FILE_LOADER_CLASS", _CachedDescriptions)
        yield
