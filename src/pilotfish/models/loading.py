"""A model by name becomes an executor and a tokenizer: `load_model`.

Owns the choice of executor. Knows no file format; `files.py` finds and reads the model.
"""

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

from pilotfish.errors import ExecutorUnavailableError, InvalidInputError, UnsupportedModelError
from pilotfish.models.base import Executor
from pilotfish.models.devices import CPU, require_device
from pilotfish.models.files import ModelFiles, resolve
from pilotfish.models.tokenizer import Tokenizer, load_tokenizer
from pilotfish.models.weights import WEIGHT_TYPES, WeightType

logger = logging.getLogger(__name__)

ExecutorChoice: TypeAlias = Literal["auto", "native", "torch"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to run.

    Attributes:
        files: where it came from.
        eos_ids: its end-of-sequence ids, the tokenizer's where the model's configuration names none.
    """

    files: ModelFiles
    executor: Executor
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]


def load_model(
    name: str | Path,
    *,
    executor: ExecutorChoice = "auto",
    weights: WeightType = "auto",
    threads: int | None = None,
    device: str = CPU,
) -> Model:
    """Finds a model and makes it ready to run.

    Args:
        name: a Hugging Face directory, a GGUF file, a catalogue name or a hub id.
        executor: "native", "torch", or "auto": native on the CPU where the extension works, PyTorch elsewhere.
        weights: how the native executor stores matrices; the PyTorch executor computes in float32.
        threads: at work in a pass on the CPU; by default one per physical core this process may use on the native
            executor, and PyTorch's own number on PyTorch.
        device: where the PyTorch executor runs.

    Raises:
        InvalidInputError: an option has a value that is not one of its choices, or contradicts another.
        ModelNotFoundError, UnsupportedModelError, CorruptModelError: the model cannot be found, read or used.
        ExecutorUnavailableError: the native executor was asked for by name and does not work here.
    """
    _require_choice("executor", executor, ("auto", "native", "torch"))
    _require_choice("weights", weights, WEIGHT_TYPES)
    if threads is not None and threads < 1:
        raise InvalidInputError(f"threads={threads}: expected at least 1")
    require_device(device)
    if executor == "native" and device != CPU:
        raise InvalidInputError(f"executor='native' runs on the CPU, got device={device!r}: use executor='torch'")
    if threads is not None and device != CPU:
        raise InvalidInputError(f"threads={threads} are of the CPU, got device={device!r}: leave one of them out")
    native = executor != "torch" and device == CPU and _native_works()
    if executor == "native" and not native:
        raise ExecutorUnavailableError(
            "executor='native', but the native extension does not load here: reinstall pilotfish with a C++ compiler, "
            "or use executor='torch'"
        )
    if not native and weights not in ("auto", "float32"):
        raise InvalidInputError(f"weights={weights!r} needs the native executor: the PyTorch executor stores float32")

    files = resolve(name)
    tokenizer = load_tokenizer(files.tokenizer_path, name=files.name)
    if tokenizer.vocab_size > files.config.vocab_size:
        raise UnsupportedModelError(
            f"{files.name}: the tokenizer knows {tokenizer.vocab_size} ids, the model embeds "
            f"{files.config.vocab_size}: expected an embedding for every id; resize it to the tokenizer"
        )
    eos_ids = files.eos_ids or (() if tokenizer.eos_id is None else (tokenizer.eos_id,))
    return Model(files, _executor(files, native, weights, threads, device), tokenizer, eos_ids)


def _executor(files: ModelFiles, native: bool, weights: WeightType, threads: int | None, device: str) -> Executor:
    if native:
        from pilotfish.models.native_executor import NativeExecutor

        return NativeExecutor(files.config, files.weights, weight_type=weights, threads=threads)
    from pilotfish.models.torch_executor import TorchExecutor

    return TorchExecutor(files.config, files.weights, device=device, threads=threads)


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInputError(f"{name}={value!r}: expected one of {', '.join(choices)}")


@cache
def _native_works() -> bool:
    """Whether the extension loads; says once why not."""
    try:
        import pilotfish._native  # noqa: F401
    except ImportError as error:
        logger.warning("running on the PyTorch executor: the native extension does not load (%s)", error)
        return False
    return True
