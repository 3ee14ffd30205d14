"""Reads a Hugging Face model directory: `config.json`, `generation_config.json`, one or many safetensors files.

Owns the layout of such a directory and the canonical names of multimodal checkpoints. Knows no executor and no family
beyond what `families.py` makes of the configuration.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pilotfish.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.families import decoder_config
from pilotfish.models.layout import IGNORED_SUFFIXES, require_tensors
from pilotfish.models.safetensors_file import DTYPES, SafetensorsFile
from pilotfish.models.weights import GroupedInt8, Weights

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
OTHER_MODALITIES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


class HuggingFaceDirectory:
    """An opened model directory: configuration understood, headers checked, no weight read.

    Attributes:
        config: the decoder.
        weights: its tensors.
        eos_ids: ids that end a text, from `generation_config.json`, else from `config.json`.
        fingerprint: identifies the weights by the headers and sizes of their files and by the configuration. It does
            not hash the tensors: two fine-tunes of one model saved by the same program share it.

    Raises:
        ModelNotFoundError: a file is missing.
        CorruptModelError: a file is truncated or damaged (tensor named).
        UnsupportedModelError: the decoder does not cover this model; raised before any weight file is opened where
            the configuration says so.
    """

    config: DecoderConfig
    weights: "SafetensorsWeights"
    eos_ids: tuple[int, ...]
    fingerprint: str

    def __init__(self, path: Path) -> None:
        values = read_json(path / "config.json")
        self.config = decoder_config(values)
        self.weights = SafetensorsWeights(path, self.config)
        self.eos_ids = read_eos_ids(path, values)
        parts = [json.dumps(values, sort_keys=True), *(file.digest for file in self.weights.files)]
        self.fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()


class SafetensorsWeights(Weights):
    """The tensors of a directory's safetensors files under their canonical names."""

    def __init__(self, path: Path, config: DecoderConfig) -> None:
        self.path = path
        self.files = [SafetensorsFile(file) for file in weight_files(path)]
        self._place: dict[str, tuple[SafetensorsFile, str]] = {}
        for file in self.files:
            for stored_name, tensor in file.tensors.items():
                name = canonical_name(stored_name)
                if name is None:
                    continue
                if name in self._place:
                    raise CorruptModelError(f"{file.path}: tensor {name!r} is also in {self._place[name][0].path.name}")
                if tensor.dtype not in DTYPES:
                    raise UnsupportedModelError(
                        f"{file.path}: tensor {stored_name!r} is stored as {tensor.dtype}; expected one of "
                        f"{', '.join(DTYPES)}"
                    )
                self._place[name] = (file, stored_name)
        require_tensors(path, config, {name: file.tensors[key].shape for name, (file, key) in self._place.items()})

    @property
    def half_precision(self) -> bool:
        tensors = [file.tensors[key] for file, key in self._place.values()]
        return all(tensor.dtype != "F32" for tensor in tensors if len(tensor.shape) == 2)

    def names(self) -> Iterable[str]:
        return self._place.keys()

    def read(self, name: str) -> Tensor:
        try:
            file, stored_name = self._place[name]
        except KeyError:
            raise CorruptModelError(f"{self.path}: tensor {name!r} is missing") from None
        return file.read(stored_name)

    def read_grouped(self, name: str) -> GroupedInt8 | None:
        return None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ModelNotFoundError: there is no such file.
        CorruptModelError: it holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path} is missing; a model directory needs it") from None
    except (ValueError, RecursionError) as error:
        raise CorruptModelError(f"{path}: not JSON ({error}); fetch the file again") from None
    if not isinstance(values, dict):
        raise CorruptModelError(f"{path}: got a JSON {type(values).__name__}, expected an object")
    return values


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a directory: those its index names, or the single one.

    Raises:
        ModelNotFoundError: there are none, or one that the index names is missing.
        CorruptModelError: the index makes no sense.
    """
    index = path / INDEX_FILE
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, Mapping) or not shards or not all(is_file_name(name) for name in shards.values()):
            raise CorruptModelError(f"{index}: expected a 'weight_map' from tensor names to file names")
        files = sorted({str(name) for name in shards.values()})
        for name in files:
            if not (path / name).is_file():
                tensor = next(tensor for tensor, file in shards.items() if file == name)
                raise ModelNotFoundError(f"{path / name} is missing (it holds {tensor!r}); fetch the model again")
        return [path / name for name in files]
    if (path / SINGLE_FILE).is_file():
        return [path / SINGLE_FILE]
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return found
    pickled = any(path.glob("*.bin"))
    raise ModelNotFoundError(
        f"{path}: got {'only pickled weights (*.bin)' if pickled else f'{len(found)} safetensors files and no index'}, "
        f"expected {SINGLE_FILE} or {INDEX_FILE}; save the model with `save_pretrained`"
    )


def is_file_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and Path(name).name == name


def canonical_name(name: str) -> str | None:
    """The name within the text decoder; `None` for other modalities and for buffers that hold no weights."""
    if name.startswith(OTHER_MODALITIES) or name.endswith(IGNORED_SUFFIXES):
        return None
    for prefix, canonical in TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return canonical + name.removeprefix(prefix)
    return name


def read_eos_ids(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end a text, in file order; empty when neither configuration names one.

    Raises:
        CorruptModelError: `eos_token_id` is neither an id nor a list of ids.
    """
    sources = [("config.json", config)]
    if (path / "generation_config.json").exists():
        sources.insert(0, ("generation_config.json", read_json(path / "generation_config.json")))
    text = config.get("text_config")
    if isinstance(text, Mapping):
        sources.append(("config.json", text))
    for name, values in sources:
        ids = values.get("eos_token_id")
        if ids is None:
            continue
        ids = ids if isinstance(ids, list) else [ids]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise CorruptModelError(f"{path / name}: eos_token_id: got {ids}, expected token ids")
        return tuple(dict.fromkeys(ids))
    return ()
