import copy
import math
import re

import pytest
from transformers import AutoConfig

from pilotfish.errors import UnsupportedModelError
from pilotfish.models.families import SUPPORTED_MODEL_TYPES, decoder_config
from tests.models.tiny_families import CASES, tiny_config

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LLAMA = {"model_type": "llama", "hidden_act": "silu", **SIZES}

# As published files spell it, before the rotary keys moved into `rope_parameters`.
PUBLISHED = {
    "llama-bare": {"model_type": "llama"},
    "llama-theta": {"model_type": "llama", "rope_theta": 100_000.0, "tie_word_embeddings": True},
    "llama-linear-type": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama-null-scaling": {"model_type": "llama", "rope_scaling": None, "head_dim": None, "attention_bias": True},
    "llama-llama3": {
        "model_type": "llama",
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral-default-window": {"model_type": "mistral"},
    "mistral-no-window": {"model_type": "mistral", "sliding_window": None, "rope_theta": 1_000_000.0, "head_dim": 16},
    "qwen2-window-off": {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 2},
    "qwen2-window-on": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen2-window-all": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 0,
    },
    "qwen2-window-null": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": None},
    "qwen2-yarn-type": {
        "model_type": "qwen2",
        "rope_theta": 1_000_000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "qwen3": {"model_type": "qwen3", "rope_theta": 1_000_000.0, "attention_bias": True},
    "qwen3-yarn-inherits-context": {
        "model_type": "qwen3",
        "head_dim": 16,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.25},
    },
    "smollm3": {"model_type": "smollm3"},
    "smollm3-interval": {"model_type": "smollm3", "no_rope_layer_interval": 3, "mlp_bias": True},
    "smollm3-window": {
        "model_type": "smollm3",
        "use_sliding_window": True,
        "sliding_window": 8,
        "no_rope_layers": [1, 1, 0, 1, 1, 0],
        "tie_word_embeddings": False,
    },
    "gemma3-bare": {"model_type": "gemma3_text"},
    "gemma3-pattern": {
        "model_type": "gemma3_text",
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "rope_theta": 500_000.0,
        "rope_local_base_freq": 20_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "head_dim": 16,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_spelling_equals_what_transformers_makes_of_it(name):
    """Ours of the old spelling equals ours of the new one, which `transformers` wrote, its defaults filled in."""
    values = {**SIZES, **PUBLISHED[name]}
    rewritten = AutoConfig.for_model(**copy.deepcopy(values)).to_dict()  # it changes nested dicts in place
    assert "rope_theta" not in rewritten  # it really is the other spelling
    assert decoder_config(values) == decoder_config(rewritten)


def test_every_model_type_is_covered_by_a_comparison_of_logits():
    compared = {case["model_type"] for case in CASES.values()}
    assert compared | {"gemma3"} == set(SUPPORTED_MODEL_TYPES)


def test_llama_fields():
    config = decoder_config({**LLAMA, "rope_theta": 5000.0})
    assert (config.family, config.num_layers, config.num_heads, config.num_kv_heads) == ("llama", 6, 4, 2)
    assert (config.head_dim, config.context_length, config.norm_eps) == (8, 64, 1e-5)
    assert config.query_scale == pytest.approx(8**-0.5)
    assert config.activation == "silu"
    flags = (config.qk_norm, config.sandwich_norms, config.qkv_bias, config.output_bias, config.mlp_bias)
    assert not any(flags)
    assert not config.tie_word_embeddings
    assert config.layers[0].rope.inv_freq == pytest.approx([5000.0 ** (-2 * pair / 8) for pair in range(4)])
    assert (
        decoder_config({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}).num_kv_heads == 4
    )


def test_biases_by_family():
    def biases(model_type, **keys):
        config = decoder_config({**SIZES, "model_type": model_type, **keys})
        return config.qkv_bias, config.output_bias, config.mlp_bias

    for model_type in ("llama", "qwen3", "smollm3", "gemma3_text"):
        assert biases(model_type) == (False, False, False)
        assert biases(model_type, attention_bias=True) == (True, True, False)
    assert biases("qwen2") == (True, False, False)
    assert biases("mistral") == (False, False, False)
    assert biases("llama", mlp_bias=True) == biases("smollm3", mlp_bias=True) == (False, False, True)


def test_tied_embeddings_defaults_by_family():
    tied = {kind: decoder_config({**SIZES, "model_type": kind}).tie_word_embeddings for kind in SUPPORTED_MODEL_TYPES}
    assert {kind for kind, value in tied.items() if value} == {"smollm3", "gemma3_text", "gemma3"}


def test_windows_by_family():
    def windows(model_type, **keys):
        return [layer.sliding_window for layer in decoder_config({**SIZES, "model_type": model_type, **keys}).layers]

    assert windows("llama", sliding_window=8) == [None] * 6
    assert windows("mistral", sliding_window=8) == [8] * 6
    assert windows("qwen2", sliding_window=8) == [None] * 6
    assert windows("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=4) == [None] * 4 + [8] * 2
    assert windows("gemma3_text", sliding_window=8, sliding_window_pattern=2) == [8, None] * 3
    assert windows("gemma3_text", sliding_window=8) == [8] * 5 + [None]


def test_smollm3_leaves_every_fourth_layer_without_positions():
    config = decoder_config({**SIZES, "model_type": "smollm3"})
    assert [layer.rope is None for layer in config.layers] == [False, False, False, True, False, False]


def test_original_context_outside_the_rotary_keys_outranks_the_one_inside():
    def rope(outside, inside):
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": inside}
        keys = {"head_dim": 128, "rope_scaling": scaling, "original_max_position_embeddings": outside}
        return decoder_config({**LLAMA, **keys}).layers[0].rope

    assert rope(16, 32) == rope(None, 16)
    assert rope(None, 16) != rope(None, 32)


def test_gemma3_fields():
    config = tiny_config("gemma3")
    assert config.query_scale == pytest.approx(24**-0.5)
    assert config.embedding_scale == pytest.approx(math.sqrt(32))
    assert (config.norm_offset, config.activation) == (1.0, "gelu_tanh")
    assert config.qk_norm
    assert config.sandwich_norms
    local, full = config.layers[0].rope, config.layers[1].rope
    assert local.inv_freq[1] == pytest.approx(10_000 ** (-2 / 16))
    assert full.inv_freq[1] == pytest.approx(1_000_000 ** (-2 / 16))


def test_gemma3_multimodal_is_its_text_model_with_the_defaults_its_file_leaves_out():
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = decoder_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}})
    assert (config.family, config.vocab_size, config.num_heads, config.num_kv_heads) == ("gemma3", 262_208, 8, 4)
    assert (config.head_dim, config.context_length) == (256, 131_072)
    assert [layer.sliding_window for layer in config.layers[:6]] == [1024] * 5 + [None]
    assert config.layers[5].rope.inv_freq[0] == pytest.approx(1 / 8)
    assert config.layers[0].rope.inv_freq[0] == 1.0


@pytest.mark.parametrize(
    ("outer", "inner", "tied"), [(None, None, True), (False, None, False), (False, True, True), (True, False, False)]
)
def test_gemma3_multimodal_ties_embeddings_as_the_innermost_key_says(outer, inner, tied):
    text = {"tie_word_embeddings": inner}  # a null counts as absent
    config = {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": outer}
    assert decoder_config(config).tie_word_embeddings is tied


UNSUPPORTED = {
    "model type": ({"model_type": "mamba"}, "model_type 'mamba'"),
    "activation": ({"hidden_act": "relu2"}, "hidden_act 'relu2'"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    "attention soft-capping": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
    "final soft-capping": ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    "bidirectional": (
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        "use_bidirectional_attention",
    ),
    "experts": ({"num_local_experts": 8}, "num_local_experts 8"),
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
    "longrope": ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
    "partial rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    "partial rotation inside": ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor 0.25"),
    "nested rope": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
    "flat gemma3 rope": ({"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default"}}, "layer types"),
    "layer type": ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 6}, "'chunked_attention'"),
    "layer types of a uniform model": ({"layer_types": ["sliding_attention"] * 6}, "layer_types"),
    "window switched off": ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 6}, "sliding_window"),
    "uneven heads": ({"num_key_value_heads": 3}, "num_attention_heads 4 with num_key_value_heads 3"),
    "odd head_dim": ({"head_dim": 7}, "head_dim 7"),
    "indivisible hidden size": ({"hidden_size": 33}, "hidden_size 33"),
    "quantised multimodal": (
        {"model_type": "gemma3", "text_config": {"quantization_config": {"bits": 4}}},
        "quantization_config in text_config",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_covered_is_refused_by_name(name):
    change, named = UNSUPPORTED[name]
    with pytest.raises(UnsupportedModelError, match=re.escape(named)) as caught:
        decoder_config({**LLAMA, **change})
    assert "supported: " in str(caught.value)
    assert "choose another model" in str(caught.value)


@pytest.mark.parametrize(
    "key",
    ["model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "max_position_embeddings"],
)  # fmt: skip
def test_missing_key_is_named(key):
    with pytest.raises(UnsupportedModelError, match=f"has no '{key}'"):
        decoder_config({name: value for name, value in LLAMA.items() if name != key})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": "97"}, "'vocab_size': '97'; expected a whole number"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers': 0"),
        ({"num_attention_heads": True}, "'num_attention_heads': True"),
        ({"hidden_size": 32.0}, "'hidden_size': 32.0"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps': nan; expected a positive number"),
        ({"rope_theta": -1.0}, "'rope_theta': -1.0"),
        ({"attention_bias": "yes"}, "'attention_bias': 'yes'; expected true or false"),
        ({"model_type": 3}, "'model_type': 3; expected a string"),
        ({"rope_scaling": [1]}, "'rope_scaling': [1]; expected a JSON object"),
        ({"layer_types": ["full_attention"]}, "'layer_types'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling of config.json has no 'factor'"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "rope_scaling of config.json has 'factor': '4'"),
        ({"model_type": "gemma3", "text_config": 5}, "'text_config': 5"),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": 1}}, "'full_attention': 1"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "'no_rope_layers'"),
    ],
)
def test_ill_typed_key_is_named(change, named):
    with pytest.raises(UnsupportedModelError, match=re.escape(named)):
        decoder_config({**LLAMA, **change})
