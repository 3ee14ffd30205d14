import hashlib
import json

import pytest
from huggingface_hub import constants

from pilotfish.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from pilotfish.models.files import resolve
from pilotfish.models.safetensors_file import SafetensorsFile
from pilotfish.models.tokenizer import load_tokenizer
from tests.models.tiny_models import tiny_hf_directory, tiny_transformers_model, trained_byte_level, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf_path(tmp_path):
    model = tiny_transformers_model()
    return write_gguf(tmp_path / "m.gguf", model, matrix_type="Q8_0", tokenizer_json=trained_byte_level())


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_resolve_directory(kind, tmp_path):
    path = tiny_hf_directory(tmp_path / "m", padding=16)
    files = resolve(kind(path))
    assert (files.name, files.tokenizer_path, files.eos_ids) == (str(path), path, (2,))
    tokenizer = load_tokenizer(files.tokenizer_path)
    assert files.config.vocab_size == tokenizer.vocab_size + 16
    assert files.weights.read("model.norm.weight").shape == (64,)


def test_resolve_reads_no_weight(tmp_path, monkeypatch, gguf_path):
    path = tiny_hf_directory(tmp_path / "m")
    monkeypatch.setattr(SafetensorsFile, "read", lambda *_: pytest.fail("a weight was read"))
    resolve(path)
    monkeypatch.setattr("pilotfish.models.gguf_file.GgufWeights.read", lambda *_: pytest.fail("a weight was read"))
    monkeypatch.setattr("pilotfish.models.gguf_file.GgufFile.raw", lambda *_: pytest.fail("a weight was read"))
    resolve(gguf_path)


def test_resolve_gguf(gguf_path):
    files = resolve(gguf_path)
    assert files.fingerprint == hashlib.sha256(gguf_path.read_bytes()).hexdigest()
    assert files.eos_ids == (2,)
    assert load_tokenizer(files.tokenizer_path).vocab_size == 384
    assert files.weights.read_grouped("model.layers.0.mlp.up_proj.weight") is not None


def test_resolve_prefers_an_existing_path_to_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_hf_directory(tmp_path / "reef" / "tiny")
    assert resolve("reef/tiny").config.num_layers == 2


def test_resolve_catalogue_name_that_is_not_pulled_says_the_command(cache):
    with pytest.raises(ModelNotFoundError, match="`pilotfish models pull smollm2-135m-instruct`"):
        resolve("smollm2-135m-instruct")
    assert not cache.exists()


def test_resolve_name_that_nothing_answers_to_says_what_was_tried():
    with pytest.raises(ModelNotFoundError, match=r"directory or GGUF.*catalogue.*smollm2-135m-instruct.*hub id"):
        resolve("no such model")


def test_resolve_hub_id_offline_and_not_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelNotFoundError, match="reef/absent"):
        resolve("reef/absent")


def test_resolve_directory_with_a_gguf_points_at_it(gguf_path):
    with pytest.raises(ModelNotFoundError, match=r"config\.json.*m\.gguf"):
        resolve(gguf_path.parent)


def test_resolve_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x02 pickled")
    with pytest.raises(CorruptModelError, match=r"model\.bin"):
        resolve(tmp_path / "model.bin")


def test_resolve_unknown_architecture_leaves_nothing_behind(tmp_path, cache):
    path = write_gguf(
        tmp_path / "m.gguf", tiny_transformers_model(), architecture="rwkv7", tokenizer_json=trained_byte_level()
    )
    with pytest.raises(UnsupportedModelError, match="rwkv7"):
        resolve(path)
    directory = tiny_hf_directory(tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "rwkv7"}))
    with pytest.raises(UnsupportedModelError, match="rwkv7"):
        resolve(directory)
    assert not cache.exists()
