"""One request on its way: its tokens, its end, its counts. Owns what is committed; knows no executor and no drafter."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pilotfish.engine.ending import Ending
from pilotfish.metrics.counters import RequestTiming, SpeculationCounters
from pilotfish.sampling.logprobs import TokenLogprobs
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.rows import Rows
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import ROOT, Draft, FinishReason, Verdict

NOWHERE = -1
"""The sequence of a request without a place in the cache."""

PROMPT_ROWS = 256
"""Committed tokens read in one pass, unless a scheduler says otherwise."""


@dataclass(slots=True, eq=False)
class Request:
    """A prompt being continued.

    Attributes:
        key: unique within an engine.
        tokens: prompt and delivered output; the last one is pending: committed, but not in the target's cache.
        prompt_length: how many of them are prompt.
        sampler: the request's options, seed and noise.
        ending: its end conditions and its text.
        draft_len: tokens to draft per round; 0 is plain decoding.
        sequence: its number in the target's cache, `NOWHERE` while it waits.
        from_draft: for each output token whether it was drafted.
        pieces: for each output token the text that could be shown once it was delivered.
        logprobs: of each output token, if asked for.
        prompt_logprobs: of each prompt token but the first, if asked for.
        deadline: the time, by `time.monotonic`, when it ends whatever it has.
        error: what made it fail; such a request has no finish reason.
        read_limit: the most committed tokens it reads in the coming round.
        row_limit, draft_limit: the most draft nodes, and the most per path, that the cache has room for in the coming
            round; `None` for as many as it likes.
    """

    key: int
    tokens: list[int]
    prompt_length: int
    sampler: Sampler
    ending: Ending
    draft_len: int
    sequence: int
    timing: RequestTiming
    counters: SpeculationCounters = field(default_factory=SpeculationCounters)
    from_draft: list[bool] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    deadline: float | None = None
    error: Exception | None = None
    read_limit: int = PROMPT_ROWS
    row_limit: int | None = None
    draft_limit: int | None = None

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.ending.reason

    @property
    def is_over(self) -> bool:
        """Ended or failed."""
        return self.ending.reason is not None or self.error is not None

    @property
    def draft_budget(self) -> int:
        """Most tokens worth drafting now: with the target's own token they must fit what may still be delivered."""
        wanted = min(self.draft_len, self.ending.budget - 1)
        return wanted if self.draft_limit is None else min(wanted, self.draft_limit)

    def abort(self, reason: FinishReason) -> None:
        """Ends the request from outside, with what it has."""
        assert not self.is_over, "a request ends once"
        self.ending.abort(reason)

    @property
    def scores_prompt(self) -> bool:
        """Whether the logits of prompt rows are wanted."""
        return self.sampler.params.prompt_logprobs is not None and not self.output

    def prefixes(self, draft: Draft) -> list[Prefix]:
        """The prefix of each row of a round: the pending token's, then each draft node's with its own path."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            above = () if parent == ROOT else paths[parent]
            paths.append((*above, token))
        return [Prefix(self.tokens, self.prompt_length, path) for path in [(), *paths]]

    def score(self, draft: Draft, verdict: Verdict, logits: Rows) -> list[TokenLogprobs]:
        """Log probabilities of a verdict's tokens, if asked for, each under the row that chose it.

        Args:
            logits: of the pending token's row, then of the draft's nodes.
        """
        params = self.sampler.params
        if params.logprobs is None:
            return []
        rows = [0, *(node + 1 for node in verdict.path)]
        prefixes = self.prefixes(draft)
        tokens = verdict.tokens(draft)
        if params.logprobs_mode == "raw_logprobs":
            return self.sampler.raw_logprobs(torch.from_numpy(logits[rows]), tokens, params.logprobs)
        own = [prefixes[row] for row in rows]
        return self.sampler.processed_logprobs(torch.from_numpy(logits[rows]), own, tokens, params.logprobs)

    def score_prompt(self, position: int, logits: Rows) -> None:
        """Notes the log probabilities of prompt tokens, each under the row before it.

        Args:
            position: of the first row; a prompt read again is noted once.
        """
        count = self.sampler.params.prompt_logprobs
        assert count is not None, "only if asked for"
        known = len(self.prompt_logprobs)
        tokens = self.tokens[known + 1 : min(self.prompt_length, position + 1 + logits.shape[0])]
        if tokens:
            first = known - position
            own = torch.from_numpy(logits[first : first + len(tokens)])
            self.prompt_logprobs.extend(self.sampler.raw_logprobs(own, tokens, count))

    def deliver(
        self, tokens: Sequence[int], accepted: int, drafted: int, now: float, logprobs: Sequence[TokenLogprobs] = ()
    ) -> int:
        """Commits a round's tokens up to the first end, and counts them.

        Args:
            tokens: the accepted drafted tokens, then the target's own.
            accepted: how many of them were drafted.
            drafted: how many tokens the draft had.
            now: the clock.
            logprobs: of all tokens, or none.

        Returns:
            how many tokens were delivered, at least one.
        """
        delivered = 0
        for token in tokens:
            delivered += 1
            ended = self.ending.push(token) is not None
            self.pieces.append(self.ending.release())
            if ended:
                break
        self.tokens.extend(tokens[:delivered])
        self.logprobs.extend(logprobs[:delivered])
        kept = min(accepted, delivered)
        self.from_draft.extend(place < kept for place in range(delivered))
        self.counters.record(drafted=drafted, accepted=kept, delivered=delivered)
        self.timing.record(now, delivered)
        return delivered
