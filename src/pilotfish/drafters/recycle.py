"""Token recycling: what the target thought likely after a token once, it may think again.

Owns a table of the target's latest favourites after each token, learnt from every row it verified, the rejected ones
included. After Luo et al. (https://arxiv.org/abs/2408.08696). Needs no model; warms up within a request.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

from pilotfish.drafters.base import Drafter, DraftJob, Observation, Successors
from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft

DEFAULT_SUCCESSORS = 8
TABLE_TOKENS = 65_536
"""Contexts a table remembers at most, the latest; about 300 bytes each."""

Favourites = tuple[tuple[int, ...], tuple[float, ...]]


class _Table:
    """The latest favourites by token, and by the last two tokens, which say more where they are known."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._after: OrderedDict[int | tuple[int, int], Favourites] = OrderedDict()

    def learn(self, row: Successors) -> None:
        keys: list[int | tuple[int, int]] = [row.token]
        if row.previous is not None:
            keys.append((row.previous, row.token))
        for key in keys:
            self._after[key] = (row.ids, row.shares)
            self._after.move_to_end(key)
        while len(self._after) > self._size:
            self._after.popitem(last=False)

    def favourites(self, previous: int | None, token: int) -> Favourites:
        after = None if previous is None else self._after.get((previous, token))
        return after or self._after.get(token, ((), ()))


class RecycleDrafter(Drafter):
    """Drafts the favourites of favourites: a chain of the first ones, or a tree, the likeliest path first.

    The table is a function of what the target computed in rounds that are over. A draft from it is a point mass given
    the past, so every rule takes it and stays exact: what a round drew is independent of the next round's numbers.

    Confidence is the favourite's softmax share among those remembered.

    Args:
        nodes_per_depth: 1 drafts a chain; more a tree of so many nodes per drafted position.
        successors: favourites remembered per token.
        shared: one table for all requests, which warms up once, instead of one for each. Off by default: with it, what
            one user was answered shows in how fast another is.

    Raises:
        SpeculativeConfigError: `successors` is not positive.
    """

    sequential = False

    def __init__(self, nodes_per_depth: int = 1, successors: int = DEFAULT_SUCCESSORS, *, shared: bool = False) -> None:
        if successors < 1:
            raise SpeculativeConfigError(f"{successors} successors per token: expected at least 1")
        self.nodes_per_depth = nodes_per_depth
        self.top_successors = successors
        self._shared = _Table(TABLE_TOKENS) if shared else None
        self._tables: dict[int, _Table] = {}

    def begin(self, request: int, capacity: int) -> None:
        self._tables[request] = _Table(TABLE_TOKENS) if self._shared is None else self._shared

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._propose(self._tables[job.request], job) for job in jobs]

    def _propose(self, table: _Table, job: DraftJob) -> Draft:
        budget = job.node_budget(self.nodes_per_depth)
        width = self.top_successors if self.nodes_per_depth > 1 else 1
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        # (-estimate, order of arrival, token, share, parent, token before, depth): the likeliest path first.
        arrivals = count()
        waiting: list[tuple[float, int, int, float, int, int, int]] = []

        def expand(previous: int | None, token: int, estimate: float, node: int, depth: int) -> None:
            if depth > job.draft_len:
                return
            for favourite, share in list(zip(*table.favourites(previous, token), strict=True))[:width]:
                heapq.heappush(waiting, (-estimate * share, next(arrivals), favourite, share, node, token, depth))

        expand(job.tokens[-2] if len(job.tokens) > 1 else None, job.tokens[-1], 1.0, ROOT, 1)
        while waiting and len(tokens) < budget:
            negative, _, token, share, parent, before, depth = heapq.heappop(waiting)
            tokens.append(token)
            parents.append(parent)
            confidence.append(share)
            expand(before, token, -negative, len(tokens) - 1, depth + 1)
        return Draft(tuple(tokens), tuple(parents), None, tuple(confidence)) if tokens else EMPTY_DRAFT

    def observe(self, observation: Observation) -> None:
        table = self._tables[observation.request]
        for row in observation.successors:
            table.learn(row)

    def end(self, request: int) -> None:
        del self._tables[request]
