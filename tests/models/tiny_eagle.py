"""Tiny EAGLE heads saved in both published layouts, and the papers' equations in NumPy."""

import json

import numpy as np
import torch
from safetensors.torch import save_file

from tests.engine.tiny import tiny_config
from tests.models.memory_weights import random_weights

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 48, 4, 2, 8, 64
TARGET_LAYERS = 6
THETA, EPS = 10_000.0, 1e-5
LAYOUTS = ("sglang", "speculators")


def target_config():
    return tiny_config(layers=TARGET_LAYERS)


def target_weights():
    return random_weights(target_config())


def head_tensors(
    layout, *, draft_vocab=None, vocab=VOCAB, norm_before_fc=False, fc_norm=False, own_embedding=False, seed=0
):
    """A head's tensors as a file of that layout names them."""
    generator = torch.Generator().manual_seed(seed)
    draft_vocab = draft_vocab or vocab

    def matrix(*shape):
        return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    def norm(size):
        return 1 + 0.3 * torch.randn(size, generator=generator)

    layer = "midlayer." if layout == "sglang" else "layers.0."
    tensors = {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
        f"{layer}self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
        f"{layer}mlp.gate_proj.weight": matrix(INNER, HIDDEN),
        f"{layer}mlp.up_proj.weight": matrix(INNER, HIDDEN),
        f"{layer}mlp.down_proj.weight": matrix(HIDDEN, INNER),
        f"{layer}input_layernorm.weight": norm(HIDDEN),
        f"{layer}hidden_norm.weight": norm(HIDDEN),
        f"{layer}post_attention_layernorm.weight": norm(HIDDEN),
        "norm.weight": norm(HIDDEN),
        "lm_head.weight": 3 * matrix(draft_vocab, HIDDEN),
    }
    if norm_before_fc:
        tensors["input_norm.weight"] = norm(3 * HIDDEN)
    if fc_norm:
        tensors |= {f"fc_norm.{place}.weight": norm(HIDDEN) for place in range(3)}
    if own_embedding:
        tensors["embed_tokens.weight"] = matrix(vocab, HIDDEN)
    if draft_vocab != vocab:
        ids = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def head_config(layout, *, draft_vocab=None, vocab=VOCAB, layer_ids=None, **flags):
    layer = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": 512,
        "vocab_size": vocab,
    }
    own = {"draft_vocab_size": draft_vocab or vocab, **flags}
    if layout == "sglang":
        eagle = {} if layer_ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layer_ids}}
        return {"architectures": ["LlamaForCausalLMEagle3"], **layer, **own, **eagle}
    ids = {} if layer_ids is None else {"eagle_aux_hidden_state_layer_ids": layer_ids}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        **own,
        **ids,
    }


def save_head(path, config, tensors):
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return path


def rendered(tensors, embedding, flags, states, tokens, steps):
    """Draft ids and logits of a greedy chain, by the equations, without a cache: each step computes all rows anew.

    Args:
        states: `[row, 3 * hidden]` of the target.
        tokens: each row's next token.
        steps: drafted tokens.
    """
    weight = {name.replace("midlayer.", "layers.0."): value.double().numpy() for name, value in tensors.items()}
    layer = "layers.0."

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight[name]

    def turned(x):
        angles = np.arange(x.shape[0])[:, None] * THETA ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)

    x = states.double().numpy()
    if flags.get("norm_before_fc"):
        x = norm(x, "input_norm.weight")
    if flags.get("fc_norm"):
        parts = np.split(x, 3, axis=-1)
        x = np.concatenate([norm(part, f"fc_norm.{place}.weight") for place, part in enumerate(parts)], -1)
    features = x @ weight["fc.weight"].T
    tokens = list(tokens)
    all_logits, drafted = [], []
    for _ in range(steps):
        embedded = embedding.double().numpy()[tokens]
        normed = norm(features, layer + "hidden_norm.weight")
        both = np.concatenate((norm(embedded, layer + "input_layernorm.weight"), normed), -1)
        rows = len(tokens)
        query, key, value = (
            (both @ weight[f"{layer}self_attn.{name}_proj.weight"].T).reshape(rows, -1, HEAD_DIM) for name in "qkv"
        )
        query, key = turned(query), turned(key)
        heads = []
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = query[:, head] @ key[:, group].T / np.sqrt(HEAD_DIM)
            scores[np.triu_indices(rows, 1)] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(scores / scores.sum(-1, keepdims=True) @ value[:, group])
        attended = np.concatenate(heads, -1) @ weight[layer + "self_attn.o_proj.weight"].T
        hidden = (normed if flags.get("norm_before_residual") else features) + attended
        inner = norm(hidden, layer + "post_attention_layernorm.weight")
        gate = inner @ weight[layer + "mlp.gate_proj.weight"].T
        up = inner @ weight[layer + "mlp.up_proj.weight"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weight[layer + "mlp.down_proj.weight"].T
        out = norm(hidden, "norm.weight")
        logits = out[-1] @ weight["lm_head.weight"].T
        best = int(logits.argmax())
        token = best + (int(tensors["d2t"][best]) if "d2t" in tensors else 0)
        all_logits.append(logits)
        drafted.append(token)
        tokens.append(token)
        fed_back = out if flags.get("norm_output") else hidden
        # Earlier rows keep the features they had; the new row has the head's own output of the row before.
        features = np.concatenate((features, fed_back[-1:]), 0)
    return drafted, np.stack(all_logits)
