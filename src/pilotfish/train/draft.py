"""A stand-alone draft model in training: a few of the target's own layers, taught to do without the others.

Owns how it is cut out of the target and what it learns from. Embedding and LM head stay the target's, frozen: they are
most of a small model's weights and right already. Only the draft vocabulary's columns are compared, which teaches the
layers as well as all would. After DistillSpec (https://arxiv.org/abs/2310.08461), on the target's own text.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from pilotfish.errors import InvalidInputError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.config_values import can_be_written, config_values, small_decoder
from pilotfish.models.decoder import load_decoder
from pilotfish.models.weights import GroupedInt8, Weights
from pilotfish.models.writing import write_model
from pilotfish.train.packs import Pack
from pilotfish.train.student import Depth, Student, require_layers
from pilotfish.train.unrolled import UnrolledAttention

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"),
)


class _Renumbered(Weights):
    """The target's tensors as a model of some of its layers names them."""

    def __init__(self, weights: Weights, layers: tuple[int, ...]) -> None:
        self._weights = weights
        self._layers = layers

    @property
    def half_precision(self) -> bool:
        return self._weights.half_precision

    def names(self) -> list[str]:
        names = list(self._weights.names())
        kept = [name for name in names if not name.startswith("model.layers.")]
        for index, source in enumerate(self._layers):
            prefix = f"model.layers.{source}."
            kept += [f"model.layers.{index}." + name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return kept

    def read(self, name: str) -> Tensor:
        if name.startswith("model.layers."):
            number, _, rest = name.removeprefix("model.layers.").partition(".")
            name = f"model.layers.{self._layers[int(number)]}.{rest}"
        return self._weights.read(name)

    def read_grouped(self, name: str) -> GroupedInt8 | None:
        return None


class DraftStudent(Student):
    """A small decoder made of some of the target's layers.

    Args:
        target: the decoder it drafts for.
        weights: the target's tensors.
        ids: the columns it is taught on; all of them are drafted.
        start_layers: the target's layers it is made of, in this order.
        tokenizer: the target's tokenizer directory, for `save`.
        eos_ids: ids that end a text.

    Raises:
        InvalidInputError: the target has no such layers, or is of a family whose layers cannot be written.
    """

    kind, method = "draft", "draft_model"

    def __init__(
        self,
        target: DecoderConfig,
        weights: Weights,
        ids: Int[Tensor, " draft_vocab"],
        start_layers: tuple[int, ...],
        tokenizer: Path,
        eos_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        require_layers(start_layers, target.num_layers)
        if not start_layers:
            raise InvalidInputError("start_layers is empty: name the target's layers that the draft model is made of")
        if not can_be_written(target):
            raise InvalidInputError(
                f"a draft model of a {target.family!r} target cannot be written; train a head instead"
            )
        self.boundaries = ()
        self.register_buffer("target_ids", ids, persistent=False)
        self._start_layers = start_layers
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self.config = small_decoder(target, start_layers)
        self.decoder = load_decoder(self.config, _Renumbered(weights, start_layers))
        self.decoder.model.embed_tokens.weight.requires_grad_(False)
        if not target.tie_word_embeddings:
            self.decoder.lm_head.weight.requires_grad_(False)

    def forward(self, pack: Pack, depths: int) -> list[Depth]:
        decoder = self.decoder
        attention = UnrolledAttention(self.config, pack.lengths)
        hidden, _ = decoder.run(decoder.embed(pack.tokens), pack.positions, attention)
        laws = pack.starts(1)[0] + 1
        head = decoder.model.embed_tokens if self.config.tie_word_embeddings else decoder.lm_head
        rows = head.weight[self.target_ids] if self.training else head.weight
        logits = F.linear(decoder.model.norm(hidden[laws]), rows)
        return [Depth(laws, logits.float())]

    @property
    def examined_ids(self) -> Int[Tensor, " draft_vocab"]:
        return torch.arange(self.config.vocab_size, device=self.target_ids.device)

    def save(self, path: Path, dtype: torch.dtype, source: dict[str, Any] | None) -> None:
        values = config_values(self.config, source)
        if self._eos_ids:
            values["eos_token_id"] = list(self._eos_ids)
        values["dtype"] = str(dtype).removeprefix("torch.")
        write_model(path, values, {name: value.to(dtype) for name, value in self.decoder.named_parameters()})
        for name in TOKENIZER_FILES:
            if (self._tokenizer / name).is_file():
                shutil.copyfile(self._tokenizer / name, path / name)

    def settings(self) -> dict[str, Any]:
        return {"start_layers": list(self._start_layers), "draft_vocab_size": len(self.target_ids)}
