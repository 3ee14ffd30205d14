"""A smaller language model with the same tokenizer drafts.

Owns the draft model's sequences: how far each has read the committed text, and which of its rows ran ahead of it.
After Leviathan et al. (https://arxiv.org/abs/2211.17192) and Chen et al. (https://arxiv.org/abs/2302.01318).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pilotfish.drafters.base import Drafter, DraftJob, Observation, highest_prob
from pilotfish.models.base import Executor, PagedExecutor, Segment
from pilotfish.sampling.prefix import Prefix
from pilotfish.terms import EMPTY_DRAFT, Draft

CATCH_UP_ROWS = 256
"""Most rows of a pass that reads committed text the draft model has not seen."""


@dataclass(slots=True)
class _Run:
    """One job's draft as it grows; `waiting` are the tokens the draft model has still to read."""

    job: DraftJob
    sequence: int
    draft_len: int
    waiting: list[int]
    nodes: int = 0
    drafted: list[int] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.drafted) == self.draft_len


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Rows in the cache but not committed: `backlog` of committed text, then one per drafted token that was read."""

    committed: int
    backlog: int
    drafted: tuple[int, ...]


class DraftModelDrafter(Drafter):
    """Drafts a chain, one pass of the draft model per token, all requests in one pass.

    Under `match` it draws with the target's noise at the target's positions, so it agrees as often as the two laws
    allow. Under ratio rules it draws from its own law and reports it. Its confidence is the highest probability of its
    law, whichever token was drawn. Where the text outgrows the draft model's context, or its cache has no room, it
    drafts nothing. While it is not asked it does nothing; the text is read when it is asked again, but for a beginning
    that an earlier text had too.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._paged = executor if isinstance(executor, PagedExecutor) else None
        self.executors = (executor,) if isinstance(executor, PagedExecutor) else ()
        self._sequences: dict[int, int] = {}
        self._capacities: dict[int, int] = {}
        self._texts: dict[int, Sequence[int]] = {}
        self._ahead: dict[int, _Ahead] = {}
        self._claimed = 0
        """Pages that the drafts begun in this round will take."""

    def begin(self, request: int, capacity: int) -> None:
        capacity = min(capacity, self._executor.config.context_length)
        if self._paged is not None:
            capacity = min(capacity, self._paged.total_pages * self._paged.page_size)
        self._capacities[request] = capacity
        self._sequences[request] = self._executor.open(capacity)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        self._claimed = 0
        runs = {job.request: run for job in jobs if (run := self._start(job)) is not None}
        active = list(runs.values())
        self._read_backlog(active)
        while active:
            self._step(active)
            active = [run for run in active if not run.done]
        return [self._finish(runs[job.request]) if job.request in runs else EMPTY_DRAFT for job in jobs]

    def _start(self, job: DraftJob) -> _Run | None:
        sequence = self._sequences[job.request]
        self._texts[job.request] = job.tokens
        room = self._capacities[job.request] - len(job.tokens) + 1  # the last drafted token is never read
        if room < 1:
            return None
        draft_len = min(job.draft_len, room)
        if self._paged is not None:
            prefix = self._paged.prefix_cache
            if self._paged.length(sequence) == 0:
                prefix.attach(sequence, job.tokens, len(job.tokens) - 1)
            held = self._paged.pages_for(self._paged.length(sequence))
            missing = self._paged.pages_for(len(job.tokens) + draft_len - 1) - held
            if not prefix.provide(self._claimed + missing):
                # No room: others draft with its pages, and it reads its text when there is.
                prefix.close(sequence, job.tokens)
                self._sequences[job.request] = self._paged.open(self._capacities[job.request])
                return None
            self._claimed += missing
        return _Run(job, sequence, draft_len, list(job.tokens[self._executor.length(sequence) :]))

    def _read_backlog(self, runs: Sequence[_Run]) -> None:
        while behind := [run for run in runs if len(run.waiting) > CATCH_UP_ROWS]:
            self._executor.forward(
                [Segment(run.sequence, run.waiting[:CATCH_UP_ROWS], logits_from=CATCH_UP_ROWS) for run in behind]
            )
            for run in behind:
                self._executor.keep(run.sequence, range(CATCH_UP_ROWS))
                del run.waiting[:CATCH_UP_ROWS]

    def _step(self, runs: Sequence[_Run]) -> None:
        """One pass of the draft model, one more drafted token for each run."""
        segments = [
            Segment(run.sequence, run.waiting, first_node=run.nodes, logits_from=len(run.waiting) - 1) for run in runs
        ]
        logits = self._executor.forward(segments).logits
        for place, run in enumerate(runs):
            row = logits[place : place + 1]
            run.nodes += len(run.waiting)
            job = run.job
            prefix = Prefix(job.tokens, job.prompt_length, tuple(run.drafted))
            run.confidence.append(highest_prob(row[0, : job.sampler.vocab_size]))
            if job.coupled:
                token = job.sampler.choices(row, [prefix])[0]
            else:
                law = job.sampler.laws(row, [prefix])
                token = job.sampler.draw(law[0], prefix.position, start=len(job.tokens))
                run.laws.append(law)
            run.drafted.append(token)
            run.waiting = [token]

    def _finish(self, run: _Run) -> Draft:
        drafted_read = tuple(run.drafted[:-1])
        self._ahead[run.job.request] = _Ahead(len(run.job.tokens), run.nodes - len(drafted_read), drafted_read)
        return Draft.chain(run.drafted, torch.cat(run.laws) if run.laws else None, run.confidence)

    def observe(self, observation: Observation) -> None:
        """Keeps the rows whose tokens were committed, whoever drafted them; the others are dropped."""
        ahead = self._ahead.pop(observation.request, None)
        if ahead is None:
            return
        committed = observation.tokens[ahead.committed :]
        agreed = 0
        # The last committed token is pending: even if it was read ahead (a draft cut shorter than it was drawn), its
        # row is the first of the next draft.
        while agreed < min(len(ahead.drafted), len(committed) - 1) and ahead.drafted[agreed] == committed[agreed]:
            agreed += 1
        sequence = self._sequences[observation.request]
        self._executor.keep(sequence, range(ahead.backlog + agreed))
        if self._paged is not None:
            self._paged.prefix_cache.publish(sequence, observation.tokens)

    def end(self, request: int) -> None:
        self._ahead.pop(request, None)
        del self._capacities[request]
        text = self._texts.pop(request, None)
        sequence = self._sequences.pop(request)
        if self._paged is not None:
            self._paged.prefix_cache.close(sequence, text)
        else:
            self._executor.close(sequence)
