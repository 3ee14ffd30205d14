"""Prompt lookup: what followed the last tokens the last time they occurred, follows again.

Owns an incremental index of the request's n-grams. Needs no model and no training; pays where the output copies from
the prompt or repeats itself. After Saxena, "Prompt Lookup Decoding" (2023); Transformers and vLLM call it n-gram.
"""

from collections.abc import Sequence

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import EMPTY_DRAFT, Draft


class _Index:
    """For each length n: the latest place that followed each n-gram. Covers n-grams with a known successor."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._followers: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(longest, shortest - 1, -1)}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in tokens that were committed since; place i is indexed once tokens[i] is known."""
        for place in range(self._indexed, len(tokens)):
            for n, followers in self._followers.items():
                if place >= n:
                    followers[tuple(tokens[place - n : place])] = place
        self._indexed = len(tokens)

    def follower(self, tokens: Sequence[int]) -> int | None:
        """Where the longest indexed suffix of `tokens` went on, the latest time it did."""
        for n, followers in self._followers.items():
            if len(tokens) > n:
                place = followers.get(tuple(tokens[len(tokens) - n :]))
                if place is not None:
                    return place
        return None


class NgramDrafter(Drafter):
    """Drafts a chain by copying from the longest matching n-gram, the latest occurrence first.

    A copy that reaches the end of the text goes on with what it has copied, so a text that repeats with any period is
    followed at full length.

    Args:
        prompt_lookup_min: shortest n-gram that counts as a match.
        prompt_lookup_max: longest n-gram looked for.

    Raises:
        SpeculativeConfigError: the lengths are not 1 <= min <= max.
    """

    sequential = False

    def __init__(self, prompt_lookup_min: int = 2, prompt_lookup_max: int = 4) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise SpeculativeConfigError(
                f"prompt_lookup_min={prompt_lookup_min} and prompt_lookup_max={prompt_lookup_max}: "
                "expected 1 <= prompt_lookup_min <= prompt_lookup_max"
            )
        self._shortest = prompt_lookup_min
        self._longest = prompt_lookup_max
        self._indexes: dict[int, _Index] = {}

    def begin(self, request: int, capacity: int) -> None:
        self._indexes[request] = _Index(self._shortest, self._longest)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._propose(job) for job in jobs]

    def _propose(self, job: DraftJob) -> Draft:
        index = self._indexes[job.request]
        index.extend(job.tokens)
        source = index.follower(job.tokens)
        if source is None:
            return EMPTY_DRAFT
        known = len(job.tokens)
        drafted: list[int] = []
        for place in range(source, source + job.draft_len):
            drafted.append(job.tokens[place] if place < known else drafted[place - known])
        return Draft.chain(drafted)

    def observe(self, observation: Observation) -> None:
        """Nothing to do: the index catches up with the committed tokens when it is next asked."""

    def end(self, request: int) -> None:
        del self._indexes[request]
