"""An index of all short strings of a growing text: how often each occurred, and what followed it how often.

Owns a suffix automaton (Blumer et al., 1985) with counts, and SuffixDecoding's scoring on it. This is the reference;
`native/suffix.cpp` is the same for texts of any length, and `suffix_index` gives whichever works here. Knows no
requests and no drafts.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast, runtime_checkable

from pilotfish.errors import ExecutorUnavailableError
from pilotfish.models.native_executor import native_module

LONGEST_MATCH = 64
"""Longest context that is looked up (SuffixDecoding's depth)."""
DEPTH = 128
"""Longest string whose occurrences are counted: a context and its continuation."""
SEPARATOR = -1
"""Between texts that have nothing to do with each other; never proposed."""

Proposal: TypeAlias = tuple[list[int], list[int], list[float], float]
"""Tokens, parents (-1: the context), estimated survival of each given its parent, score."""


@runtime_checkable
class SuffixIndex(Protocol):
    """What both implementations offer."""

    def __len__(self) -> int:
        """Tokens indexed."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens, each in constant amortised time."""

    def propose(
        self, context: Sequence[int], draft_len: int, nodes: int, factor: float, min_prob: float, branching: bool
    ) -> Proposal:
        """The best-scored continuation of `context`.

        For every suffix of the context that occurred in the text: at most `factor` times its length tokens deep, go to
        the token that followed most often (of equals the one that did last), as long as the estimate, the product of
        count(child) / count(node), is at least `min_prob`. The score is the sum of the estimates, the expected number
        of accepted tokens; the highest wins, of equals the longest suffix. The end of the text counts as an occurrence
        that nothing followed, so an estimate from a single sighting is 1/2.

        Args:
            context: the latest tokens; all of them are looked up.
            draft_len: most tokens on a path.
            nodes: most tokens in all.
            factor, min_prob: as above.
            branching: grow a tree, the highest estimate first, instead of a chain.
        """


def suffix_index() -> SuffixIndex:
    """An empty index, native where the extension works."""
    try:
        return cast(SuffixIndex, native_module().SuffixIndex(DEPTH))
    except ExecutorUnavailableError:
        return PythonSuffixIndex(DEPTH)


@dataclass(slots=True)
class _State:
    """All strings that end at the same places, up to the longest of them.

    Attributes:
        length: of the longest.
        link: the state of its longest suffix that ends at more places.
        count: places where they end; right for strings no longer than the depth.
        latest: the last such place.
        next: state by following token.
        favourite: the token that followed most often, of equals the latest.
    """

    length: int
    link: int
    count: int
    latest: int
    next: dict[int, int] = field(default_factory=dict)
    favourite: int | None = None


class PythonSuffixIndex:
    """The reference index.

    Args:
        depth: strings of up to this many tokens are counted; an appended token costs at most so many steps.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._states = [_State(0, -1, 0, -1)]
        self._last = 0
        self._active = 0  # the state of the text's last tokens, `_active_length` of them
        self._active_length = 0

    def __len__(self) -> int:
        return self._states[0].count

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._grow(token)
            self._count(token)

    def _grow(self, token: int) -> None:
        """The automaton of the text with one more token."""
        states = self._states
        whole = _State(states[self._last].length + 1, 0, 0, len(self))
        number = len(states)
        states.append(whole)
        above = self._last
        while above >= 0 and token not in states[above].next:
            states[above].next[token] = number
            above = states[above].link
        if above >= 0:
            target = states[above].next[token]
            if states[above].length + 1 < states[target].length:
                target = self._part(above, token, target)
            whole.link = target
        self._last = number

    def _part(self, above: int, token: int, target: int) -> int:
        """Gives the target's shorter strings, which now end at one more place, a state of their own."""
        states = self._states
        old = states[target]
        part = len(states)
        states.append(_State(states[above].length + 1, old.link, old.count, old.latest, dict(old.next), old.favourite))
        old.link = part
        while above >= 0 and states[above].next.get(token) == target:
            states[above].next[token] = part
            above = states[above].link
        return part

    def _count(self, token: int) -> None:
        """Every suffix of the text before, up to the depth, has been followed by `token` once more."""
        states, place = self._states, len(self)
        self._active_length = min(self._active_length, self._depth - 1)
        self._active = self._at_length(self._active, self._active_length)
        following = states[self._active].next[token]
        counted = -1
        suffix = self._active
        while suffix >= 0:
            state = states[suffix]
            reached = state.next[token]
            if reached != counted:  # suffixes of one length range share a continuation
                states[reached].count += 1
                states[reached].latest = place
                counted = reached
            if token != SEPARATOR and (
                state.favourite is None or states[reached].count >= states[state.next[state.favourite]].count
            ):
                state.favourite = token
            suffix = state.link
        self._active_length += 1
        self._active = self._at_length(following, self._active_length)
        states[0].count += 1

    def _at_length(self, state: int, length: int) -> int:
        """The state of the suffix of that length of a string that `state` stands for."""
        if length == 0:
            return 0
        while self._states[self._states[state].link].length >= length:
            state = self._states[state].link
        return state

    def propose(
        self, context: Sequence[int], draft_len: int, nodes: int, factor: float, min_prob: float, branching: bool
    ) -> Proposal:
        states = self._states
        state = match = 0
        for token in context:
            while state and token not in states[state].next:
                state = states[state].link
                match = states[state].length
            if token in states[state].next:
                state, match = states[state].next[token], match + 1
        best: Proposal = ([], [], [], 0.0)
        grow = self._tree if branching else self._chain
        while state:
            # All strings of a state are followed alike, and the longest may be followed furthest.
            match = min(match, states[state].length)
            found = grow(state, min(draft_len, int(factor * match)), nodes, min_prob)
            if found[3] > best[3]:
                best = found
            state = states[state].link
        return best

    def _chain(self, state: int, draft_len: int, nodes: int, min_prob: float) -> Proposal:
        tokens: list[int] = []
        confidence: list[float] = []
        score, survival = 0.0, 1.0
        while len(tokens) < min(draft_len, nodes) and (token := self._states[state].favourite) is not None:
            reached = self._states[state].next[token]
            share = self._states[reached].count / self._states[state].count
            survival *= share
            if survival < min_prob:
                break
            tokens.append(token)
            confidence.append(share)
            score += survival
            state = reached
        return tokens, list(range(-1, len(tokens) - 1)), confidence, score

    def _tree(self, state: int, draft_len: int, nodes: int, min_prob: float) -> Proposal:
        states = self._states
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        score = 0.0
        # The most likely first; of equals the latest, then the lowest token.
        waiting: list[tuple[float, int, int, float, int, int, int]] = []

        def expand(state: int, survival: float, parent: int, level: int) -> None:
            if level > draft_len:
                return
            for token, reached in states[state].next.items():
                share = states[reached].count / states[state].count
                if token != SEPARATOR and survival * share >= min_prob:
                    entry = (-survival * share, -states[reached].latest, token, share, reached, parent, level)
                    heapq.heappush(waiting, entry)

        expand(state, 1.0, -1, 1)
        while waiting and len(tokens) < nodes:
            negative, _, token, share, reached, parent, level = heapq.heappop(waiting)
            tokens.append(token)
            parents.append(parent)
            confidence.append(share)
            score -= negative
            expand(reached, -negative, len(tokens) - 1, level + 1)
        return tokens, parents, confidence, score
