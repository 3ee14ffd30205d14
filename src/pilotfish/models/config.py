"""What a decoder looks like: one frozen description that every family maps onto.

Owns the shape of the model and nothing of how it is computed. Families differ only in these fields; the executors
read them and never a family's name.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding, resolved: one inverse frequency per pair of dimensions.

    Attributes:
        inv_freq: `[head_dim / 2]` radians per position, scaling (linear, llama3, yarn) already applied.
        attention_factor: multiplies cosine and sine (yarn's temperature; 1 elsewhere).
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer.

    Attributes:
        rope: rotary embedding of this layer, `None` for a layer without positions (SmolLM3).
        sliding_window: a row sees this many latest positions, its own included; `None` sees all.
    """

    rope: RopeConfig | None
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-like decoder.

    Attributes:
        family: the checkpoint's `model_type`, for messages only.
        vocab_size: rows of the embedding, padding included; the tokenizer may know fewer.
        context_length: positions the model was made for.
        norm_eps: epsilon of every RMSNorm.
        query_scale: multiplies queries before the dot product (1/sqrt(head_dim) unless the family says otherwise).
        embedding_scale: multiplies embeddings (Gemma: sqrt(hidden); 1 elsewhere).
        norm_offset: added to every RMSNorm weight (Gemma: 1; 0 elsewhere), `QK` norms included.
        qk_norm: RMSNorm over each head's query and key before the rotation.
        sandwich_norms: a norm also after attention and after the MLP (Gemma 3), before the residual is added.
        qkv_bias, output_bias, mlp_bias: which linear layers have a bias.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    query_scale: float
    layers: tuple[LayerConfig, ...]
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    qk_norm: bool = False
    sandwich_norms: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)
