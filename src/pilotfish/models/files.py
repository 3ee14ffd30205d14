"""A model by name: a path, a catalogue name or a hub id becomes all that a loader needs, with no weight read.

Owns the order in which a name is looked up. Knows no executor.
"""

from dataclasses import dataclass
from pathlib import Path

from pilotfish.errors import ModelNotFoundError
from pilotfish.models import catalogue, hub
from pilotfish.models.cache import sha256_of
from pilotfish.models.config import DecoderConfig
from pilotfish.models.weights import Weights


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk, checked but not read.

    Attributes:
        name: as the caller said it.
        config: the decoder.
        weights: its tensors, read on demand; all that the configuration needs are there, in the right shapes.
        tokenizer_path: a directory for `load_tokenizer`.
        eos_ids: ids that end a text, by the model's own configuration; may be empty.
        fingerprint: identifies the weights: a GGUF's sha256; for a directory a checksum of the headers and sizes of
            its files (cheap, and blind to a change of values alone).
    """

    name: str
    config: DecoderConfig
    weights: Weights
    tokenizer_path: Path
    eos_ids: tuple[int, ...]
    fingerprint: str


def resolve(model: str | Path) -> ModelFiles:
    """Finds a model: an existing path first, then a catalogue name, then a hub id `organisation/model`.

    A catalogue model that is not cached is not fetched here. The configuration is judged before any weight is read.

    Raises:
        ModelNotFoundError: nothing answers to the name; says what was tried and what to do.
        UnsupportedModelError: the decoder does not cover the model; names what it asks for.
        CorruptModelError: a file is truncated or damaged; names file and tensor.
        DownloadError: a hub model is not cached and cannot be fetched.
    """
    name = str(model)
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_directory(name, path)
    if path.is_file():
        return _from_file(name, path)
    if name in catalogue.CATALOGUE:
        entry = catalogue.CATALOGUE[name]
        if not entry.is_cached():
            raise ModelNotFoundError(f"{name} is not on this machine yet; run `pilotfish models pull {name}`")
        return _from_file(name, entry.path)
    if isinstance(model, str) and hub.is_hub_id(name):
        return _from_directory(name, hub.snapshot(name))
    raise ModelNotFoundError(
        f"no model {name!r}: not a directory or GGUF file, not in the catalogue ({', '.join(catalogue.CATALOGUE)}), "
        "not a hub id of the form organisation/model"
    )


def _from_directory(name: str, path: Path) -> ModelFiles:
    from pilotfish.models.huggingface import HuggingFaceDirectory

    if not (path / "config.json").is_file():
        gguf = next(iter(sorted(path.glob("*.gguf"))), None)
        hint = f"; name the file itself: {gguf}" if gguf else ""
        raise ModelNotFoundError(f"{path} has no config.json, expected a Hugging Face model directory{hint}")
    directory = HuggingFaceDirectory(path)
    return ModelFiles(name, directory.config, directory.weights, path, directory.eos_ids, directory.fingerprint)


def _from_file(name: str, path: Path) -> ModelFiles:
    from pilotfish.models.gguf_file import GgufFile
    from pilotfish.models.gguf_tokenizer import gguf_tokenizer_directory

    file = GgufFile(path)
    checksum = sha256_of(path)
    tokenizer_path = gguf_tokenizer_directory(path, file.header.metadata, checksum)
    return ModelFiles(name, file.config, file.weights, tokenizer_path, file.eos_ids, checksum)
