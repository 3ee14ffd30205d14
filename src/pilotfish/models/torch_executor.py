"""The reference executor: the plain PyTorch decoder behind the executor's contract, on any device.

Owns the open sequences and the order of a pass: check everything, then place nodes, run, pick logits. Linear layers
run over the rows of all sequences at once, attention sequence by sequence. Must not know sampling, drafts or text.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.errors import CacheFullError, InvalidInputError, RowsError
from pilotfish.models.base import PagedExecutor, PassOutput, Segment
from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import Attention, load_decoder, masked_attention
from pilotfish.models.prefix_cache import PrefixCache
from pilotfish.models.sequence import SequenceState
from pilotfish.models.torch_cache import RowMasks, TorchCache
from pilotfish.models.weights import Weights

PAGE_SIZE = 32
"""Positions of a page."""


class TorchExecutor(PagedExecutor):
    """Runs a decoder with PyTorch.

    Pages are a count here: each sequence has tensors of its own, and a page that is shared is a copy.

    A row's bits may depend on what else is in the pass, because the libraries underneath choose their order of
    summation by shape; `exact` is therefore false.

    Args:
        config: the decoder.
        weights: its tensors, all read here.
        device: where to run, as PyTorch names it.
        dtype: of weights, activations and cache. Norms, softmax and rotary angles are float32 or wider.
        threads: at work in a pass on the CPU; PyTorch's own number by default. It is PyTorch's number only during a
            pass: outside of it others' stands.
        kv_cache_tokens: positions the cache has room for, all sequences together; as many as a 64-bit number can say
            by default. Memory is taken as it is needed.

    Raises:
        InvalidInputError: `threads` is less than 1.
        CorruptModelError: a tensor is missing, damaged or of the wrong shape; the message names it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        threads: int | None = None,
        kv_cache_tokens: int = 2**62,
    ) -> None:
        if kv_cache_tokens < 1:
            raise InvalidInputError(f"kv_cache_tokens is {kv_cache_tokens}; expected 1 or more")
        if threads is not None and threads < 1:
            raise InvalidInputError(f"threads is {threads}; expected at least 1, or None for PyTorch's own number")
        self.config = config
        self._threads = threads
        self.decoder = load_decoder(config, weights, device=device, dtype=dtype)
        self._device = torch.device(device)
        self._dtype = dtype
        self._caches: dict[int, TorchCache] = {}
        self._numbers = itertools.count()
        self._total_pages = -(-kv_cache_tokens // PAGE_SIZE)
        self._shared: dict[int, _SharedPage] = {}
        self._page_numbers = itertools.count()
        self.prefix_cache = PrefixCache(self)

    @property
    def exact(self) -> bool:
        return False

    sharing_copies = True

    @property
    def page_size(self) -> int:
        return PAGE_SIZE

    @property
    def page_bytes(self) -> int:
        per_position = 2 * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim
        return PAGE_SIZE * per_position * self._dtype.itemsize

    @property
    def total_pages(self) -> int:
        return self._total_pages

    @property
    def free_pages(self) -> int:
        used = sum(self.pages_for(_slots(cache.state)) for cache in self._caches.values())
        return self._total_pages - used - len(self._shared)

    def limit_pages(self, pages: int) -> None:
        used = self._total_pages - self.free_pages
        if pages < max(used, 1):
            raise CacheFullError(f"the cache cannot be limited to {pages} pages; {used} are in use")
        self._total_pages = pages

    @torch.inference_mode()
    def share(self, sequence: int, block: int) -> int:
        cache = self._cache(sequence)
        start, stop = block * PAGE_SIZE, (block + 1) * PAGE_SIZE
        if not 0 <= start < stop <= cache.state.length:
            raise RowsError(
                f"block {block} of sequence {sequence} is not full; it has {cache.state.length} committed positions, "
                f"{PAGE_SIZE} to a block"
            )
        if cache.state.layers_of(stop - 1) < self.config.num_layers:
            raise RowsError(
                f"block {block} of sequence {sequence} went through {cache.state.layers_of(stop - 1)} layers only; "
                f"expected all {self.config.num_layers}"
            )
        self._require_free(1)
        number = next(self._page_numbers)
        self._shared[number] = _SharedPage(*cache.read(start, stop))
        return number

    @torch.inference_mode()
    def adopt(self, sequence: int, pages: Sequence[int]) -> None:
        cache = self._cache(sequence)
        state = cache.state
        if state.length % PAGE_SIZE or state.nodes:
            raise RowsError(
                f"sequence {sequence} of {state.length} committed positions and {len(state.nodes)} nodes cannot go on "
                "with pages; expected full pages and no nodes"
            )
        if state.length and state.layers_of(state.length - 1) < self.config.num_layers:
            raise RowsError(f"sequence {sequence} did not go through all layers; truncate it first")
        shared = [self._page(page) for page in pages]
        if state.length + PAGE_SIZE * len(shared) > state.capacity:
            raise CacheFullError(
                f"{len(shared)} pages do not fit sequence {sequence} of {state.length} positions, which was opened for "
                f"{state.capacity}"
            )
        self._require_free(len(shared))
        cache.reserve(state.length + PAGE_SIZE * len(shared))
        for page in shared:
            cache.append(page.keys, page.values)

    def release(self, page: int) -> None:
        self._page(page)
        del self._shared[page]

    def _page(self, page: int) -> "_SharedPage":
        if page not in self._shared:
            raise RowsError(f"page {page} is not shared; use a number that share() gave and release() has not taken")
        return self._shared[page]

    def _require_free(self, pages: int) -> None:
        free = self.free_pages
        if pages > free:
            raise CacheFullError(f"{pages} more pages of the cache are needed; {free} of {self._total_pages} are free")

    @property
    def threads(self) -> int:
        """At work in a pass on the CPU."""
        return torch.get_num_threads() if self._threads is None else self._threads

    @torch.inference_mode()
    def open(self, capacity: int) -> int:
        if capacity < 1:
            raise RowsError(f"capacity is {capacity}; a sequence needs room for at least 1 position")
        if capacity > self._total_pages * PAGE_SIZE:
            raise CacheFullError(
                f"a sequence of {capacity} positions does not fit: there are {self._total_pages} pages of {PAGE_SIZE} "
                "positions; ask for fewer positions or give the executor a larger cache"
            )
        number = next(self._numbers)
        self._caches[number] = TorchCache(SequenceState(number, capacity), self.config, self._device, self._dtype)
        return number

    def close(self, sequence: int) -> None:
        self._cache(sequence)
        del self._caches[sequence]

    def length(self, sequence: int) -> int:
        return self._cache(sequence).state.length

    @torch.inference_mode()
    def forward(
        self,
        segments: Sequence[Segment],
        *,
        layers: tuple[int, int] | None = None,
        hidden_in: Float[Tensor, "node hidden"] | None = None,
        capture: Sequence[int] = (),
    ) -> PassOutput:
        layers = self._checked_layers(layers, capture)
        self._check_tokens(segments)
        self._check_hidden(hidden_in, layers[0], sum(len(segment.tokens) for segment in segments))
        caches = [self._cache(segment.sequence) for segment in segments]
        new_nodes = [cache.state.check_rows(segment, layers) for cache, segment in zip(caches, segments, strict=True)]
        ends = [
            cache.state.length + segment.first_node + len(nodes)
            for cache, segment, nodes in zip(caches, segments, new_nodes, strict=True)
        ]
        self._require_free(
            sum(
                self.pages_for(end) - self.pages_for(_slots(cache.state))
                for cache, end in zip(caches, ends, strict=True)
            )
        )
        for cache, end in zip(caches, ends, strict=True):
            cache.reserve(end)
        # Nothing was changed so far, and nothing is refused from here on.
        spans, start = [], 0
        for cache, segment, nodes in zip(caches, segments, new_nodes, strict=True):
            cache.state.place(segment.first_node, nodes)
            masks = RowMasks(cache.state, segment.first_node, self._device)
            spans.append(Span(cache, segment.first_node, slice(start, start + len(nodes)), masks))
            start += len(nodes)
        positions = torch.cat([span.masks.row_positions for span in spans])
        if hidden_in is None:
            tokens = [token for segment in segments for token in segment.tokens]
            hidden = self.decoder.embed(torch.tensor(tokens, device=self._device))
        else:
            hidden = hidden_in.to(device=self._device, dtype=self._dtype)
        with _torch_threads(self.threads):
            hidden, captured = self.decoder.run(
                hidden, positions, CachedAttention(self.config, spans), layers=layers, capture=capture
            )
            wanted = torch.tensor(_logit_rows(segments), device=self._device, dtype=torch.int64)
            logits = self.decoder.logits(hidden[wanted]).to(torch.float32)
        return PassOutput(logits, {boundary: states.to(torch.float32) for boundary, states in captured.items()})

    @torch.inference_mode()
    def keep(self, sequence: int, path: Sequence[int]) -> None:
        cache = self._cache(sequence)
        cache.state.check_path(path)
        cache.keep(path)

    def truncate(self, sequence: int, length: int) -> None:
        state = self._cache(sequence).state
        state.check_length(length)
        state.truncate(length)

    def _cache(self, sequence: int) -> TorchCache:
        if sequence not in self._caches:
            raise RowsError(f"sequence {sequence} is not open; use a number that open() gave and close() has not taken")
        return self._caches[sequence]

    def _checked_layers(self, layers: tuple[int, int] | None, capture: Sequence[int]) -> tuple[int, int]:
        start, stop = layers if layers is not None else (0, self.config.num_layers)
        if not 0 <= start < stop <= self.config.num_layers:
            raise RowsError(f"layers ({start}, {stop}) is not a range within the model's {self.config.num_layers}")
        for boundary in capture:
            if not start <= boundary <= stop:
                raise RowsError(f"cannot capture boundary {boundary}; this pass goes from {start} to {stop}")
        return start, stop

    def _check_tokens(self, segments: Sequence[Segment]) -> None:
        if not segments:
            raise RowsError("a pass needs at least one segment")
        seen: set[int] = set()
        for segment in segments:
            if segment.sequence in seen:
                raise RowsError(f"sequence {segment.sequence} has two segments in a pass; put its rows into one")
            seen.add(segment.sequence)
            for token in segment.tokens:
                if not 0 <= token < self.config.vocab_size:
                    raise RowsError(
                        f"sequence {segment.sequence}: token id {token} is outside the vocabulary of "
                        f"{self.config.vocab_size}; encode the text with this model's tokenizer"
                    )

    def _check_hidden(self, hidden_in: Tensor | None, start: int, rows: int) -> None:
        expected = (rows, self.config.hidden_size)
        if start == 0 and hidden_in is not None:
            raise RowsError("hidden_in was given, but the pass starts at layer 0 from the tokens; leave it out")
        if start > 0 and hidden_in is None:
            raise RowsError(f"layers from {start} on need hidden_in of shape {expected}")
        if hidden_in is not None and tuple(hidden_in.shape) != expected:
            raise RowsError(f"hidden_in has shape {tuple(hidden_in.shape)}; expected {expected}, one state per row")


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """PyTorch works with so many threads for a while; the number belongs to the whole process."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class _SharedPage:
    """Keys and values of a page's positions, all layers."""

    keys: Float[Tensor, "layer kv_head slot head_dim"]
    values: Float[Tensor, "layer kv_head slot head_dim"]


def _slots(state: SequenceState) -> int:
    return state.length + len(state.nodes)


def _logit_rows(segments: Sequence[Segment]) -> list[int]:
    rows: list[int] = []
    start = 0
    for segment in segments:
        stop = start + len(segment.tokens)
        rows.extend(range(start + segment.logits_from, stop))
        start = stop
    return rows


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence within the rows of the pass."""

    cache: TorchCache
    first_node: int
    rows: slice
    masks: RowMasks


class CachedAttention(Attention):
    """Stores the rows' keys and values, then lets each row see its sequence's cache through its mask."""

    def __init__(self, config: DecoderConfig, spans: Sequence[Span]) -> None:
        self._config = config
        self._spans = spans

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "row head head_dim"],
        key: Float[Tensor, "row kv_head head_dim"],
        value: Float[Tensor, "row kv_head head_dim"],
    ) -> Float[Tensor, "row head head_dim"]:
        window = self._config.layers[layer].sliding_window
        return torch.cat([self._attend(layer, span, query, key, value, window) for span in self._spans])

    def _attend(self, layer: int, span: Span, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        cache, state = span.cache, span.cache.state
        cache.write(layer, state.length + span.first_node, key[span.rows], value[span.rows])
        used = state.length + len(state.nodes)
        return masked_attention(
            query[span.rows],
            cache.keys[layer, :, :used],
            cache.values[layer, :, :used],
            span.masks.visible(window),
            self._config.query_scale,
        )
