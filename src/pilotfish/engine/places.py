"""Where requests lie: their sequences in the target's cache, the pages these need, their states with the drafter.

Owns opening and closing, what is shared with earlier texts, and whether the coming round fits. Who runs, and who has to
make room, is the scheduler's. Knows no rounds.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.engine.proposal import LONGEST_FORCED
from pilotfish.engine.request import NOWHERE, Request
from pilotfish.errors import CacheFullError
from pilotfish.models.base import Executor, PagedExecutor
from pilotfish.models.prefix_cache import PrefixCache
from pilotfish.terms import Draft


class Places:
    """The caches of one target and one drafter, as far as requests are in them.

    Attributes:
        drafter: the drafter, or one around it that notes the hidden states it is shown with the pages they belong to:
            a text that is not read again still has them.
    """

    def __init__(self, target: Executor, drafter: Drafter | None) -> None:
        self._target = target
        self._paged = target if isinstance(target, PagedExecutor) else None
        self._boundaries = drafter.hidden_boundaries if drafter is not None else ()
        self._sequences: dict[int, int] = {}
        self._capacities: dict[int, int] = {}
        self._inner = self.drafter = drafter
        if drafter is not None and self._boundaries and self._paged is not None:
            self.drafter = _NotingDrafter(drafter, self._paged.prefix_cache, self._sequences)

    def require_fit(self, positions: int) -> None:
        """Raises `CacheFullError` where a request of so many positions does not fit even alone."""
        if self._paged is not None and positions > self._paged.total_pages * self._paged.page_size:
            raise CacheFullError(
                f"a request of {positions} tokens, prompt and output, does not fit the key-value cache of "
                f"{self._paged.total_pages * self._paged.page_size}: ask for fewer max_tokens, or give more "
                "kv_cache_memory"
            )

    def take(self, request: Request, running: Sequence[Request]) -> bool:
        """Gives a request a place, with as much of its text as is cached; false where there is no room now.

        Args:
            running: the others, whose texts have room already, read or not.
        """
        if self._paged is not None and not self._admits(self._paged, request, running):
            return False
        capacity = len(request.tokens) + request.ending.budget
        slots = capacity + self._branches(request)
        if self._paged is not None:
            slots = min(slots, self._paged.total_pages * self._paged.page_size)
        with ExitStack() as undo:  # whatever fails, nothing is left behind
            sequence = self._target.open(slots)
            undo.callback(self._close, sequence, None)
            if self.drafter is not None:
                self.drafter.begin(request.key, capacity)
                undo.callback(self.drafter.end, request.key)
            self._sequences[request.key] = sequence
            undo.callback(self._sequences.pop, request.key)
            self._attach(request, sequence)
            undo.pop_all()
        self._capacities[request.key] = slots
        request.sequence = sequence
        return True

    def _branches(self, request: Request) -> int:
        """A chain's rows fit the tokens it may become; the other branches of a tree need room of their own."""
        return request.draft_len * (self.drafter.nodes_per_depth - 1) if self.drafter is not None else 0

    def _admits(self, paged: PagedExecutor, request: Request, running: Sequence[Request]) -> bool:
        """Whether the request's text fits beside those of the others, one page beyond for what they will say."""
        promised = sum(
            paged.pages_for(len(other.tokens)) - paged.pages_for(self._target.length(other.sequence))
            for other in running
        )
        hits, idle = paged.prefix_cache.idle_hits(request.tokens, _readable(request), self._boundaries)
        # An executor that copies what it shares has a page taken for each hit.
        own = paged.pages_for(len(request.tokens)) - (0 if paged.sharing_copies else hits - idle)
        return promised + own + bool(running) <= paged.prefix_cache.available_pages

    def _attach(self, request: Request, sequence: int) -> None:
        if self._paged is None:
            return
        prefix = self._paged.prefix_cache
        states = prefix.attach(sequence, request.tokens, _readable(request), self._boundaries)
        if states and self._inner is not None:
            cached = self._target.length(sequence)
            # As if they had been read now.
            self._inner.observe(Observation(request.key, request.tokens, dict(states), cached))

    def catch_up(self, reading: Sequence[Request]) -> list[Request]:
        """Gives requests that read their text what others have read of the same text meanwhile.

        Returns:
            those that had better wait: one before them fills the very page they would fill.
        """
        if self._paged is None:
            return []
        prefix = self._paged.prefix_cache
        waiting: list[Request] = []
        begun: set[bytes] = set()
        for request in reading:
            aligned = prefix.is_at_page_end(request.sequence) and not request.scores_prompt
            if aligned:
                self._attach(request, request.sequence)
            name = prefix.next_page(request.sequence, request.tokens)
            if aligned and name in begun:
                waiting.append(request)
            elif name is not None:
                begun.add(name)
        return waiting

    def give_back(self, request: Request, *, intact: bool = True) -> None:
        """Frees a request's place, if it has one.

        Args:
            intact: its rows are what its tokens say, so that others may share them.
        """
        if request.sequence == NOWHERE:
            return
        sequence, request.sequence = request.sequence, NOWHERE
        self._sequences.pop(request.key, None)
        self._capacities.pop(request.key, None)
        with ExitStack() as ends:  # whatever goes wrong with one, the other is given back
            ends.callback(self._close, sequence, request.tokens if intact else None)
            if self.drafter is not None:
                ends.callback(self.drafter.end, request.key)

    def _close(self, sequence: int, tokens: Sequence[int] | None) -> None:
        if self._paged is not None:
            self._paged.prefix_cache.close(sequence, tokens)
        else:
            self._target.close(sequence)

    def publish(self, request: Request) -> None:
        """Lets later requests share what this one has read."""
        if self._paged is not None and request.sequence != NOWHERE:
            self._paged.prefix_cache.publish(request.sequence, request.tokens)

    def unread(self, request: Request) -> int:
        """Committed tokens that the target has not read, the pending one included."""
        return len(request.tokens) - self._target.length(request.sequence)

    def reserve(self, batch: Sequence[Request]) -> bool:
        """Makes sure that a round of the requests, each with its `read_limit`, finds free pages, and says how many
        nodes each may draft in what is left, the first of the batch first.

        Returns:
            false where the pages do not suffice even without drafts.
        """
        paged = self._paged
        if paged is None:
            return True
        ends, missing = [], 0
        for request in batch:
            read = self._target.length(request.sequence)
            ends.append(min(read + request.read_limit, len(request.tokens)))
            missing += paged.pages_for(ends[-1]) - paged.pages_for(read)
        prefix = paged.prefix_cache
        if not prefix.provide(missing):
            return False
        spare = prefix.available_pages - missing
        for request, end in zip(batch, ends, strict=True):
            rows = self._most_nodes(request) if end == len(request.tokens) else 0
            pages = paged.pages_for(end)
            more = min(paged.pages_for(end + rows) - pages, spare)
            spare -= more
            missing += more
            room = (pages + more) * paged.page_size - end
            request.row_limit = min(rows, room, self._capacities[request.key] - end)
            depth = self.drafter.nodes_per_depth if self.drafter is not None else 1
            request.draft_limit = request.row_limit // depth
        provided = prefix.provide(missing)
        assert provided, "as counted"
        return True

    def _most_nodes(self, request: Request) -> int:
        if self.drafter is None:
            return 0
        most = min(request.draft_len, request.ending.budget - 1) * self.drafter.nodes_per_depth
        forced = request.sampler.constraint is not None and request.draft_len > 0
        return max(most, min(request.ending.budget - 1, LONGEST_FORCED)) if forced else most


def _readable(request: Request) -> int:
    """Positions that need not be run: all but the pending token's, but for those whose logits are still wanted."""
    return len(request.prompt_logprobs) if request.scores_prompt else len(request.tokens) - 1


class _NotingDrafter(Drafter):
    """Another drafter, whose hidden states are noted with the pages of the prefix cache."""

    def __init__(self, inner: Drafter, prefix: PrefixCache, sequences: dict[int, int]) -> None:
        self._inner = inner
        self._prefix = prefix
        self._sequences = sequences
        self.hidden_boundaries = inner.hidden_boundaries
        self.top_successors = inner.top_successors
        self.observes_end = inner.observes_end
        self.nodes_per_depth = inner.nodes_per_depth

    def begin(self, request: int, capacity: int) -> None:
        self._inner.begin(request, capacity)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return self._inner.propose(jobs)

    def observe(self, observation: Observation) -> None:
        rows = len(observation.hidden[self.hidden_boundaries[0]])
        if rows:
            sequence = self._sequences[observation.request]
            self._prefix.note(sequence, observation.cached_length - rows, observation.hidden)
        self._inner.observe(observation)

    def end(self, request: int) -> None:
        self._inner.end(request)
