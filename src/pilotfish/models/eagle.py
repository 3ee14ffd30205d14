"""EAGLE-3 and 3.1 draft heads: their description and their mathematics in plain PyTorch, for drafting and training.

Owns what a head computes: fusing the target's hidden states, one decoder layer on (embedding, feature), ordinary
decoder layers after it where it has more, and logits over the draft vocabulary. After Li et al.
(https://arxiv.org/abs/2503.01840) and, for the norms of 3.1, https://arxiv.org/abs/2605.09992. Files are
`eagle_files.py`'s; drafting is the drafter's.

At position i the head takes the feature of the target at i and the embedding of token i + 1, and predicts token i + 2.
Where the target has not been yet, the feature is the head's own output one row before. Parameter names are those of the
speculators layout.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import Attention, DecoderLayer, GatedMLP, RMSNorm, SelfAttention
from pilotfish.models.rope import rope_tables


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """A head.

    Attributes:
        layer: its decoder layers, one as published or several; `vocab_size` is the target's.
        draft_vocab_size: columns of its LM head.
        target_hidden_size: width of the target's hidden states.
        boundaries: the target's layer boundaries whose states are fused, low to high; `None` for the published default,
            see `boundaries_of`.
        norm_before_residual: the residual is the normed feature instead of the feature.
        norm_before_fc: one RMSNorm over the concatenated states before they are fused.
        fc_norm: one RMSNorm for each of the states (EAGLE-3.1).
        norm_output: what is fed back is the normed output instead of the output (EAGLE-3.1).
        shares_lm_head: the LM head is the target's, by rows of the draft vocabulary, and not stored again (ours; other
            engines do not know it).
    """

    layer: DecoderConfig
    draft_vocab_size: int
    target_hidden_size: int
    boundaries: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    shares_lm_head: bool = False

    @property
    def states(self) -> int:
        """How many hidden states are fused."""
        return 3 if self.boundaries is None else len(self.boundaries)

    def boundaries_of(self, target_layers: int) -> tuple[int, ...]:
        """The boundaries in a target of so many layers; by default the inputs of layers 2, n / 2 and n - 3."""
        if self.boundaries is not None:
            return self.boundaries
        return (2, target_layers // 2, target_layers - 3)


class EagleLayer(nn.Module):
    """The first layer: a decoder layer whose attention looks at embedding and feature side by side."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        layer = config.layer
        self.self_attn = SelfAttention(layer, 0)
        queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        for name, size in {"q_proj": queries, "k_proj": keys, "v_proj": keys}.items():
            setattr(self.self_attn, name, nn.Linear(2 * layer.hidden_size, size, bias=layer.qkv_bias))
        self.mlp = GatedMLP(layer)
        self.input_layernorm = RMSNorm(layer.hidden_size, layer)
        self.hidden_norm = RMSNorm(layer.hidden_size, layer)
        self.post_attention_layernorm = RMSNorm(layer.hidden_size, layer)
        self._norm_before_residual = config.norm_before_residual

    def forward(
        self,
        embedding: Float[Tensor, "row hidden"],
        feature: Float[Tensor, "row hidden"],
        tables: tuple[Tensor, Tensor] | None,
        attention: Attention,
    ) -> Float[Tensor, "row hidden"]:
        normed = self.hidden_norm(feature)
        residual = normed if self._norm_before_residual else feature
        both = torch.cat((self.input_layernorm(embedding), normed), dim=-1)
        hidden = residual + cast(Tensor, self.self_attn(both, tables, attention))
        return hidden + cast(Tensor, self.mlp(self.post_attention_layernorm(hidden)))


class EagleHead(nn.Module):
    """The head over rows: `fuse`, `run`, `logits`. Differentiable throughout.

    Attributes:
        target_ids: for each column of the LM head the target's token id; rising.
    """

    target_ids: Int[Tensor, " draft_vocab"]

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        layer, fused = config.layer, config.states * config.target_hidden_size
        self.embed_tokens = nn.Embedding(layer.vocab_size, layer.hidden_size)
        self.input_norm = RMSNorm(fused, layer) if config.norm_before_fc else None
        norms = [RMSNorm(config.target_hidden_size, layer) for _ in range(config.states)]
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.fc = nn.Linear(fused, layer.hidden_size, bias=False)
        further = (DecoderLayer(layer, index) for index in range(1, layer.num_layers))
        self.layers = nn.ModuleList([EagleLayer(config), *further])
        self.norm = RMSNorm(layer.hidden_size, layer)
        self.lm_head = nn.Linear(layer.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size), persistent=False)

    def fuse(self, states: Float[Tensor, "row fused"]) -> Float[Tensor, "row hidden"]:
        """Features of rows from the target's hidden states at the boundaries, side by side, low to high."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(self.config.states, dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return cast(Tensor, self.fc(states))

    def run(
        self,
        tokens: Int[Tensor, " row"],
        features: Float[Tensor, "row hidden"],
        positions: Int[Tensor, " row"],
        attention: Attention,
    ) -> tuple[Float[Tensor, "row hidden"], Float[Tensor, "row hidden"]]:
        """The layers over rows.

        Args:
            tokens: each row's *next* token, in the target's ids.
            features: of the target where it has been, else what this returned one row before.
            positions: of the rows. Only differences count, so published heads trained from 1 on need no shift.
            attention: what the rows see.

        Returns:
            the normed output, for `logits`, and the feature to feed back.
        """
        ropes = {layer.rope for layer in self.config.layer.layers if layer.rope is not None}
        tables = {rope: rope_tables(positions, rope) for rope in ropes}
        # The embedding may be the target's own, stored in fewer bits.
        embedding = self.embed_tokens(tokens).to(features.dtype)
        hidden = features
        for index, layer in enumerate(self.layers):
            rope = self.config.layer.layers[index].rope
            turns = None if rope is None else tables[rope]
            hidden = layer(hidden, turns, attention) if index else layer(embedding, hidden, turns, attention)
        normed = self.norm(hidden)
        return normed, normed if self.config.norm_output else hidden

    def logits(self, normed: Float[Tensor, "row hidden"]) -> Float[Tensor, "row draft_vocab"]:
        """Logits over the draft vocabulary."""
        return cast(Tensor, self.lm_head(normed))
