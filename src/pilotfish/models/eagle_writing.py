"""EAGLE heads written in either published layout, and turned from one into the other.

Owns the writing; what the layouts are says `eagle_files.py`, which reads them. A conversion moves tensors bit for bit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from pilotfish.errors import InvalidInputError, UnsupportedModelError
from pilotfish.models.config_values import config_values
from pilotfish.models.eagle import EagleConfig, EagleHead
from pilotfish.models.eagle_files import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    LAYER,
    LAYER_IDS,
    LM_HEAD,
    SGLANG_ARCHITECTURE,
    SGLANG_LAYER,
    SHARES_LM_HEAD,
    TARGET_TO_DRAFT,
    eagle_config,
)
from pilotfish.models.huggingface import read_json, weight_files
from pilotfish.models.safetensors_file import SafetensorsFile
from pilotfish.models.writing import write_model

Layout: TypeAlias = Literal["speculators", "sglang"]
LAYOUTS: tuple[Layout, ...] = ("speculators", "sglang")
SPECULATORS_ARCHITECTURE = "Eagle3Speculator"
_LAYER_CONFIG, _ARCHITECTURES = "transformer_layer_config", "architectures"
_OWN_KEYS = (
    *("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
    *("speculators_version", "speculators_config", "embed_requires_grad", SHARES_LM_HEAD),
)
"""What describes the head rather than its layer, under the same name in both layouts."""


def save_eagle_head(
    head: EagleHead,
    path: Path,
    *,
    layout: Layout = "speculators",
    dtype: torch.dtype = torch.bfloat16,
    target: str = "",
    target_architecture: str = "LlamaForCausalLM",
    draft_len: int = 3,
    rope_source: Mapping[str, Any] | None = None,
) -> None:
    """Writes `config.json` and `model.safetensors`. The embedding is the target's and is left out.

    Args:
        path: a directory; made if it is not there.
        dtype: of the matrices and norms.
        target, target_architecture: the model it drafts for, for readers of the speculators layout.
        draft_len: tokens to draft unless told otherwise, for the same.
        rope_source: see `config_values`.

    Raises:
        UnsupportedModelError: the layout has no place for this head.
        OSError: it cannot be written.
    """
    values = _values(head.config, target, target_architecture, draft_len, rope_source)
    left_out = {EMBEDDING, LM_HEAD} if head.config.shares_lm_head else {EMBEDDING}
    tensors = {
        name: parameter.detach().to(dtype) for name, parameter in head.named_parameters() if name not in left_out
    }
    ids = head.target_ids.detach().cpu()
    vocab = head.config.layer.vocab_size
    tensors[DRAFT_TO_TARGET] = ids - torch.arange(len(ids))
    tensors[TARGET_TO_DRAFT] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    if layout == "sglang":
        values = _sglang_values(values)
        _require_sglang(head.config)
        tensors = {_renamed(name, LAYER, SGLANG_LAYER): tensor for name, tensor in tensors.items()}
    write_model(path, values, tensors)


def convert_eagle_head(source: Path, destination: Path, layout: Layout) -> None:
    """A head in the other layout, or again in the same one. Every tensor keeps its bits and its dtype.

    Raises:
        ModelNotFoundError, CorruptModelError: `source` is not a head that can be read.
        UnsupportedModelError: it is of another kind, or the layout has no place for it.
        InvalidInputError: the layout is unknown, or `destination` is there already.
        OSError: it cannot be written.
    """
    if layout not in LAYOUTS:
        raise InvalidInputError(f"layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    if destination.exists():
        raise InvalidInputError(f"{destination} is there already; name a directory that is not")
    values = read_json(source / "config.json")
    config = eagle_config(values)
    speculators = "speculators_model_type" in values
    flat = _sglang_values(values) if speculators else dict(values)
    tensors: dict[str, Tensor] = {}
    for file in [SafetensorsFile(file) for file in weight_files(source)]:
        tensors |= {_renamed(name, SGLANG_LAYER, LAYER): file.read(name) for name in file.tensors}
    if layout == "speculators":
        write_model(destination, _speculators_values(flat), tensors)
        return
    _require_sglang(config)
    write_model(destination, flat, {_renamed(name, LAYER, SGLANG_LAYER): tensor for name, tensor in tensors.items()})


def _values(
    config: EagleConfig, target: str, architecture: str, draft_len: int, rope_source: Mapping[str, Any] | None
) -> dict[str, Any]:
    """In the speculators layout."""
    layer = config_values(config.layer, rope_source)
    del layer[_ARCHITECTURES]
    values: dict[str, Any] = {
        _ARCHITECTURES: [SPECULATORS_ARCHITECTURE],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "embed_requires_grad": False,
        _LAYER_CONFIG: layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": draft_len,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": target, _ARCHITECTURES: [architecture]},
        },
    }
    if config.boundaries is not None:
        values[LAYER_IDS] = list(config.boundaries)
    if config.shares_lm_head:
        values[SHARES_LM_HEAD] = True
    return values


def _sglang_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, with layers counted by their outputs."""
    flat = {key: value for key, value in values[_LAYER_CONFIG].items() if key != _ARCHITECTURES}
    flat |= {key: values[key] for key in _OWN_KEYS if key in values}
    ids = values.get(LAYER_IDS)
    if ids is not None:
        flat["eagle_config"] = {LAYER_IDS: [number - 1 for number in ids], "use_aux_hidden_state": True}
    return {_ARCHITECTURES: [SGLANG_ARCHITECTURE], **flat}


def _speculators_values(flat: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: flat[key] for key in _OWN_KEYS if key in flat}
    apart = {*_OWN_KEYS, _ARCHITECTURES, "eagle_config"}
    values = {
        _ARCHITECTURES: [SPECULATORS_ARCHITECTURE],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        **own,
        _LAYER_CONFIG: {key: value for key, value in flat.items() if key not in apart},
    }
    ids = (flat.get("eagle_config") or {}).get(LAYER_IDS)
    if ids is not None:
        values[LAYER_IDS] = [number + 1 for number in ids]
    return values


def _require_sglang(config: EagleConfig) -> None:
    if config.layer.num_layers != 1:
        raise UnsupportedModelError(
            f"the layout of SGLang has names for one layer, this head has {config.layer.num_layers}; write it in the "
            "layout of speculators"
        )
    if config.boundaries is not None and 0 in config.boundaries:
        raise UnsupportedModelError(
            "the layout of SGLang counts layers by their outputs and has no number for the embedding, which this head "
            "fuses; write it in the layout of speculators"
        )


def _renamed(name: str, before: str, after: str) -> str:
    return after + name.removeprefix(before) if name.startswith(before) else name
