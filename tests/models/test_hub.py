import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from pilotfish.errors import DownloadError, ModelNotFoundError
from pilotfish.models import hub
from pilotfish.models.files import resolve
from tests.models.tiny_models import tiny_hf_directory

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def offline_cache(tmp_path, monkeypatch):
    """An empty hub cache, with offline mode on, as the environment variables would set them."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached_model(cache, repo_id):
    repository = cache / f"models--{repo_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return tiny_hf_directory(repository / "snapshots" / COMMIT)


@pytest.mark.parametrize("name", ["a/b", "HuggingFaceTB/SmolLM2-135M-Instruct", "x/y_1.5-z"])
def test_hub_id_is_organisation_and_model(name):
    assert hub.is_hub_id(name)


@pytest.mark.parametrize("name", ["a", "a/b/c", "./a", "/a", "a/", "/a/b", "../b", "a b/c", ""])
def test_hub_id_is_not_a_path(name):
    assert not hub.is_hub_id(name)


def test_hub_model_in_the_local_cache_is_found_offline(offline_cache, capfd):
    directory = cached_model(offline_cache, "reef/tiny")
    capfd.readouterr()
    assert hub.snapshot("reef/tiny").samefile(directory)
    files = resolve("reef/tiny")
    assert (files.name, files.config.num_layers) == ("reef/tiny", 2)
    assert capfd.readouterr() == ("", "")


def test_hub_model_that_is_not_cached_is_refused_offline(offline_cache):
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE"):
        hub.snapshot("reef/absent")


def fails_with(error):
    def snapshot_download(*arguments, **options):
        raise error

    return snapshot_download


def make(kind):
    """An HTTP error of the hub without its constructor, which wants a response of the HTTP library in use."""
    error = kind.__new__(kind)
    Exception.__init__(error, "the hub said no")
    return error


@pytest.mark.parametrize(
    ("error", "kind", "named"),
    [
        (make(RepositoryNotFoundError), ModelNotFoundError, "no model 'reef/tiny'"),
        (make(GatedRepoError), ModelNotFoundError, "gated"),
        (ConnectionError("no route\nto host"), DownloadError, "no route; try again"),
        (huggingface_hub.errors.LocalEntryNotFoundError("x"), DownloadError, "check the network"),
    ],
)
def test_hub_failures_become_our_errors(error, kind, named, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails_with(error))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(kind, match=named):
        hub.snapshot("reef/tiny")


def test_hub_is_asked_for_weights_and_tokenizer_and_no_pickles(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(repo_id, allow_patterns, tqdm_class):
        asked.update(repo_id=repo_id, patterns=allow_patterns, bar=tqdm_class(total=3).disable)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub.snapshot("reef/tiny") == tmp_path
    assert asked["repo_id"] == "reef/tiny"
    assert {"config.json", "*.safetensors", "tokenizer.json"} <= set(asked["patterns"])
    assert not any("bin" in pattern for pattern in asked["patterns"])
    assert asked["bar"] is True
