import json
import struct
from collections import Counter

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.errors import CorruptModelError, PilotfishError, UnsupportedModelError
from pilotfish.models.base import Segment
from pilotfish.models.files import resolve
from pilotfish.models.gguf_file import GROUPED_TYPES, GgufFile, unpack_groups
from pilotfish.models.gguf_header import read_header
from pilotfish.models.torch_executor import TorchExecutor
from tests.models.tiny_models import tiny_transformers_model, trained_byte_level, write_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "llama": ("llama", {}),
    "llama-tied-biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "gemma3": ("gemma3_text", {"num_hidden_layers": 7, "sliding_window": 4, "query_pre_attn_scalar": 16}),
}


@pytest.fixture(scope="module")
def llama():
    return tiny_transformers_model()


@pytest.fixture(scope="module")
def small_file(llama, tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", llama, matrix_type="Q8_0")


@pytest.mark.parametrize("case", FAMILIES)
def test_gguf_of_every_family_gives_the_logits_of_transformers(case, tmp_path):
    family, values = FAMILIES[case]
    model = tiny_transformers_model(family, **values)
    file = GgufFile(write_gguf(tmp_path / "model.gguf", model))
    tokens = torch.randint(384, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    executor = TorchExecutor(file.config, file.weights)
    logits = executor.forward([Segment(executor.open(len(tokens)), tokens)]).logits
    with torch.no_grad():
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0]
    assert expected.std() > 0.05
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["llama-tied-biases", "smollm3", "qwen3"])
def test_gguf_tensors_come_back_bit_for_bit(case, tmp_path):
    family, values = FAMILIES[case]
    model = tiny_transformers_model(family, **values)
    weights = GgufFile(write_gguf(tmp_path / "model.gguf", model)).weights
    stored = {name: tensor for name, tensor in model.state_dict().items() if name in set(weights.names())}
    assert len(stored) >= 2 * 9
    for name, tensor in stored.items():
        assert torch.equal(weights.read(name), tensor), name


@pytest.mark.parametrize("type_name", [*GROUPED_TYPES, "F16", "BF16", "F32"])
def test_gguf_read_gives_what_the_gguf_package_dequantises(type_name, tmp_path, llama):
    path = write_gguf(tmp_path / "model.gguf", llama, matrix_type=type_name)
    weights = GgufFile(path).weights
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    checked = 0
    for layer in range(2):
        for theirs, ours in (
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_down", "mlp.down_proj"),
            ("attn_v", "self_attn.v_proj"),
        ):
            tensor = stored[f"blk.{layer}.{theirs}.weight"]
            expected = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
            name = f"model.layers.{layer}.{ours}.weight"
            assert torch.equal(weights.read(name).float(), expected)
            grouped = weights.read_grouped(name)
            assert (grouped is not None) == (type_name in GROUPED_TYPES)
            if grouped is not None:
                assert grouped.quants.dtype == torch.int8
                assert torch.equal(grouped.dequantise(), expected)
            checked += 1
    assert checked == 6
    assert weights.half_precision == (type_name != "F32")


@pytest.mark.parametrize("type_name", GROUPED_TYPES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_grouped_form_of_any_bytes_is_exact(type_name, data):
    kind = gguf.GGMLQuantizationType[type_name]
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(0, 256, (5, 3, block_bytes), dtype=np.uint8)
    rows[..., 1] &= 0xBF  # the scale's top exponent bit off: finite
    if type_name.endswith("_1"):
        rows[..., 3] &= 0xBF
    rows = rows.reshape(5, -1)
    expected = torch.from_numpy(gguf.quants.dequantize(rows, kind))
    assert torch.equal(unpack_groups(rows, type_name).dequantise(), expected)


def test_gguf_queries_and_keys_keep_exact_groups_in_hugging_face_order(tmp_path, llama):
    weights = GgufFile(write_gguf(tmp_path / "model.gguf", llama, matrix_type="Q4_1")).weights
    for part in ("q_proj", "k_proj"):
        name = f"model.layers.1.self_attn.{part}.weight"
        original = llama.state_dict()[name].numpy()
        quantised = gguf.quants.quantize(original, gguf.GGMLQuantizationType.Q4_1)  # rows quantise independently
        expected = torch.from_numpy(gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType.Q4_1))
        assert torch.equal(weights.read_grouped(name).dequantise(), expected)


def test_gguf_types_without_a_grouped_form_are_dequantised(tmp_path):
    model = tiny_transformers_model(hidden_size=256, num_hidden_layers=1)
    path = write_gguf(tmp_path / "model.gguf", model)
    # Q6_K cannot be written by the gguf package: take a file with matrices of the right size and put bytes in.
    kind = gguf.GGMLQuantizationType.Q6_K
    rows = np.random.default_rng(0).integers(0, 256, (96, 210), dtype=np.uint8)
    rows[:, 209] &= 0xBF
    content = bytearray(path.read_bytes())
    tensor = read_header(path).tensors["blk.0.ffn_gate.weight"]
    name = b"blk.0.ffn_gate.weight"
    type_at = content.index(name) + len(name) + 4 + 2 * 8
    content[type_at : type_at + 4] = struct.pack("<I", kind)
    content[tensor.offset : tensor.offset + rows.size] = rows.tobytes()
    path.write_bytes(content)
    weights = GgufFile(path).weights
    assert weights.read_grouped("model.layers.0.mlp.gate_proj.weight") is None
    expected = torch.from_numpy(gguf.quants.dequantize(rows, kind))
    assert torch.equal(weights.read("model.layers.0.mlp.gate_proj.weight"), expected)


def test_gguf_header_agrees_with_the_gguf_package(tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama, tokenizer_json=trained_byte_level(), options={"general.flag": True})
    header, reader = read_header(path), gguf.GGUFReader(path)
    theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata == theirs
    assert {
        name: (tensor.type_name, list(tensor.shape), tensor.offset, tensor.num_bytes)
        for name, tensor in header.tensors.items()
    } == {
        tensor.name: (tensor.tensor_type.name, tensor.shape.tolist()[::-1], tensor.data_offset, tensor.n_bytes)
        for tensor in reader.tensors
    }


@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=150, deadline=None)
def test_gguf_truncated_anywhere_is_refused(share, small_file, tmp_path_factory):
    content = small_file.read_bytes()
    end = max(tensor.offset + tensor.num_bytes for tensor in read_header(small_file).tensors.values())
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(content[: int(share * end)])
    with pytest.raises(CorruptModelError, match=r"cut\.gguf"):
        GgufFile(path)


def test_gguf_truncated_names_the_first_tensor_that_does_not_fit(small_file, tmp_path):
    tensor = read_header(small_file).tensors["blk.1.ffn_up.weight"]
    path = tmp_path / "cut.gguf"
    path.write_bytes(small_file.read_bytes()[: tensor.offset + tensor.num_bytes - 1])
    with pytest.raises(CorruptModelError, match=r"tensor 'blk\.1\.ffn_up\.weight'"):
        GgufFile(path)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_gguf_with_a_damaged_header_raises_only_our_errors(data, small_file, tmp_path_factory):
    content = bytearray(small_file.read_bytes())
    header_end = min(tensor.offset for tensor in read_header(small_file).tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    message = ""
    try:
        GgufFile(path)
    except PilotfishError as error:
        message = str(error)
    assert message == "" or "damaged.gguf" in message


@pytest.mark.parametrize("key", ["llama.block_count", "llama.embedding_length"])
def test_damaged_number_of_layers_or_width_is_refused_before_anything_is_made_of_it(key, tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama, options={key: 2**30})
    with pytest.raises(CorruptModelError, match=r"m\.gguf.*expected at most"):
        GgufFile(path)


def test_gguf_that_is_something_else_is_refused(tmp_path):
    for content in (b"", b"GG", b"PK\x03\x04 a zip file"):
        path = tmp_path / "other.gguf"
        path.write_bytes(content)
        with pytest.raises(CorruptModelError, match=r"other\.gguf"):
            GgufFile(path)


def test_gguf_of_an_unknown_architecture_is_refused_by_name(tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama, architecture="mamba")
    with pytest.raises(UnsupportedModelError, match="'mamba'"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"llama.logit_scale": 0.5}, "llama.logit_scale"),
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"llama.attention.sliding_window": 16}, "sliding_window"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "attn_factor"),
        ({"split.count": 3}, "split.count"),
    ],
)
def test_gguf_option_we_do_not_cover_is_refused_by_name(options, named, tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama, options=options)
    with pytest.raises(UnsupportedModelError, match=named):
        GgufFile(path)


def test_gguf_without_a_tensor_that_is_needed_names_it(tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama)
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_no.weight"))
    with pytest.raises(UnsupportedModelError, match=r"blk\.1\.ffn_no\.weight"):
        GgufFile(path)
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_no.weight", b"blk.7.ffn_up.weight"))
    with pytest.raises(CorruptModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        GgufFile(path)


def test_gguf_end_of_sequence_ids_come_from_the_metadata(tmp_path, llama):
    options = {"tokenizer.ggml.eot_token_id": 7}
    path = write_gguf(tmp_path / "m.gguf", llama, tokenizer_json=trained_byte_level(), options=options)
    assert GgufFile(path).eos_ids == (2, 7)


@pytest.mark.demo_model
def test_demo_model_is_what_the_design_says():
    files = resolve("smollm2-135m-instruct")
    config = files.config
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.head_dim, config.intermediate_size, config.vocab_size) == (64, 1536, 49152)
    assert (config.context_length, config.tie_word_embeddings) == (8192, True)
    assert config.layers[0].rope.inv_freq[1] == pytest.approx(100_000 ** (-2 / 64))
    assert files.eos_ids == (2,)
    assert files.weights.half_precision
    assert files.fingerprint == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    matrices = [name for name in files.weights.names() if "_proj" in name or "embed" in name]
    forms = Counter(files.weights.read_grouped(name) is not None for name in matrices)
    assert forms == {True: 30 * 7 + 1}
    settings = json.loads((files.tokenizer_path / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
