import dataclasses

import pytest
import torch

from pilotfish.errors import CorruptModelError
from pilotfish.models.base import Segment
from pilotfish.models.decoder import Decoder, RowAttention, load_decoder, masked_attention
from pilotfish.models.torch_executor import TorchExecutor
from tests.models.memory_weights import MemoryWeights, randomised
from tests.models.tiny_families import (
    CASES,
    expected_logits,
    random_tokens,
    tiny_config,
    tiny_executor,
    tiny_model,
    tiny_weights,
)

LENGTH = 24
TOLERANCE = 1e-4


def run_in_chunks(executor, tokens, chunk):
    sequence = executor.open(len(tokens))
    logits = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        logits.append(executor.forward([Segment(sequence, part)]).logits)
        executor.keep(sequence, range(len(part)))
    assert executor.length(sequence) == len(tokens)
    return torch.cat(logits)


@pytest.mark.parametrize("chunk", [LENGTH, 7, 1], ids=["one_pass", "chunks", "step_by_step"])
@pytest.mark.parametrize("case", CASES)
def test_decoder_equals_transformers(case, chunk):
    tokens = random_tokens(LENGTH)
    logits = run_in_chunks(tiny_executor(case), tokens, chunk)
    expected = expected_logits(case, tokens)
    assert expected.std() > 0.5  # else the tolerance would say nothing
    assert (logits - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("llama", {"query_scale": 0.3}),
        ("llama", {"norm_eps": 1e-1}),
        ("llama-gelu", {"activation": "silu"}),
        ("mistral-window", {"window": None}),
        ("qwen2-window", {"window": 6}),
        ("gemma3", {"window": 6}),
        ("gemma3", {"embedding_scale": 1.0}),
        ("gemma3", {"norm_offset": 0.0}),
        ("llama-linear", {"rope_of": "llama-one-kv-head"}),
        ("llama-llama3", {"rope_of": "llama-linear"}),
        ("llama-yarn", {"attention_factor": 1.0}),
        ("llama-yarn-mscale", {"rope_of": "llama-yarn"}),
        ("gemma3", {"rope_of": "llama-one-kv-head"}),
        ("smollm3", {"rope_of": "smollm3-biases-window"}),
    ],
)
def test_decoder_with_a_wrong_setting_is_caught(case, change):
    """The known-bad control of the comparison above: it sees every setting."""
    config = tiny_config(case)
    layers = config.layers
    if "window" in change:
        layers = [
            dataclasses.replace(layer, sliding_window=layer.sliding_window and change["window"]) for layer in layers
        ]
    elif "rope_of" in change:
        others = tiny_config(change["rope_of"]).layers
        layers = [dataclasses.replace(layer, rope=other.rope) for layer, other in zip(layers, others, strict=True)]
    elif "attention_factor" in change:
        layers = [dataclasses.replace(layer, rope=dataclasses.replace(layer.rope, **change)) for layer in layers]
    else:
        config = dataclasses.replace(config, **change)
    wrong = dataclasses.replace(config, layers=tuple(layers))
    tokens = random_tokens(LENGTH)
    logits = run_in_chunks(TorchExecutor(wrong, tiny_weights(case)), tokens, LENGTH)
    assert (logits - expected_logits(case, tokens)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("case", ["llama", "qwen3", "smollm3", "gemma3"])
def test_hidden_states_equal_transformers(case):
    tokens = random_tokens(LENGTH)
    executor = tiny_executor(case)
    num_layers = executor.config.num_layers
    boundaries = range(num_layers + 1)
    hidden = executor.forward([Segment(executor.open(LENGTH), tokens)], capture=boundaries).hidden
    model = tiny_model(case)
    with torch.no_grad():
        expected = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
        assert sorted(hidden) == list(boundaries)
        for boundary in range(num_layers):
            torch.testing.assert_close(hidden[boundary], expected[boundary][0], atol=1e-4, rtol=1e-5)
        # transformers gives the last one after the final norm.
        torch.testing.assert_close(model.model.norm(hidden[num_layers]), expected[num_layers][0], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("case", ["llama-tied-no-gqa", "qwen2-window", "gemma3-linear-biases"])
def test_gradients_equal_transformers(case):
    tokens = torch.tensor(random_tokens(LENGTH))
    model = tiny_model(case)
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(tokens.unsqueeze(0), use_cache=False).logits[0, :-1], tokens[1:])
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}

    # Copies, because loading shares the memory of tensors that are already as asked for.
    weights = MemoryWeights({name: tensor.clone() for name, tensor in tiny_weights(case).tensors.items()})
    decoder = load_decoder(tiny_config(case), weights)
    positions = torch.arange(LENGTH)
    attention = RowAttention(decoder.config, positions, torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
    torch.nn.functional.cross_entropy(decoder(tokens, positions, attention)[:-1], tokens[1:]).backward()
    parameters = dict(decoder.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-4, rtol=1e-3)
    model.zero_grad()


def test_row_attention_keeps_packed_sequences_apart():
    config = tiny_config("gemma3")
    decoder = load_decoder(config, tiny_weights("gemma3"))
    lengths = (9, 6)
    packed = [random_tokens(length, seed=length) for length in lengths]
    visible = torch.block_diag(*(torch.ones(length, length).tril() for length in lengths)).bool()
    positions = torch.cat([torch.arange(length) for length in lengths])
    logits = decoder(torch.tensor(packed[0] + packed[1]), positions, RowAttention(config, positions, visible))
    expected = torch.cat([expected_logits("gemma3", tokens) for tokens in packed])
    assert (logits - expected).abs().max() < TOLERANCE


def test_new_decoder_has_canonical_names_and_neutral_norms():
    for case in ("llama", "gemma3"):
        decoder = Decoder(tiny_config(case))
        shapes = {name: parameter.shape for name, parameter in decoder.named_parameters()}
        expected = {name: parameter.shape for name, parameter in tiny_model(case).named_parameters()}
        assert shapes == expected
        x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
        normed = decoder.model.norm(x)
        torch.testing.assert_close(normed.square().mean(-1), torch.ones(3), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_masked_attention_equals_torch(kv_heads):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, 6, 8, generator=generator)
    keys, values = torch.randn(2, kv_heads, 9, 8, generator=generator)
    visible = torch.rand(5, 9, generator=generator) < 0.5
    visible[:, 0] = True
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        keys.repeat_interleave(6 // kv_heads, dim=0),
        values.repeat_interleave(6 // kv_heads, dim=0),
        attn_mask=visible,
        scale=0.4,
    )
    torch.testing.assert_close(masked_attention(query, keys, values, visible, 0.4), expected.transpose(0, 1))


def test_masked_attention_in_bfloat16_runs_its_softmax_wider():
    """Thousands of equal keys: a bfloat16 softmax would lose their sum."""
    query, keys, values = torch.zeros(1, 1, 2), torch.zeros(1, 4096, 2), torch.ones(1, 4096, 2)
    visible = torch.ones(1, 4096, dtype=torch.bool)
    out = masked_attention(query.bfloat16(), keys.bfloat16(), values.bfloat16(), visible, 1.0)
    assert out.dtype == torch.bfloat16
    assert (out.float() - 1.0).abs().max() < 0.01


def test_float64_is_computed_in_float64():
    config = tiny_config("gemma3")
    decoder = load_decoder(config, tiny_weights("gemma3"), dtype=torch.float64)
    positions = torch.arange(LENGTH)
    attention = RowAttention(config, positions, torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
    tokens = random_tokens(LENGTH)
    logits = decoder(torch.tensor(tokens), positions, attention)
    assert logits.dtype == torch.float64
    assert (logits - expected_logits("gemma3", tokens)).abs().max() < TOLERANCE


def changed_weights(change):
    tensors = dict(tiny_weights("qwen2").tensors)
    change(tensors)
    return MemoryWeights(tensors)


def test_missing_tensor_is_named():
    weights = changed_weights(lambda tensors: tensors.pop("model.layers.2.self_attn.k_proj.bias"))
    with pytest.raises(CorruptModelError, match=r"'model\.layers\.2\.self_attn\.k_proj\.bias' is missing \(1 of"):
        TorchExecutor(tiny_config("qwen2"), weights)


def test_misshapen_tensor_is_named():
    name = "model.layers.1.mlp.down_proj.weight"
    weights = changed_weights(lambda tensors: tensors.update({name: tensors[name].T}))
    with pytest.raises(CorruptModelError, match=r"model\.layers\.1\.mlp\.down_proj\.weight.*\[48, 32\].*\[32, 48\]"):
        TorchExecutor(tiny_config("qwen2"), weights)


def test_integer_tensor_is_named():
    name = "model.norm.weight"
    weights = changed_weights(lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(CorruptModelError, match=r"model\.norm\.weight.*int8"):
        TorchExecutor(tiny_config("qwen2"), weights)


def test_tensor_that_would_go_unused_inside_a_layer_is_named():
    name = "model.layers.0.self_attn.o_proj.bias"
    weights = changed_weights(lambda tensors: tensors.update({name: torch.zeros(32)}))
    with pytest.raises(CorruptModelError, match=r"model\.layers\.0\.self_attn\.o_proj\.bias.*has no place"):
        TorchExecutor(tiny_config("qwen2"), weights)


def test_first_layers_of_a_model_are_a_model():
    config = tiny_config("qwen2")
    short = dataclasses.replace(config, layers=config.layers[:2])
    tensors = dict(tiny_weights("qwen2").tensors)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # as old checkpoints carry
    executor = TorchExecutor(short, MemoryWeights(tensors))
    tokens = random_tokens(5)
    logits = executor.forward([Segment(executor.open(5), tokens)]).logits
    whole = tiny_executor("qwen2")
    expected = whole.forward([Segment(whole.open(5), tokens)], layers=(0, 2)).logits
    torch.testing.assert_close(logits, expected)


def test_randomised_decoder_equals_its_own_reload():
    """Our own parameters round-trip through the canonical names, tied head included."""
    config = tiny_config("llama-tied-no-gqa")
    decoder = randomised(Decoder(config), seed=3)
    again = load_decoder(config, MemoryWeights(decoder.state_dict()))
    positions, tokens = torch.arange(6), torch.tensor(random_tokens(6))
    attention = RowAttention(config, positions, torch.ones(6, 6, dtype=torch.bool).tril())
    assert torch.equal(decoder(tokens, positions, attention), again(tokens, positions, attention))
