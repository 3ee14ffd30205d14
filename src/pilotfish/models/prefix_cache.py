"""Texts that begin alike share their beginning: full pages of an executor's cache, found by their tokens.

Owns which pages are kept after their sequences, by what name, and which go when room is needed. A page's name is a hash
of its tokens and of the name of the page before, so that it stands for the whole text up to there; keys and values are
a function of that text. Pages are only ever shared full, committed, and run through all layers. Knows no requests.

Where hidden states are noted with the pages, whoever needs the states of a text's beginning can have them too.
"""

import hashlib
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.errors import CacheFullError
from pilotfish.models.base import PagedExecutor

States = Mapping[int, Float[Tensor, "position hidden"]]
"""Hidden states by layer boundary."""


@dataclass(slots=True, eq=False)
class _Block:
    """A page, how many open sequences have its text, and the states of its positions as far as they were noted."""

    page: int
    users: int = 0
    states: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Text:
    """An open sequence: the names of its full pages as far as they are published, and the states noted since.

    Attributes:
        states: by layer boundary, of the `noted` positions from `first` on.
    """

    names: list[bytes] = field(default_factory=list)
    states: dict[int, list[Tensor]] = field(default_factory=dict)
    first: int = 0
    noted: int = 0

    def note(self, start: int, states: States) -> None:
        if start != self.first + self.noted:  # some were never shown: those before are of no use
            self.states, self.first, self.noted = {}, start, 0
        for boundary, rows in states.items():
            self.states.setdefault(boundary, []).append(rows)
        self.noted += len(next(iter(states.values())))

    def take(self, start: int, stop: int) -> dict[int, Tensor]:
        """The states of these positions if all were noted, else none; what was noted before `stop` is dropped."""
        whole = self.first <= start and stop <= self.first + self.noted
        taken = {}
        for boundary, parts in self.states.items():
            rows = torch.cat(parts)
            if whole:
                taken[boundary] = rows[start - self.first : stop - self.first].clone()
            self.states[boundary] = [rows[max(stop - self.first, 0) :].clone()]
        if self.first < stop:
            self.noted = max(self.first + self.noted - stop, 0)
            self.first = stop
        return taken


class PrefixCache:
    """Shared beginnings of one executor's sequences.

    Args:
        executor: whose pages these are; it owns this cache.

    Attributes:
        queried_tokens: tokens of the texts that were looked up.
        hit_tokens: those of them that a sequence took over.
    """

    def __init__(self, executor: PagedExecutor) -> None:
        self._executor: PagedExecutor = weakref.proxy(executor)
        self._blocks: dict[bytes, _Block] = {}
        # Blocks without users, the longest unused first; of one text the last page before the first.
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._texts: dict[int, _Text] = {}
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def available_pages(self) -> int:
        """Pages that are free or can be made so."""
        return self._executor.free_pages + len(self._idle)

    def idle_hits(self, tokens: Sequence[int], limit: int, boundaries: Sequence[int] = ()) -> tuple[int, int]:
        """What `attach` would find for a new sequence: pages, and how many of them count as available now."""
        found = [name for name, _ in self._known(tokens, limit, boundaries, [])]
        return len(found), sum(name in self._idle for name in found)

    def attach(self, sequence: int, tokens: Sequence[int], limit: int, boundaries: Sequence[int] = ()) -> States:
        """Lets a sequence that ends with a full page, or is empty, take over the pages that its text goes on with.

        Args:
            tokens: the text.
            limit: positions the sequence may have afterwards.
            boundaries: only pages whose states at these layer boundaries were noted.

        Returns:
            these states, of the positions that were taken over.
        """
        new = sequence not in self._texts
        text = self._texts.setdefault(sequence, _Text())
        size = self._executor.page_size
        start = len(text.names)
        assert self._executor.length(sequence) == start * size, "published up to its end"
        found = list(self._known(tokens, limit, boundaries, text.names))
        for name, block in found:
            self._use(name, block)
        if found:
            if self._executor.sharing_copies:
                self._forget_idle(len(found))
            try:
                self._executor.adopt(sequence, [block.page for _, block in found])
            except CacheFullError:  # no room for copies: the text is read instead
                self._leave([name for name, _ in found])
                found = []
        text.names.extend(name for name, _ in found)
        if new:
            self.queried_tokens += len(tokens)
        self.hit_tokens += len(found) * size
        return {boundary: torch.cat([block.states[boundary] for _, block in found]) for boundary in boundaries if found}

    def is_at_page_end(self, sequence: int) -> bool:
        """Whether all that a sequence has is published, so that it can take over more."""
        names = self._texts[sequence].names if sequence in self._texts else []
        return self._executor.length(sequence) == len(names) * self._executor.page_size

    def next_page(self, sequence: int, tokens: Sequence[int]) -> bytes | None:
        """The name of the page that a sequence is to fill next; `None` where its text does not fill one."""
        names = self._texts[sequence].names if sequence in self._texts else []
        start, stop = len(names) * self._executor.page_size, (len(names) + 1) * self._executor.page_size
        return _name(names[-1] if names else b"", tokens[start:stop]) if stop <= len(tokens) else None

    def note(self, sequence: int, start: int, states: States) -> None:
        """Takes the hidden states of committed positions from `start` on, to go with their pages."""
        self._texts.setdefault(sequence, _Text()).note(start, states)

    def publish(self, sequence: int, tokens: Sequence[int]) -> None:
        """Lets others share the sequence's full pages.

        Args:
            tokens: its text, at least as far as it is committed.
        """
        text = self._texts.setdefault(sequence, _Text())
        size = self._executor.page_size
        full = self._executor.length(sequence) // size
        while len(text.names) < full:
            place = len(text.names)
            name = _name(text.names[-1] if text.names else b"", tokens[place * size : (place + 1) * size])
            block = self._blocks.get(name)
            if block is None:
                if self._executor.sharing_copies:
                    self._forget_idle(1)
                try:
                    block = self._blocks[name] = _Block(self._executor.share(sequence, place))
                except CacheFullError:
                    return  # of an executor that copies; it is tried again
            self._use(name, block)
            text.names.append(name)
            if text.states:
                block.states.update(text.take(place * size, (place + 1) * size))

    def close(self, sequence: int, tokens: Sequence[int] | None = None) -> None:
        """Closes a sequence of the executor; its full pages stay for others as long as there is room.

        Args:
            tokens: its text; `None` where it is not to be trusted beyond what was published.
        """
        try:
            if tokens is not None:
                self.publish(sequence, tokens)
        finally:
            text = self._texts.pop(sequence, _Text())
            self._leave(text.names)
            self._executor.close(sequence)

    def provide(self, pages: int) -> bool:
        """Makes so many pages free, if need be by forgetting what was not used for the longest time.

        Returns:
            whether they are.
        """
        self._forget_idle(pages)
        if self._executor.sharing_copies:  # the copies of texts in use take room besides these texts themselves
            while self._executor.free_pages < pages and self._blocks:
                self._forget(next(iter(self._blocks)))
        return self._executor.free_pages >= pages

    def clear(self) -> None:
        """Forgets everything that no open sequence has."""
        while self._idle:
            self._forget(next(iter(self._idle)))

    def _forget_idle(self, pages: int) -> None:
        while self._executor.free_pages < pages and self._idle:
            self._forget(next(iter(self._idle)))

    def _forget(self, name: bytes) -> None:
        self._idle.pop(name, None)
        self._executor.release(self._blocks.pop(name).page)

    def _use(self, name: bytes, block: _Block) -> None:
        block.users += 1
        self._idle.pop(name, None)

    def _leave(self, names: Sequence[bytes]) -> None:
        for name in reversed(names):
            block = self._blocks.get(name)
            # A block that was forgotten in use and came anew has other users than its name had.
            if block is not None and block.users > 0:
                block.users -= 1
                if block.users == 0:
                    self._idle[name] = None

    def _known(
        self, tokens: Sequence[int], limit: int, boundaries: Sequence[int], names: Sequence[bytes]
    ) -> Iterator[tuple[bytes, _Block]]:
        """The blocks that a text goes on with after those of `names`."""
        size = self._executor.page_size
        name = names[-1] if names else b""
        for start in range(len(names) * size, min(limit, len(tokens)) - size + 1, size):
            name = _name(name, tokens[start : start + size])
            block = self._blocks.get(name)
            if block is None or any(boundary not in block.states for boundary in boundaries):
                return
            yield name, block


def _name(before: bytes, tokens: Sequence[int]) -> bytes:
    """128 bits: two texts of one name are not to be expected in the life of the universe."""
    return hashlib.blake2b(before + array("q", tokens).tobytes(), digest_size=16).digest()
