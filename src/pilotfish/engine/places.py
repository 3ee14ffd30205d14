"""Where requests lie: their sequences in the target's cache and their states with the drafter.

Owns opening and closing. Who runs, and when, is the scheduler's. Knows no rounds.
"""

from contextlib import ExitStack

from pilotfish.drafters.base import Drafter
from pilotfish.engine.request import NOWHERE, Request
from pilotfish.errors import CacheFullError
from pilotfish.models.base import Executor


class Places:
    """The caches of one target and one drafter, as far as requests are in them."""

    def __init__(self, target: Executor, drafter: Drafter | None) -> None:
        self._target = target
        self._drafter = drafter

    def take(self, request: Request) -> bool:
        """Gives a request a place; false where there is no room now."""
        capacity = len(request.tokens) + request.ending.budget
        # A chain's rows fit the tokens it may become; the other branches of a tree need room of their own.
        branches = request.draft_len * (self._drafter.nodes_per_depth - 1) if self._drafter is not None else 0
        try:
            sequence = self._target.open(capacity + branches)
        except CacheFullError:
            return False
        if self._drafter is not None:
            try:
                self._drafter.begin(request.key, capacity)
            except BaseException as error:
                self._target.close(sequence)
                if isinstance(error, CacheFullError):
                    return False
                raise
        request.sequence = sequence
        return True

    def give_back(self, request: Request) -> None:
        """Frees a request's place, if it has one."""
        if request.sequence == NOWHERE:
            return
        sequence, request.sequence = request.sequence, NOWHERE
        with ExitStack() as ends:  # whatever goes wrong with one, the other is given back
            ends.callback(self._target.close, sequence)
            if self._drafter is not None:
                ends.callback(self._drafter.end, request.key)

    def unread(self, request: Request) -> int:
        """Committed tokens that the target has not read, the pending one included."""
        return len(request.tokens) - self._target.length(request.sequence)
