"""The decoder in plain PyTorch: the reference that every other executor is checked against, and what is trained.

Owns the mathematics of a Llama-like decoder over a flat list of rows. Which keys a row may see, and where they are
kept, it leaves to an `Attention`; it must not know sequences, caches, files or families' names.

Module names follow Hugging Face's Llama, so that a parameter's name is its canonical tensor name.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from pilotfish.errors import CorruptModelError
from pilotfish.models.config import Activation, DecoderConfig
from pilotfish.models.rope import rope_tables, rotate
from pilotfish.models.weights import Weights


class Attention(ABC):
    """What the rows of one pass attend to."""

    @abstractmethod
    def attend(
        self,
        layer: int,
        query: Float[Tensor, "row head head_dim"],
        key: Float[Tensor, "row kv_head head_dim"],
        value: Float[Tensor, "row kv_head head_dim"],
    ) -> Float[Tensor, "row head head_dim"]:
        """Each row's weighted sum of values in one layer; key and value are the rows' own, already rotated."""


class RowAttention(Attention):
    """Rows see each other and nothing else: whole sequences in one pass without a cache, as in training.

    Args:
        config: the decoder's.
        positions: of the rows; sliding windows are counted in them.
        visible: true where the row sees the column's row. Block-diagonal for several sequences in one pass.
    """

    def __init__(self, config: DecoderConfig, positions: Int[Tensor, " row"], visible: Bool[Tensor, "row row"]) -> None:
        self._config = config
        self._positions = positions
        self._visible = visible

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "row head head_dim"],
        key: Float[Tensor, "row kv_head head_dim"],
        value: Float[Tensor, "row kv_head head_dim"],
    ) -> Float[Tensor, "row head head_dim"]:
        window = self._config.layers[layer].sliding_window
        visible = windowed(self._visible, self._positions, self._positions, window)
        return masked_attention(query, key.transpose(0, 1), value.transpose(0, 1), visible, self._config.query_scale)


def windowed(
    visible: Bool[Tensor, "row slot"],
    row_positions: Int[Tensor, " row"],
    slot_positions: Int[Tensor, " slot"],
    window: int | None,
) -> Bool[Tensor, "row slot"]:
    """The mask without slots that lie `window` or more positions behind their row."""
    if window is None:
        return visible
    return visible & (slot_positions > row_positions.unsqueeze(-1) - window)


def masked_attention(
    query: Float[Tensor, "row head head_dim"],
    keys: Float[Tensor, "kv_head slot head_dim"],
    values: Float[Tensor, "kv_head slot head_dim"],
    visible: Bool[Tensor, "row slot"],
    scale: float,
) -> Float[Tensor, "row head head_dim"]:
    """Softmax attention with grouped queries: heads `g * group ... (g + 1) * group - 1` share key-value head g.

    Every row must see at least one slot. The softmax runs in float32 or wider.
    """
    rows, heads, head_dim = query.shape
    kv_heads, slots, _ = keys.shape
    # All queries that share a key-value head become rows of one matrix, so that nothing is repeated.
    grouped = (query * scale).view(rows, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    scores = grouped.reshape(kv_heads, -1, head_dim) @ keys.transpose(1, 2)
    scores = _widened(scores).view(kv_heads, heads // kv_heads, rows, slots)
    probs = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1).to(values.dtype)
    context = probs.view(kv_heads, -1, slots) @ values
    return context.view(kv_heads, heads // kv_heads, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, heads, head_dim)


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis (https://arxiv.org/abs/1910.07467), in float32 or wider."""

    def __init__(self, size: int, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - config.norm_offset))
        self._eps = config.norm_eps
        self._offset = config.norm_offset

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        wide = _widened(x)
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self._eps)
        return (normed * (_widened(self.weight) + self._offset)).to(x.dtype)


class SelfAttention(nn.Module):
    """Projections, QK norm and rotation around an `Attention`."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(config.head_dim, config) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config) if config.qk_norm else None
        self._head_dim = config.head_dim
        self._layer = layer

    def forward(
        self, x: Float[Tensor, "row inputs"], tables: tuple[Tensor, Tensor] | None, attention: Attention
    ) -> Float[Tensor, "row hidden"]:
        query = self.q_proj(x).unflatten(-1, (-1, self._head_dim))
        key = self.k_proj(x).unflatten(-1, (-1, self._head_dim))
        value = self.v_proj(x).unflatten(-1, (-1, self._head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if tables is not None:
            query, key = rotate(query, *tables), rotate(key, *tables)
        return cast(Tensor, self.o_proj(attention.attend(self._layer, query, key, value).flatten(1)))


class GatedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))` (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self._activation: Activation = config.activation

    def forward(self, x: Float[Tensor, "row hidden"]) -> Float[Tensor, "row hidden"]:
        gate = self.gate_proj(x)
        gate = F.silu(gate) if self._activation == "silu" else F.gelu(gate, approximate="tanh")
        return cast(Tensor, self.down_proj(gate * self.up_proj(x)))


class DecoderLayer(nn.Module):
    """Attention and MLP, each after a norm and added to its input; with sandwich norms, also before one."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, layer)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config)
        # One name, two places: Llama's "post attention" norm is the MLP's input norm, Gemma's follows the attention.
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config)
        sandwich = config.sandwich_norms
        self.pre_feedforward_layernorm = RMSNorm(config.hidden_size, config) if sandwich else None
        self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config) if sandwich else None

    def forward(
        self, hidden: Float[Tensor, "row hidden"], tables: tuple[Tensor, Tensor] | None, attention: Attention
    ) -> Float[Tensor, "row hidden"]:
        attended = self.self_attn(self.input_layernorm(hidden), tables, attention)
        if self.pre_feedforward_layernorm is None or self.post_feedforward_layernorm is None:
            hidden = hidden + attended
            return hidden + cast(Tensor, self.mlp(self.post_attention_layernorm(hidden)))
        hidden = hidden + self.post_attention_layernorm(attended)
        return hidden + cast(Tensor, self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(hidden))))


class DecoderStack(nn.Module):
    """Embedding, layers and final norm: what Hugging Face names `model`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config)


class Decoder(nn.Module):
    """A decoder over rows: `embed`, `run` any contiguous range of layers, `logits`. Differentiable throughout."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderStack(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def embed(self, tokens: Int[Tensor, " row"]) -> Float[Tensor, "row hidden"]:
        """Hidden states at boundary 0."""
        return cast(Tensor, self.model.embed_tokens(tokens)) * self.config.embedding_scale

    def run(
        self,
        hidden: Float[Tensor, "row hidden"],
        positions: Int[Tensor, " row"],
        attention: Attention,
        *,
        layers: tuple[int, int] | None = None,
        capture: Collection[int] = (),
    ) -> tuple[Float[Tensor, "row hidden"], dict[int, Float[Tensor, "row hidden"]]]:
        """Hidden states after layers `[start, stop)` (all by default), and those at the boundaries to capture."""
        start, stop = layers if layers is not None else (0, self.config.num_layers)
        ropes = {layer.rope for layer in self.config.layers[start:stop] if layer.rope is not None}
        tables = {rope: rope_tables(positions, rope) for rope in ropes}
        captured = {start: hidden} if start in capture else {}
        for index in range(start, stop):
            rope = self.config.layers[index].rope
            hidden = self.model.layers[index](hidden, None if rope is None else tables[rope], attention)
            if index + 1 in capture:
                captured[index + 1] = hidden
        return hidden, captured

    def logits(self, hidden: Float[Tensor, "row hidden"]) -> Float[Tensor, "row vocab"]:
        """Final norm and LM head."""
        head = self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return F.linear(self.model.norm(hidden), head.weight)

    def forward(
        self, tokens: Int[Tensor, " row"], positions: Int[Tensor, " row"], attention: Attention
    ) -> Float[Tensor, "row vocab"]:
        """Logits of every row."""
        return self.logits(self.run(self.embed(tokens), positions, attention)[0])


def load_decoder(
    config: DecoderConfig,
    weights: Weights,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """A decoder with a checkpoint's weights.

    Tensors that the configuration has no use for are left unread (a draft made of a model's first layers), except
    inside the layers it has: there one would change what the model computes.

    Raises:
        CorruptModelError: a tensor is missing, damaged, of the wrong shape, not of floating point, or not known.
    """
    with torch.device("meta"):  # no memory and no initial values before the real ones
        decoder = Decoder(config)
    _check_names(decoder, config, weights)
    for name, parameter in list(decoder.named_parameters()):
        tensor = weights.read(name)
        if tensor.shape != parameter.shape:
            raise CorruptModelError(
                f"tensor {name!r} has shape {list(tensor.shape)}; the configuration asks for {list(parameter.shape)}; "
                "use the config.json that was published with these weights"
            )
        if not tensor.is_floating_point():
            raise CorruptModelError(
                f"tensor {name!r} is stored as {tensor.dtype}; expected bfloat16, float16 or float32; "
                "use an unquantised checkpoint"
            )
        module, _, leaf = name.rpartition(".")
        setattr(decoder.get_submodule(module), leaf, nn.Parameter(tensor.to(device=device, dtype=dtype)))
    return decoder


def _check_names(decoder: Decoder, config: DecoderConfig, weights: Weights) -> None:
    """Every parameter has its tensor, and the layers have no further ones (a bias, say, that would go unused)."""
    expected = {name for name, _ in decoder.named_parameters()}
    names = set(weights.names())
    missing = sorted(expected - names)
    if missing:
        raise CorruptModelError(
            f"tensor {missing[0]!r} is missing ({len(missing)} of {len(expected)} are); "
            "the checkpoint is incomplete or its config.json belongs to another model"
        )
    layers = tuple(f"model.layers.{index}." for index in range(config.num_layers))
    for name in sorted(names - expected):
        # Old Llama checkpoints store the rotary frequencies, which follow from the configuration.
        if name.startswith(layers) and not name.endswith("rotary_emb.inv_freq"):
            raise CorruptModelError(
                f"tensor {name!r} has no place in a {config.family!r} decoder as its configuration describes it; "
                "use the config.json that was published with these weights"
            )
