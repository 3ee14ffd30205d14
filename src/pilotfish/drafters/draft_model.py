"""A smaller language model with the same tokenizer drafts.

Owns the draft model's sequences: how far each has read the committed text, and which of its rows ran ahead of it.
After Leviathan et al. (https://arxiv.org/abs/2211.17192) and Chen et al. (https://arxiv.org/abs/2302.01318).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pilotfish.drafters.base import Drafter, DraftJob, Observation, highest_prob
from pilotfish.models.base import Executor, Segment
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
    law, whichever token was drawn. Where the text outgrows the draft model's
    context it drafts nothing. While it is not asked it does nothing; the text is read when it is asked again.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._sequences: dict[int, int] = {}
        self._ahead: dict[int, _Ahead] = {}

    def begin(self, request: int, capacity: int) -> None:
        self._sequences[request] = self._executor.open(min(capacity, self._executor.config.context_length))

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        runs = {job.request: run for job in jobs if (run := self._start(job)) is not None}
        active = list(runs.values())
        self._read_backlog(active)
        while active:
            self._step(active)
            active = [run for run in active if not run.done]
        return [self._finish(runs[job.request]) if job.request in runs else EMPTY_DRAFT for job in jobs]

    def _start(self, job: DraftJob) -> _Run | None:
        sequence = self._sequences[job.request]
        room = self._executor.config.context_length - len(job.tokens) + 1  # the last drafted token is never read
        if room < 1:
            return None
        read = self._executor.length(sequence)
        return _Run(job, sequence, min(job.draft_len, room), list(job.tokens[read:]))

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
        self._executor.keep(self._sequences[observation.request], range(ahead.backlog + agreed))

    def end(self, request: int) -> None:
        self._ahead.pop(request, None)
        self._executor.close(self._sequences.pop(request))
