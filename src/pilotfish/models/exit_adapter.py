"""An adapter that turns a target's first layers into a drafter: its description, its mathematics, its files.

Owns what stands between the hidden state at the exit layer and logits over a draft vocabulary: a low-rank residual
correction, a norm, and rows of the target's own LM head, which are not stored again. After Kangaroo
(https://arxiv.org/abs/2404.18911), whose adapter is a whole layer. Drafting is the drafter's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from pilotfish.errors import ModelNotFoundError, UnsupportedModelError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import RMSNorm
from pilotfish.models.eagle_files import DRAFT_TO_TARGET, TARGET_TO_DRAFT, HeadTensors
from pilotfish.models.huggingface import read_json
from pilotfish.models.keys import ConfigKeys
from pilotfish.models.layout import head_rows
from pilotfish.models.weights import Weights
from pilotfish.models.writing import write_model

MODEL_TYPE = "pilotfish_exit_adapter"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ExitConfig:
    """An adapter.

    Attributes:
        exit_layer: how many of the target's layers draft.
        rank: width of the correction.
        draft_vocab_size: columns of its logits.
    """

    exit_layer: int
    rank: int
    draft_vocab_size: int


class ExitAdapter(nn.Module):
    """From hidden states at the exit layer to logits over the draft vocabulary.

    Attributes:
        target_ids: for each column of the logits the target's token id; rising.
    """

    target_ids: Int[Tensor, " draft_vocab"]

    def __init__(self, config: ExitConfig, target: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        hidden = target.hidden_size
        self.input_norm = RMSNorm(hidden, target)
        self.down = nn.Linear(hidden, config.rank, bias=False)
        self.up = nn.Linear(config.rank, hidden, bias=False)
        self.norm = RMSNorm(hidden, target)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.lm_head.weight.requires_grad_(False)
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size), persistent=False)

    def forward(self, hidden: Float[Tensor, "row hidden"]) -> Float[Tensor, "row draft_vocab"]:
        corrected = hidden + self.up(F.silu(self.down(self.input_norm(hidden))))
        return cast(Tensor, self.lm_head(self.norm(corrected)))


def save_exit_adapter(adapter: ExitAdapter, path: Path, target: DecoderConfig, dtype: torch.dtype) -> None:
    """Writes `config.json` and `model.safetensors`.

    Raises:
        OSError: it cannot be written.
    """
    config, ids = adapter.config, adapter.target_ids.cpu()
    values = {
        "architectures": ["PilotfishExitAdapter"],
        "model_type": MODEL_TYPE,
        "exit_layer": config.exit_layer,
        "rank": config.rank,
        "draft_vocab_size": config.draft_vocab_size,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
    }
    tensors = {name: parameter.detach().to(dtype) for name, parameter in adapter.named_parameters() if name != HEAD}
    tensors[DRAFT_TO_TARGET] = ids - torch.arange(len(ids))
    tensors[TARGET_TO_DRAFT] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    write_model(path, values, tensors)


def load_exit_adapter(name: str | Path, target: DecoderConfig, target_weights: Weights) -> ExitAdapter:
    """An adapter in float32 for one target.

    Raises:
        ModelNotFoundError: there is no such directory, or a file is missing in it.
        UnsupportedModelError: it is no exit adapter, or was made for another target.
        CorruptModelError: a tensor is missing, unexpected, damaged or misshapen; the message names it.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        raise ModelNotFoundError(
            f"no exit adapter {str(name)!r}: expected a directory that `pilotfish train exit` made"
        )
    values = read_json(path / "config.json")
    keys = ConfigKeys(values)
    if values.get("model_type") != MODEL_TYPE:
        raise UnsupportedModelError(
            f"{path}: model_type {values.get('model_type')!r} is not an exit adapter; expected {MODEL_TYPE!r}"
        )
    config = ExitConfig(keys.integer("exit_layer"), keys.integer("rank"), keys.integer("draft_vocab_size"))
    for what, got, expected in (
        ("vocab_size", keys.integer("vocab_size"), target.vocab_size),
        ("hidden_size", keys.integer("hidden_size"), target.hidden_size),
    ):
        if got != expected:
            raise UnsupportedModelError(
                f"{path}: {what} is {got}, the target's is {expected}; use an adapter that was trained for this target"
            )
    if config.exit_layer >= target.num_layers:
        raise UnsupportedModelError(
            f"{path}: exit_layer is {config.exit_layer}, the target has {target.num_layers} layers; use an adapter "
            "that was trained for this target"
        )
    tensors = HeadTensors(path)
    adapter = ExitAdapter(config, target)
    shapes = {key: tuple(parameter.shape) for key, parameter in adapter.named_parameters() if key != HEAD}
    tensors.check(shapes, {DRAFT_TO_TARGET: (config.draft_vocab_size,), TARGET_TO_DRAFT: (target.vocab_size,)})
    adapter.target_ids = tensors.target_ids(config.draft_vocab_size, target.vocab_size)
    state = {key: tensors.read(key).to(torch.float32) for key in shapes}
    state[HEAD] = head_rows(target, target_weights, adapter.target_ids)
    adapter.load_state_dict(state)
    return adapter.requires_grad_(False)
