"""The native CPU executor: the same bits whatever the number of rows, in one native call per pass.

Owns the translation of configurations and passes to and from the native decoder. The arithmetic, the cache and the
threads live in `native/`, the loading of weights in `native_loader.py`. Must not know samplers, drafts or text.
"""

import os
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.errors import ExecutorUnavailableError, InvalidInputError, RowsError, UnsupportedModelError
from pilotfish.models.base import PagedExecutor, PassOutput, Segment
from pilotfish.models.config import DecoderConfig
from pilotfish.models.native_loader import NativeLoader
from pilotfish.models.prefix_cache import PrefixCache
from pilotfish.models.weights import WEIGHT_TYPES, Weights, WeightType


def native_module() -> ModuleType:
    """The compiled extension.

    Raises:
        ExecutorUnavailableError: it was not built, or does not load on this machine.
    """
    try:
        from pilotfish import _native
    except ImportError as error:
        raise ExecutorUnavailableError(
            f"the native executor is not available ({error}); reinstall pilotfish with a C++17 compiler, or use "
            "executor='torch'"
        ) from error
    return _native


class NativeExecutor(PagedExecutor):
    """Runs a decoder with packed weights on the CPU.

    Args:
        config: the decoder's shape.
        weights: where its tensors are read from, one at a time.
        weight_type: how matrices are stored. `float32`; `bfloat16` (exact for a bfloat16 checkpoint, else rounded to
            nearest even); `bfloat16-compute`, which rounds the inputs of each matrix to bfloat16 too, as PyTorch does
            in bfloat16: processors with an instruction for it multiply twice as many rows in the time; `int8` (the
            exact grouped form where the file has one, else rounded to groups of 32 with one scale, a documented choice
            of other weights); `auto` takes the exact grouped form where there is one, bfloat16 for half-precision
            checkpoints, float32 otherwise. Norms, biases, attention and all sums are float32 throughout.
        threads: at most this many at work; by default the physical cores this process may use.
        kv_cache_tokens: positions the cache has room for, all sequences together; by default eight contexts, but no
            more than half of the machine's memory. Memory is taken page by page as it is needed.

    Attributes:
        storage: how the matrices are stored: one of the names above but `auto`, or several joined by "+".
        native_seconds: wall-clock time inside native code, all passes so far together.

    Raises:
        ExecutorUnavailableError: the native extension is missing.
        UnsupportedModelError: the configuration is one the decoder cannot have.
        CorruptModelError: a tensor is missing or has another shape; names it.
        InvalidInputError: an option is out of range.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        *,
        weight_type: WeightType = "auto",
        threads: int | None = None,
        kv_cache_tokens: int | None = None,
    ) -> None:
        if weight_type not in WEIGHT_TYPES:
            raise InvalidInputError(f"weight_type is {weight_type!r}; expected one of {', '.join(WEIGHT_TYPES)}")
        self._native = native_module()
        self.config = config
        self.weight_type = weight_type
        if threads is None:
            threads = int(self._native.available_cores())
        if not 1 <= threads <= 512:
            raise InvalidInputError(f"threads is {threads}; expected 1 to 512, or None for the available cores")
        page = int(self._native.PAGE_POSITIONS)
        if kv_cache_tokens is None:
            kv_cache_tokens = _default_cache_tokens(config)
        if kv_cache_tokens < 1:
            raise InvalidInputError(f"kv_cache_tokens is {kv_cache_tokens}; expected 1 or more")
        try:
            self._decoder = self._native.Decoder(
                _native_spec(self._native, config), threads, -(-kv_cache_tokens // page)
            )
        except RowsError as error:
            raise UnsupportedModelError(
                f"the native executor cannot run this {config.family} model: {error}"
            ) from error
        loader = NativeLoader(self._decoder, config, weights, weight_type)
        loader.load()
        # Each source tensor was freed once it was packed; what the C library still holds of them is given back.
        self._native.release_freed_memory()
        self.storage = "+".join(sorted(loader.storages))
        self.native_seconds = 0.0
        self.prefix_cache = PrefixCache(self)

    torch_threads = 1

    @property
    def exact(self) -> bool:
        return True

    @property
    def threads(self) -> int:
        return int(self._decoder.threads)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices, all of which a pass with logits reads once (an untied embedding apart)."""
        return int(self._decoder.weight_bytes)

    @property
    def page_size(self) -> int:
        return int(self._native.PAGE_POSITIONS)

    @property
    def page_bytes(self) -> int:
        return int(self._decoder.page_bytes)

    @property
    def total_pages(self) -> int:
        return int(self._decoder.total_pages)

    @property
    def free_pages(self) -> int:
        return int(self._decoder.free_pages)

    def limit_pages(self, pages: int) -> None:
        self._decoder.limit_pages(_whole("pages", pages))

    def share(self, sequence: int, block: int) -> int:
        return int(self._decoder.share(_whole("sequence", sequence), _whole("block", block)))

    def adopt(self, sequence: int, pages: Sequence[int]) -> None:
        self._decoder.adopt(_whole("sequence", sequence), [_whole("a page", page) for page in pages])

    def release(self, page: int) -> None:
        self._decoder.release(_whole("page", page))

    def open(self, capacity: int) -> int:
        return int(self._decoder.open(_whole("capacity", capacity)))

    def close(self, sequence: int) -> None:
        self._decoder.close(_whole("sequence", sequence))

    def length(self, sequence: int) -> int:
        return int(self._decoder.length(_whole("sequence", sequence)))

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._decoder.keep(_whole("sequence", sequence), [_whole("a node of path", node) for node in path])

    def truncate(self, sequence: int, length: int) -> None:
        self._decoder.truncate(_whole("sequence", sequence), _whole("length", length))

    def forward(
        self,
        segments: Sequence[Segment],
        *,
        layers: tuple[int, int] | None = None,
        hidden_in: Float[Tensor, "node hidden"] | None = None,
        capture: Sequence[int] = (),
    ) -> PassOutput:
        start, stop = (0, self.config.num_layers) if layers is None else layers
        shapes: list[tuple[int, int, int, bool, int]] = []
        tokens: list[int] = []
        parents: list[int] = []
        logit_rows = 0
        for segment in segments:
            count = len(segment.tokens)
            if segment.parents is not None:
                if len(segment.parents) != count:
                    raise RowsError(
                        f"a segment has {count} tokens and {len(segment.parents)} parents; expected as many"
                    )
                parents.extend(segment.parents)
            shapes.append((segment.sequence, count, segment.first_node, segment.parents is None, segment.logits_from))
            tokens.extend(segment.tokens)
            logit_rows += min(max(count - segment.logits_from, 0), count)
        if hidden_in is not None:
            hidden_in = hidden_in.detach().to(device="cpu", dtype=torch.float32).contiguous()
            if hidden_in.ndim != 2:
                raise RowsError(f"hidden_in has {hidden_in.ndim} dimensions; expected [node, hidden]")
        logits = torch.empty((logit_rows, self.config.vocab_size), dtype=torch.float32)
        maxima = torch.empty(
            (logit_rows, -(-self.config.vocab_size // self._native.MAXIMUM_BLOCK)), dtype=torch.float32
        )
        boundaries = list(dict.fromkeys(capture))
        states = [torch.empty((len(tokens), self.config.hidden_size), dtype=torch.float32) for _ in boundaries]
        entered = time.perf_counter()
        try:
            self._decoder.forward(shapes, tokens, parents, start, stop, hidden_in, boundaries, logits, maxima, states)
        except TypeError as error:
            raise RowsError(
                "tokens, parents, sequences, nodes, layers and boundaries are 64-bit integers; got something else"
            ) from error
        self.native_seconds += time.perf_counter() - entered
        return PassOutput(logits, dict(zip(boundaries, states, strict=True)), maxima)


def _whole(name: str, value: int) -> int:
    """`value` where it is a 64-bit integer."""
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise RowsError(f"{name} is {value!r}; expected a 64-bit integer")
    return value


def _default_cache_tokens(config: DecoderConfig) -> int:
    wanted = 8 * config.context_length
    per_token = 8 * config.num_layers * config.num_kv_heads * config.head_dim
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(wanted, memory // 2 // max(per_token, 1)))


def _native_spec(native: ModuleType, config: DecoderConfig) -> Any:
    spec = native.DecoderSpec()
    spec.vocab = config.vocab_size
    spec.hidden = config.hidden_size
    spec.intermediate = config.intermediate_size
    spec.heads = config.num_heads
    spec.kv_heads = config.num_kv_heads
    spec.head_dim = config.head_dim
    spec.norm_eps = config.norm_eps
    spec.query_scale = config.query_scale
    spec.embedding_scale = config.embedding_scale
    spec.gelu_tanh = config.activation == "gelu_tanh"
    spec.qk_norm = config.qk_norm
    spec.sandwich_norms = config.sandwich_norms
    ropes = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None))
    for rope in ropes:
        spec.add_rope(list(rope.inv_freq), rope.attention_factor)
    for layer in config.layers:
        if layer.sliding_window is not None and layer.sliding_window < 1:
            raise UnsupportedModelError(f"sliding_window is {layer.sliding_window}; expected 1 or more, or None")
        spec.add_layer(-1 if layer.rope is None else ropes.index(layer.rope), layer.sliding_window or 0)
    return spec
