"""EAGLE heads: files of both layouts, every tensor accounted for, logits by the papers' equations."""

import json

import numpy as np
import pytest
import torch

from pilotfish.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from pilotfish.models.decoder import RowAttention
from pilotfish.models.eagle_files import eagle_config, load_eagle_head
from tests.models.tiny_eagle import (
    HIDDEN,
    LAYOUTS,
    TARGET_LAYERS,
    VOCAB,
    head_config,
    head_tensors,
    rendered,
    save_head,
    target_config,
    target_weights,
)

FLAGS = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_residual": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True},
]


def load(path):
    return load_eagle_head(path, target_config(), target_weights())


def saved(path, layout, *, draft_vocab=VOCAB, own_embedding=False, **flags):
    tensors = head_tensors(
        layout,
        draft_vocab=draft_vocab,
        own_embedding=own_embedding,
        norm_before_fc=flags.get("norm_before_fc", False),
        fc_norm=flags.get("fc_norm", False),
    )
    save_head(path, head_config(layout, draft_vocab=draft_vocab, **flags), tensors)
    return tensors


@pytest.mark.parametrize("draft_vocab", [VOCAB, 20])
@pytest.mark.parametrize("own_embedding", [False, True])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "plain")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_equations(tmp_path, layout, flags, own_embedding, draft_vocab):
    tensors = saved(tmp_path, layout, draft_vocab=draft_vocab, own_embedding=own_embedding, **flags)
    head = load(tmp_path)
    embedding = tensors.get("embed_tokens.weight", target_weights().tensors["model.embed_tokens.weight"])
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(7, 3 * HIDDEN, generator=generator)
    tokens = torch.randint(0, VOCAB, (7,), generator=generator)
    _, expected = rendered(tensors, embedding, flags, states, tokens.tolist(), 3)

    features, got = head.fuse(states), []
    with torch.no_grad():
        for _ in range(3):
            rows = torch.arange(len(tokens))
            attention = RowAttention(head.config.layer, rows, rows[:, None] >= rows)
            normed, fed_back = head.run(tokens, features, rows + 1, attention)  # from 1, as some heads are trained
            logits = head.logits(normed[-1:])
            got.append(logits[0].numpy())
            tokens = torch.cat((tokens, head.target_ids[logits.argmax(-1)]))
            features = torch.cat((features, fed_back[-1:]))
    assert np.abs(np.stack(got) - expected).max() < 1e-4


def test_head_can_be_trained_but_the_embedding_is_frozen(tmp_path):
    saved(tmp_path, "sglang")
    head = load(tmp_path)
    rows = torch.arange(3)
    attention = RowAttention(head.config.layer, rows, rows[:, None] >= rows)
    normed, _ = head.run(rows, head.fuse(torch.randn(3, 3 * HIDDEN)), rows, attention)
    head.logits(normed).square().sum().backward()
    without = {name for name, parameter in head.named_parameters() if parameter.grad is None}
    assert without == {"embed_tokens.weight"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vocabulary_map_is_kept_as_indices(tmp_path, layout):
    tensors = saved(tmp_path, layout, draft_vocab=20)
    head = load(tmp_path)
    assert head.target_ids.tolist() == tensors["t2d"].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("layout", "ids", "boundaries"),
    [
        ("sglang", None, (2, 3, 3)),
        ("speculators", None, (2, 3, 3)),
        ("sglang", [1, 2, 4], (2, 3, 5)),
        ("speculators", [1, 2, 6], (1, 2, 6)),
    ],
)
def test_layers_are_counted_as_each_layout_does(layout, ids, boundaries):
    assert eagle_config(head_config(layout, layer_ids=ids)).boundaries_of(TARGET_LAYERS) == boundaries


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_tensor_is_refused_by_name(tmp_path, layout):
    tensors = saved(tmp_path, layout, draft_vocab=20, norm_before_fc=True, fc_norm=True)
    for number, name in enumerate(tensors):
        if name == "t2d":
            continue
        path = save_head(
            tmp_path / str(number),
            head_config(layout, draft_vocab=20, norm_before_fc=True, fc_norm=True),
            {other: tensor for other, tensor in tensors.items() if other != name},
        )
        with pytest.raises(CorruptModelError, match=name.replace("midlayer", "layers.0")):
            load(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_renamed_tensor_is_refused_by_name(tmp_path, layout):
    tensors = saved(tmp_path, layout)
    tensors["midlayr.mlp.up_proj.weight"] = tensors.pop(next(name for name in tensors if "up_proj" in name))
    with pytest.raises(CorruptModelError, match=r"layers\.0\.mlp\.up_proj\.weight"):
        load(save_head(tmp_path, head_config(layout), tensors))


@pytest.mark.parametrize("name", ["layers.1.mlp.up_proj.weight", "fc.bias", "input_norm.weight", "fc_norm.0.weight"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_extra_tensor_is_refused_by_name(tmp_path, layout, name):
    tensors = {**saved(tmp_path, layout), name: torch.zeros(HIDDEN)}
    with pytest.raises(CorruptModelError, match=name):
        load(save_head(tmp_path, head_config(layout), tensors))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_misshapen_tensor_is_refused_by_name(tmp_path, layout):
    tensors = saved(tmp_path, layout, draft_vocab=20)
    for number, name in enumerate(tensors):
        path = save_head(
            tmp_path / str(number),
            head_config(layout, draft_vocab=20),
            {**tensors, name: torch.cat((tensors[name], tensors[name]))},
        )
        with pytest.raises(CorruptModelError, match=f"{name}.*shape"):
            load(path)


def test_same_tensor_under_both_names_is_refused(tmp_path):
    tensors = saved(tmp_path, "sglang")
    tensors["layers.0.mlp.up_proj.weight"] = tensors["midlayer.mlp.up_proj.weight"].clone()
    with pytest.raises(CorruptModelError, match="there twice"):
        load(save_head(tmp_path, head_config("sglang"), tensors))


def test_buffers_of_old_files_are_ignored(tmp_path):
    tensors = {**saved(tmp_path, "sglang"), "midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    load(save_head(tmp_path, head_config("sglang"), tensors))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("d2t", torch.arange(20), "d2t.*rising ids below 64"),
        ("d2t", torch.full((20,), -1), "d2t"),
        ("d2t", torch.arange(20) * -1, "d2t"),
        ("d2t", torch.zeros(20), "d2t.*F32"),
        ("t2d", torch.ones(VOCAB, dtype=torch.bool), "t2d.*does not mark"),
        ("fc.weight", torch.zeros(HIDDEN, 3 * HIDDEN, dtype=torch.int32), "fc.weight.*I32"),
    ],
)
def test_senseless_numbers_are_refused_by_name(tmp_path, name, value, message):
    tensors = {**saved(tmp_path, "sglang", draft_vocab=20), name: value}
    if name == "d2t" and value.tolist() == list(range(20)):
        tensors["d2t"] = value * 4
    with pytest.raises(CorruptModelError, match=message):
        load(save_head(tmp_path, head_config("sglang", draft_vocab=20), tensors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "not an EAGLE-3 head"),
        ({"speculators_model_type": "dflash"}, "'dflash' is not supported"),
        ({"num_hidden_layers": 2}, "num_hidden_layers 2.*in this layout"),
        ({"model_type": "mamba"}, "mamba"),
        ({"parallel_drafting": True}, "parallel_drafting"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "all"}}, "'all' is not supported"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}}, "the target has 6 layers"),
        ({"vocab_size": 65}, "vocab_size is 65, the target's is 64"),
        ({"target_hidden_size": 48}, "target_hidden_size is 48"),
        ({"draft_vocab_size": 65}, "exceeds vocab_size"),
    ],
)
def test_configuration_we_do_not_cover_is_refused_by_name(tmp_path, changes, message):
    tensors = saved(tmp_path, "sglang")
    save_head(tmp_path, {**head_config("sglang"), **changes}, tensors)
    with pytest.raises(UnsupportedModelError, match=message):
        load(tmp_path)


def test_speculators_file_without_its_layer_is_refused(tmp_path):
    saved(tmp_path, "speculators")
    config = head_config("speculators")
    del config["transformer_layer_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="transformer_layer_config"):
        load(tmp_path)


def test_name_that_leads_nowhere_is_refused(tmp_path):
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")
