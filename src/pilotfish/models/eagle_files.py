"""EAGLE heads from published checkpoints, in the layout of SGLang and SpecForge and in that of speculators.

Owns both layouts: keys of the configuration, names of tensors, vocabulary maps. Every tensor is accounted for: one that
is missing, unexpected or of the wrong shape is an error that names it, because a head that was loaded by half drafts
badly and says nothing. Knows nothing of drafting.

Layouts: SGLang's `config.json` names `LlamaForCausalLMEagle3`, its tensors are `midlayer.*`, and the layers it takes
features from are counted by their outputs. speculators' says `"speculators_model_type": "eagle3"`, keeps the layer in
`transformer_layer_config`, names tensors `layers.0.*` and counts by inputs, as we do. Only the latter has names for a
head of several layers. `eagle_writing.py` writes both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from pilotfish.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from pilotfish.models import hub
from pilotfish.models.config import DecoderConfig
from pilotfish.models.eagle import EagleConfig, EagleHead
from pilotfish.models.families import decoder_config
from pilotfish.models.huggingface import read_json, weight_files
from pilotfish.models.keys import ConfigKeys
from pilotfish.models.layout import IGNORED_SUFFIXES, head_rows
from pilotfish.models.safetensors_file import DTYPES, INTEGER_DTYPES, SafetensorsFile
from pilotfish.models.weights import Weights

SGLANG_ARCHITECTURE = "LlamaForCausalLMEagle3"
SGLANG_LAYER, LAYER = "midlayer.", "layers.0."
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
DRAFT_TO_TARGET, TARGET_TO_DRAFT = "d2t", "t2d"
"""The vocabulary map as files store it: offsets (target id - draft id), and a mask over the target's ids."""
EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
SHARES_LM_HEAD = "lm_head_from_target"
"""Our own key: the LM head is left out of the file."""


def load_eagle_head(name: str | Path, target: DecoderConfig, target_weights: Weights) -> EagleHead:
    """A head with a checkpoint's weights, in float32, for one target.

    Args:
        name: a directory or a hub id.
        target: the model it drafts for.
        target_weights: where the embedding comes from if the checkpoint has none.

    Raises:
        ModelNotFoundError: nothing answers to the name, or a file is missing.
        UnsupportedModelError: it is no EAGLE-3 head, asks for something we do not have, or was made for another target.
        CorruptModelError: a tensor is missing, unexpected, damaged or misshapen; the message names it.
    """
    path = _directory(name)
    config = eagle_config(read_json(path / "config.json"))
    _check_target(path, config, target)
    tensors = HeadTensors(path)
    with torch.device("meta"):  # no memory and no initial values before the real ones
        head = EagleHead(config)
    shapes = {key: tuple(parameter.shape) for key, parameter in head.named_parameters()}
    own_embedding = EMBEDDING in tensors.places
    if not own_embedding:
        shapes.pop(EMBEDDING)
    if config.shares_lm_head:
        shapes.pop(LM_HEAD)
    tensors.check(shapes, {DRAFT_TO_TARGET: (config.draft_vocab_size,), TARGET_TO_DRAFT: (target.vocab_size,)})
    for key in shapes:
        value = tensors.read(key)
        _set(head, key, value if key == EMBEDDING else value.to(torch.float32))
    if not own_embedding:
        _set(head, EMBEDDING, target_weights.read("model.embed_tokens.weight"))
    head.embed_tokens.weight.requires_grad_(False)
    head.target_ids = tensors.target_ids(config.draft_vocab_size, config.layer.vocab_size)
    if config.shares_lm_head:
        _set(head, LM_HEAD, head_rows(target, target_weights, head.target_ids))
    return head


def eagle_config(values: Mapping[str, Any]) -> EagleConfig:
    """The head that a `config.json` of either layout describes.

    Raises:
        UnsupportedModelError: it is no EAGLE-3 head, or asks for something we do not have; the message names it.
    """
    keys = ConfigKeys(values)
    kind = keys.get("speculators_model_type")
    architectures = keys.get("architectures") or []
    if kind is not None:
        if kind != "eagle3":
            raise UnsupportedModelError(f"speculators_model_type {kind!r} is not supported; supported: eagle3")
        layer_keys = keys.section("transformer_layer_config")
        if layer_keys is None:
            raise UnsupportedModelError("config.json has no transformer_layer_config; use the one the head came with")
        layer_values = values["transformer_layer_config"]
        ids, shift = keys.get(LAYER_IDS), 0
    elif SGLANG_ARCHITECTURE in architectures:
        layer_keys, layer_values = keys, values
        section = keys.section("eagle_config")
        if section is not None and section.get("use_aux_hidden_state") is False:
            raise UnsupportedModelError("use_aux_hidden_state false (EAGLE-1 features) is not supported")
        ids, shift = None if section is None else section.get(LAYER_IDS), 1
    else:
        raise UnsupportedModelError(
            f"architectures {architectures} is not an EAGLE-3 head; expected {SGLANG_ARCHITECTURE!r} or "
            '"speculators_model_type": "eagle3"'
        )
    if keys.get("parallel_drafting"):
        raise UnsupportedModelError("parallel_drafting is not supported; use a head that drafts token by token")
    layers = layer_keys.integer("num_hidden_layers", 1)
    if layers != 1 and kind is None:
        raise UnsupportedModelError(
            f"num_hidden_layers {layers} is not supported for an EAGLE head in this layout; supported: 1, or several "
            "in the layout of speculators"
        )
    layer = decoder_config({**layer_values, "num_hidden_layers": layers})
    target_hidden_size = keys.nullable_integer("target_hidden_size", None)
    return EagleConfig(
        layer=layer,
        draft_vocab_size=keys.integer("draft_vocab_size", layer.vocab_size),
        target_hidden_size=layer.hidden_size if target_hidden_size is None else target_hidden_size,
        boundaries=_boundaries(ids, shift),
        norm_before_residual=keys.flag("norm_before_residual", False),
        norm_before_fc=keys.flag("norm_before_fc", False),
        fc_norm=keys.flag("fc_norm", False),
        norm_output=keys.flag("norm_output", False),
        shares_lm_head=keys.flag(SHARES_LM_HEAD, False),
    )


def _boundaries(ids: Any, shift: int) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or any(type(number) is not int or number < 0 for number in ids):
        raise UnsupportedModelError(f"{LAYER_IDS} {ids!r} is not supported; expected a list of layer numbers")
    return tuple(number + shift for number in ids)


def _directory(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if isinstance(name, str) and hub.is_hub_id(name):
        return hub.snapshot(name)
    raise ModelNotFoundError(
        f"no EAGLE head {str(name)!r}: not a directory, not a hub id of the form organisation/model"
    )


def _check_target(path: Path, config: EagleConfig, target: DecoderConfig) -> None:
    for what, got, expected in (
        ("vocab_size", config.layer.vocab_size, target.vocab_size),
        ("target_hidden_size", config.target_hidden_size, target.hidden_size),
    ):
        if got != expected:
            raise UnsupportedModelError(
                f"{path}: {what} is {got}, the target's is {expected}; use a head that was trained for this target"
            )
    boundaries = config.boundaries_of(target.num_layers)
    if min(boundaries) < 0 or max(boundaries) > target.num_layers:
        raise UnsupportedModelError(
            f"{path}: takes features at boundaries {list(boundaries)}, the target has {target.num_layers} layers; use "
            "a head that was trained for this target"
        )
    if config.draft_vocab_size > config.layer.vocab_size:
        raise UnsupportedModelError(
            f"{path}: draft_vocab_size {config.draft_vocab_size} exceeds vocab_size {config.layer.vocab_size}"
        )


def _set(head: EagleHead, name: str, value: Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(head.get_submodule(module), leaf, nn.Parameter(value))


class HeadTensors:
    """A checkpoint's tensors under their canonical names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[str, tuple[SafetensorsFile, str]] = {}
        for file in [SafetensorsFile(file) for file in weight_files(path)]:
            for stored in file.tensors:
                if stored.endswith(IGNORED_SUFFIXES):
                    continue
                name = LAYER + stored.removeprefix(SGLANG_LAYER) if stored.startswith(SGLANG_LAYER) else stored
                if name in self.places:
                    raise CorruptModelError(f"{path}: tensor {stored!r} is there twice (as {self.places[name][1]!r})")
                self.places[name] = (file, stored)

    def check(self, shapes: Mapping[str, tuple[int, ...]], maps: Mapping[str, tuple[int, ...]]) -> None:
        """All of `shapes` are there, nothing but them and `maps` is, and each has its shape and kind of number."""
        for name in shapes:
            if name not in self.places:
                raise CorruptModelError(
                    f"{self.path}: tensor {name!r} is missing; the checkpoint is incomplete or its config.json belongs "
                    "to another head"
                )
        for name, (file, stored) in self.places.items():
            tensor = file.tensors[stored]
            expected = shapes.get(name) or maps.get(name)
            if expected is None:
                raise CorruptModelError(
                    f"{self.path}: tensor {stored!r} has no place in this head as its config.json describes it; use "
                    "the config.json that was published with these weights"
                )
            if tensor.shape != expected:
                raise CorruptModelError(
                    f"{self.path}: tensor {stored!r} has shape {list(tensor.shape)}, the configuration asks for "
                    f"{list(expected)}"
                )
            dtypes = DTYPES if name in shapes else INTEGER_DTYPES
            if tensor.dtype not in dtypes:
                raise CorruptModelError(
                    f"{self.path}: tensor {stored!r} is stored as {tensor.dtype}, expected one of {', '.join(dtypes)}"
                )

    def read(self, name: str) -> Tensor:
        file, stored = self.places[name]
        return file.read(stored)

    def target_ids(self, size: int, vocab: int) -> Int[Tensor, " draft_vocab"]:
        """The map of a draft vocabulary of `size` as indices, both stored forms checked against each other."""
        ids = torch.arange(size)
        if DRAFT_TO_TARGET in self.places:
            ids = ids + self.read(DRAFT_TO_TARGET).to(torch.int64)
        elif size != vocab:
            raise CorruptModelError(
                f"{self.path}: tensor {DRAFT_TO_TARGET!r} is missing, and the draft vocabulary of {size} is not the "
                f"target's of {vocab}; the checkpoint is incomplete"
            )
        if bool((ids < 0).any()) or bool((ids >= vocab).any()) or bool((ids.diff() <= 0).any()):
            raise CorruptModelError(
                f"{self.path}: tensor {DRAFT_TO_TARGET!r} does not map to rising ids below {vocab}; expected offsets "
                "(target id - draft id)"
            )
        if TARGET_TO_DRAFT in self.places:
            mask: Bool[Tensor, " vocab"] = self.read(TARGET_TO_DRAFT).to(torch.bool)
            if not torch.equal(mask.nonzero()[:, 0], ids):
                raise CorruptModelError(
                    f"{self.path}: tensor {TARGET_TO_DRAFT!r} does not mark the ids that {DRAFT_TO_TARGET!r} maps to"
                )
        return ids
