import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pilotfish.errors import CorruptModelError, ModelNotFoundError, PilotfishError, UnsupportedModelError
from pilotfish.models.huggingface import INDEX_FILE, HuggingFaceDirectory
from pilotfish.models.layout import tensor_shapes
from tests.models.tiny_models import tiny_hf_directory, tiny_transformers_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("llama"))


def copy_of(directory, target):
    target.mkdir(exist_ok=True)
    for file in directory.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_directory_gives_every_tensor_as_stored(dtype, tmp_path):
    path = tiny_hf_directory(tmp_path / "m", dtype=dtype)
    weights = HuggingFaceDirectory(path).weights
    stored = load_file(path / "model.safetensors")
    assert sorted(weights.names()) == sorted(stored)
    for name, tensor in stored.items():
        assert weights.read(name).dtype == dtype
        assert torch.equal(weights.read(name), tensor)
        assert weights.read_grouped(name) is None
    assert weights.half_precision == (dtype != torch.float32)


def test_directory_with_shards_gives_the_same_tensors_as_one_file(tmp_path, directory):
    sharded = tiny_hf_directory(tmp_path / "m", shard_size="60KB")
    weights, single = HuggingFaceDirectory(sharded).weights, HuggingFaceDirectory(directory).weights
    assert len(weights.files) > 2
    assert sorted(weights.names()) == sorted(single.names())
    assert all(torch.equal(weights.read(name), single.read(name)) for name in single.names())


def test_directory_tensor_can_be_changed_without_touching_the_file(directory):
    weights = HuggingFaceDirectory(directory).weights
    before = weights.read("model.norm.weight").clone()
    weights.read("model.norm.weight").zero_()
    assert torch.equal(weights.read("model.norm.weight"), before)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "smollm3", "gemma3_text", "mistral"])
def test_layout_of_every_family_is_that_of_transformers(family, tmp_path):
    model = tiny_transformers_model(family, num_hidden_layers=6)
    model.save_pretrained(tmp_path)
    config = HuggingFaceDirectory(tmp_path).config
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}
    assert tensor_shapes(config) == shapes


@pytest.mark.parametrize("prefixes", [("language_model.model.", "language_model."), ("model.language_model.", "")])
def test_directory_of_multimodal_gemma_gives_its_text_model(prefixes, tmp_path):
    model = tiny_transformers_model("gemma3_text", num_hidden_layers=6)
    body, head = prefixes
    names = {
        name: body + name.removeprefix("model.") if name.startswith("model.") else head + name
        for name in model.state_dict()
        if name != "lm_head.weight"
    }
    tensors = {names[name]: model.state_dict()[name].clone() for name in names}
    tensors |= {"vision_tower.patch.weight": torch.ones(2), "multi_modal_projector.norm": torch.ones(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "gemma3", "text_config": model.config.to_dict(), "eos_token_id": [1, 106]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    opened = HuggingFaceDirectory(tmp_path)
    assert set(opened.weights.names()) == set(names)
    assert torch.equal(opened.weights.read("model.norm.weight"), model.state_dict()["model.norm.weight"])
    assert opened.eos_ids == (1, 106)


def test_directory_of_an_unknown_architecture_is_refused_before_any_weight_file_is_opened(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    edit_json(path / "config.json", model_type="mamba2")
    (path / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match="mamba2"):
        HuggingFaceDirectory(path)


@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=100, deadline=None)
def test_safetensors_truncated_anywhere_is_refused(share, directory, tmp_path_factory):
    path = copy_of(directory, tmp_path_factory.getbasetemp() / "cut")
    content = (directory / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[: int(share * len(content))])
    with pytest.raises(CorruptModelError, match=r"model\.safetensors"):
        HuggingFaceDirectory(path)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_safetensors_with_a_damaged_header_raise_only_our_errors(data, directory, tmp_path_factory):
    path = copy_of(directory, tmp_path_factory.getbasetemp() / "damaged")
    content = bytearray((directory / "model.safetensors").read_bytes())
    header_end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    (path / "model.safetensors").write_bytes(content)
    message = ""
    try:
        HuggingFaceDirectory(path)
    except PilotfishError as error:
        message = str(error)
    assert message == "" or str(path) in message


def test_safetensors_truncated_names_the_tensor(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:-1])
    with pytest.raises(CorruptModelError, match=r"tensor 'model\.norm\.weight'"):
        HuggingFaceDirectory(path)
    (path / "model.safetensors").write_bytes(content + b"\0")
    with pytest.raises(CorruptModelError, match="1 bytes too many"):
        HuggingFaceDirectory(path)


def test_directory_with_a_missing_shard_names_it(tmp_path):
    path = tiny_hf_directory(tmp_path / "m", shard_size="60KB")
    victim = sorted(path.glob("model-*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelNotFoundError, match=victim.name):
        HuggingFaceDirectory(path)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}, {"a": "../secret.safetensors"}])
def test_directory_with_a_senseless_index_is_refused(weight_map, tmp_path, directory):
    path = copy_of(directory, tmp_path)
    (path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CorruptModelError, match="weight_map"):
        HuggingFaceDirectory(path)


def test_directory_with_a_missing_or_misshapen_tensor_names_it(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, path / "model.safetensors")
    with pytest.raises(CorruptModelError, match=rf"{name}' is missing"):
        HuggingFaceDirectory(path)
    save_file({**tensors, name: torch.zeros(3, 64)}, path / "model.safetensors")
    with pytest.raises(CorruptModelError, match=rf"{name}': got shape \[3, 64\], expected \[96, 64\]"):
        HuggingFaceDirectory(path)


def test_directory_with_a_tensor_the_decoder_would_ignore_is_refused(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.0\.self_attn\.q_proj\.bias"):
        HuggingFaceDirectory(path)
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, path / "model.safetensors")
    HuggingFaceDirectory(path)


def test_directory_with_another_dtype_is_refused_by_name(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].double()
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"'model\.norm\.weight' is stored as F64"):
        HuggingFaceDirectory(path)


def test_directory_without_safetensors_says_what_it_found(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="pickled"):
        HuggingFaceDirectory(path)


def test_directory_with_broken_config_is_refused(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    for content in ('{"model_type": "llama"', "[1]", "\ufeff\x00"):
        (path / "config.json").write_text(content)
        with pytest.raises(CorruptModelError, match=r"config\.json"):
            HuggingFaceDirectory(path)


def test_end_of_sequence_ids_of_the_generation_config_come_first(tmp_path, directory):
    path = copy_of(directory, tmp_path)
    assert HuggingFaceDirectory(path).eos_ids == (2,)
    edit_json(path / "generation_config.json", eos_token_id=[5, 2, 5])
    assert HuggingFaceDirectory(path).eos_ids == (5, 2)
    (path / "generation_config.json").unlink()
    edit_json(path / "config.json", eos_token_id=None)
    assert HuggingFaceDirectory(path).eos_ids == ()
    edit_json(path / "config.json", eos_token_id="</s>")
    with pytest.raises(CorruptModelError, match="eos_token_id"):
        HuggingFaceDirectory(path)


def test_fingerprint_changes_with_the_weights_layout_and_not_with_the_place(tmp_path, directory):
    same = copy_of(directory, tmp_path / "a")
    fingerprint = HuggingFaceDirectory(directory).fingerprint
    assert HuggingFaceDirectory(same).fingerprint == fingerprint
    other = tiny_hf_directory(tmp_path / "b", intermediate_size=128)
    assert HuggingFaceDirectory(other).fingerprint != fingerprint
