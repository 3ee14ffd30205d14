"""One tiny target with a planted pattern and one data set of it, for all tests of the trainer."""

from types import SimpleNamespace

import pytest

from pilotfish.models.files import resolve
from tests.train.tiny_data import planted_target, texts, write_data


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """The target's directory and files, its texts, and a data set."""
    path = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PILOTFISH_CACHE", str(path / "cache"))
        target = planted_target(path / "target")
        conversations = texts(target, 160)
        data = write_data(path / "data", target, conversations)
        files = resolve(target)
    # Outside of the block: what lives as long as the session must not leave its cache to all other tests.
    return SimpleNamespace(path=path, target=target, data=data, texts=conversations, files=files)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
