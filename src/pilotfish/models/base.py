"""The executor: what every way of running a decoder offers the rooms above.

Owns the contract of one forward pass over ragged rows of many sequences, and of the key-value cache behind it.
Knows no sampling, no drafts, no text. `torch_executor.py` is the reference, `native_executor.py` the fast one.

A sequence has *committed* tokens, `length` of them, and *nodes*: rows that were run but not yet kept. A node's parent
is an earlier node or -1 (the committed prefix), so nodes form a chain or a tree; node i stands at position
`length + depth(i)` and attends to the committed prefix, its ancestors and itself.

A `PagedExecutor` says what its cache is made of: pages of equally many positions, taken as sequences grow and shared
between sequences whose texts begin alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from pilotfish.models.config import DecoderConfig

if TYPE_CHECKING:
    from pilotfish.models.prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one sequence in a pass.

    Attributes:
        sequence: a number from `Executor.open`.
        tokens: token ids, one per row.
        parents: for each row its parent node, or -1 for the committed prefix; `None` is a chain that continues
            from node `first_node - 1`.
        first_node: the node number of the first row. Nodes from there on are replaced; with a layer range, the same
            nodes can be run again through later layers.
        logits_from: final norm and LM head run on this row and those after it; `len(tokens)` asks for none.
    """

    sequence: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    first_node: int = 0
    logits_from: int = 0


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What a forward pass gives back, rows in the order of the segments.

    Attributes:
        logits: float32, only the rows asked for. Columns cover the padded vocabulary.
        hidden: float32 hidden states of all rows by layer boundary: 0 is the embedding, i the output of layer i - 1.
        maxima: the highest logit of each block of 32 columns, plus infinity where one is not a number. From executors
            that have them for nothing: a search for the highest tokens need not read the rows then. Whoever changes
            logits drops them.
    """

    logits: Float[Tensor, "row vocab"]
    hidden: dict[int, Float[Tensor, "node hidden"]] = field(default_factory=dict)
    maxima: Float[Tensor, "row block"] | None = None


class Executor(ABC):
    """Runs one decoder and owns its key-value cache, its positions and its masks."""

    config: DecoderConfig

    torch_threads: int | None = None
    """PyTorch's threads in a round, for the small operations around a pass; `None` leaves them as they are. Where an
    executor's own threads hold the cores for a moment after each pass, further ones would wait for them."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """True when a row's bits do not depend on what else is in the pass."""

    @abstractmethod
    def open(self, capacity: int) -> int:
        """A new empty sequence with room for `capacity` positions, nodes included.

        Raises:
            CacheFullError: there is no room for it.
        """

    @abstractmethod
    def close(self, sequence: int) -> None:
        """Frees a sequence; its number may be given out again."""

    @abstractmethod
    def length(self, sequence: int) -> int:
        """Committed tokens of a sequence."""

    @abstractmethod
    def forward(
        self,
        segments: Sequence[Segment],
        *,
        layers: tuple[int, int] | None = None,
        hidden_in: Float[Tensor, "node hidden"] | None = None,
        capture: Sequence[int] = (),
    ) -> PassOutput:
        """One pass over all rows of all segments. Commits nothing.

        Args:
            segments: at most one per sequence.
            layers: the contiguous range `[start, stop)` to run; all by default. Final norm and LM head, where asked
                for, apply to the output of the last layer run.
            hidden_in: needed when `start > 0`: the rows' hidden states at boundary `start`.
            capture: layer boundaries within `[start, stop]` whose hidden states to return.

        Raises:
            RowsError: a token id, parent, sequence, layer or shape is out of range; nothing was changed.
            CacheFullError: the rows do not fit the sequence's capacity; nothing was changed.
        """

    @abstractmethod
    def keep(self, sequence: int, path: Sequence[int]) -> None:
        """Commits the nodes on `path` (each the parent of the next, the first a child of the prefix), drops the rest.

        Raises:
            RowsError: the nodes are not such a path.
        """

    @abstractmethod
    def truncate(self, sequence: int, length: int) -> None:
        """Drops all nodes and the committed tokens from `length` on.

        Raises:
            RowsError: `length` is negative or more than is committed.
        """


class PagedExecutor(Executor):
    """An executor whose cache is made of pages.

    `open` takes none of them; `forward` takes what its rows need, and raises `CacheFullError` with nothing changed
    where too few are free; `keep`, `truncate` and `close` give back what is not needed any more.
    """

    sharing_copies: bool = False
    """Whether `share` makes a copy, which takes a page."""

    prefix_cache: "PrefixCache"
    """Full pages of texts that were run, for texts that begin alike."""

    @property
    @abstractmethod
    def page_size(self) -> int:
        """Positions of a page."""

    @property
    @abstractmethod
    def page_bytes(self) -> int: ...

    @property
    @abstractmethod
    def total_pages(self) -> int: ...

    @property
    @abstractmethod
    def free_pages(self) -> int:
        """Pages that nobody uses."""

    @abstractmethod
    def limit_pages(self, pages: int) -> None:
        """The cache has this many pages from now on. Their memory is taken as they are used.

        Raises:
            CacheFullError: more are in use.
        """

    @abstractmethod
    def share(self, sequence: int, block: int) -> int:
        """The page of the block-th `page_size` positions of a sequence; it stays as it is until `release`.

        Raises:
            RowsError: the block is not full of committed tokens that went through all layers.
            CacheFullError: no page is free for a copy.
        """

    @abstractmethod
    def adopt(self, sequence: int, pages: Sequence[int]) -> None:
        """A sequence of full pages goes on with shared ones, whose positions become its own committed tokens.

        The caller vouches that the pages hold what the sequence's text would have: the same tokens after the same
        beginning.

        Raises:
            RowsError: the sequence has nodes or does not end with a full page, or a page is not shared.
            CacheFullError: the pages do not fit the sequence's capacity, or copies of them the cache.
        """

    @abstractmethod
    def release(self, page: int) -> None:
        """Takes back one `share`.

        Raises:
            RowsError: the page is not shared.
        """

    def pages_for(self, positions: int) -> int:
        """Pages that hold so many positions."""
        return -(-positions // self.page_size)
