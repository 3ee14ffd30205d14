"""An EAGLE-3 head in training: its start, and training-time test.

Owns how a head is made for a target and how it is unrolled over a pack. The head's own mathematics is
`models/eagle.py`, the same that drafts. After https://arxiv.org/abs/2503.01840; norms of 3.1 by option.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from pilotfish.errors import InvalidInputError
from pilotfish.models.config import DecoderConfig, LayerConfig
from pilotfish.models.config_values import can_be_written
from pilotfish.models.eagle import EagleConfig, EagleHead
from pilotfish.models.eagle_writing import Layout, save_eagle_head
from pilotfish.models.layout import head_rows
from pilotfish.models.weights import Weights
from pilotfish.train.packs import Pack
from pilotfish.train.student import Depth, Student, require_layers
from pilotfish.train.unrolled import UnrolledAttention


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """A head's shape and start.

    Attributes:
        layers: decoder layers; more than one only in the layout of speculators.
        start_layers: the target's layers whose weights its own start from, one for each; empty starts at random.
        boundaries: of the target, fused low to high; by default the published ones.
        fc_norm, norm_output, norm_before_residual: see `EagleConfig`.
        share_lm_head: the LM head stays the target's and is left out of the files: less to learn and to store, but only
            this engine reads such a head.
        layout: of the files.
    """

    layers: int = 1
    start_layers: tuple[int, ...] = ()
    boundaries: tuple[int, ...] | None = None
    fc_norm: bool = True
    norm_output: bool = False
    norm_before_residual: bool = False
    share_lm_head: bool = False
    layout: Layout = "speculators"

    def __post_init__(self) -> None:
        if self.layers < 1 or (self.layers > 1 and self.layout == "sglang"):
            raise InvalidInputError(
                f"layers is {self.layers}: expected 1, or several in the layout of speculators (--layout speculators)"
            )
        if self.start_layers and len(self.start_layers) != self.layers:
            raise InvalidInputError(f"start_layers has {len(self.start_layers)} layers for a head of {self.layers}")


class HeadStudent(Student):
    """An EAGLE head.

    Args:
        target: the decoder it drafts for.
        weights: the target's tensors: embedding, norm and LM head, and the layers it starts from.
        ids: the draft vocabulary.
        options: shape and start.

    Raises:
        InvalidInputError: the target has no such layers or boundaries, or layers that a head cannot have.
    """

    kind, method, unrolls = "head", "eagle", True

    def __init__(
        self, target: DecoderConfig, weights: Weights, ids: Int[Tensor, " draft_vocab"], options: HeadOptions
    ) -> None:
        super().__init__()
        self._options = options
        config = _head_config(target, len(ids), options)
        self.boundaries = config.boundaries_of(target.num_layers)
        if not all(0 <= boundary <= target.num_layers for boundary in self.boundaries):
            raise InvalidInputError(f"boundaries {self.boundaries}: expected 0 to {target.num_layers}")
        self.register_buffer("target_ids", ids, persistent=False)
        self.head = EagleHead(config)
        self.head.target_ids = ids
        _start(self.head, target, weights, options.start_layers)

    def forward(self, pack: Pack, depths: int) -> list[Depth]:
        head = self.head
        states = torch.cat([pack.hidden[boundary] for boundary in self.boundaries], dim=-1)
        features = head.fuse(states)
        attention = UnrolledAttention(head.config.layer, pack.lengths)
        tokens, positions = pack.following, pack.positions
        found: list[Depth] = []
        before: Tensor | None = None
        for depth, starts in enumerate(pack.starts(depths)):
            if depth:
                # Rows from which no draft comes this far are left out from here on.
                assert before is not None
                kept = torch.searchsorted(before, starts)
                attention.advance(starts, kept)
                features, positions = features[kept], pack.positions[starts] + depth
                tokens = pack.following[starts + depth]
            if not len(starts):
                break
            normed, features = head.run(tokens, features, positions, attention)
            predicting = normed if depth else normed[starts]
            found.append(Depth(starts + depth + 1, head.logits(predicting).float()))
            before = starts if depth else torch.arange(len(pack.tokens), device=starts.device)
        return found

    def save(self, path: Path, dtype: torch.dtype, source: dict[str, Any] | None) -> None:
        save_eagle_head(self.head, path, layout=self._options.layout, dtype=dtype, rope_source=source)

    def settings(self) -> dict[str, Any]:
        return {
            "layers": self._options.layers,
            "start_layers": list(self._options.start_layers),
            "boundaries": list(self.boundaries),
            "fc_norm": self._options.fc_norm,
            "norm_output": self._options.norm_output,
            "norm_before_residual": self._options.norm_before_residual,
            "share_lm_head": self._options.share_lm_head,
            "layout": self._options.layout,
            "draft_vocab_size": len(self.target_ids),
        }


def _head_config(target: DecoderConfig, draft_vocab: int, options: HeadOptions) -> EagleConfig:
    require_layers(options.start_layers, target.num_layers)
    if options.start_layers and not can_be_written(target):
        raise InvalidInputError(
            f"start_layers with a target of family {target.family!r}: an EAGLE head has Llama's layers; leave it out"
        )
    sources = options.start_layers or (0,) * options.layers
    rope = next(
        target.layers[layer].rope for layer in (*sources, *range(target.num_layers)) if target.layers[layer].rope
    )
    layer = replace(target, layers=tuple(LayerConfig(rope) for _ in range(options.layers)), tie_word_embeddings=False)
    if not can_be_written(target):
        layer = replace(
            layer,
            family="llama",
            query_scale=target.head_dim**-0.5,
            activation="silu",
            embedding_scale=1.0,
            norm_offset=0.0,
            qk_norm=False,
            sandwich_norms=False,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
        )
    return EagleConfig(
        layer,
        draft_vocab,
        target.hidden_size,
        options.boundaries or (2, target.num_layers // 2, target.num_layers - 3),
        norm_before_residual=options.norm_before_residual,
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
        shares_lm_head=options.share_lm_head,
    )


@torch.no_grad()
def _start(head: EagleHead, target: DecoderConfig, weights: Weights, start_layers: Sequence[int]) -> None:
    """Embedding, norm and LM head are the target's; its layers too, where they are named."""
    head.embed_tokens.weight.copy_(weights.read("model.embed_tokens.weight").float())
    head.embed_tokens.weight.requires_grad_(False)
    head.lm_head.weight.copy_(head_rows(target, weights, head.target_ids))
    head.lm_head.weight.requires_grad_(not head.config.shares_lm_head)
    head.norm.weight.copy_(weights.read("model.norm.weight").float() + target.norm_offset)
    for module in head.layers.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    nn.init.normal_(head.fc.weight, std=0.02)
    hidden = target.hidden_size
    # The highest state is the closest to what a next token is read from.
    head.fc.weight[:, -hidden:] += torch.eye(hidden)
    for index, source in enumerate(start_layers):
        layer, prefix = head.layers[index], f"model.layers.{source}."
        for name, parameter in layer.named_parameters():
            if index == 0 and name == "hidden_norm.weight":
                parameter.copy_(weights.read(f"{prefix}input_layernorm.weight").float())
                continue
            value = weights.read(prefix + name).float()
            if value.shape == parameter.shape:
                parameter.copy_(value)
            else:  # a projection of embedding and feature side by side: both are read as the layer read its input
                parameter.copy_(torch.cat((value, value), dim=1) / 2**0.5)
