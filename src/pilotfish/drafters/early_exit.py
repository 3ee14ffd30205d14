"""Early exit: the target's own first layers propose, with its final norm and LM head or with a trained adapter.

Owns the draft's way through the target's first layers. The rows it runs are nodes of the request's own sequence in the
target's cache, and what they computed goes to the pass that verifies them (`Draft.partial`), which runs the remaining
layers only. After LayerSkip (https://arxiv.org/abs/2404.16710) and Kangaroo (https://arxiv.org/abs/2404.18911).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.drafters.base import Drafter, DraftJob, Observation, highest_prob
from pilotfish.drafters.vocabulary import in_target_ids
from pilotfish.errors import SpeculativeConfigError
from pilotfish.models.base import Executor, Segment
from pilotfish.models.exit_adapter import ExitAdapter
from pilotfish.sampling.prefix import Prefix
from pilotfish.terms import Draft, PartialPass


@dataclass(slots=True)
class _Run:
    """One job's draft as it grows; `waiting` are the tokens that have still to go through the first layers."""

    job: DraftJob
    sequence: int
    waiting: list[int]
    drafted: list[int] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    nodes: int = 0


class EarlyExitDrafter(Drafter):
    """Drafts a chain, one pass of the first layers per token, all requests in one pass.

    Nothing is kept between rounds: the committed tokens are in the target's cache anyhow, and nodes that were run ahead
    leave it when the round commits. Under `match` it draws with the target's noise, under ratio rules from its own law.
    The confidence is the highest probability of its law, whichever token was drawn.

    Args:
        target: the executor that verifies.
        exit_layer: how many of its layers draft.
        adapter: makes logits of their output, on the CPU; the target's final norm and LM head do without one.

    Raises:
        SpeculativeConfigError: the target does not have more layers than that.
    """

    def __init__(self, target: Executor, exit_layer: int, adapter: ExitAdapter | None = None) -> None:
        layers = target.config.num_layers
        if not 1 <= exit_layer < layers:
            raise SpeculativeConfigError(
                f"exit_layer={exit_layer}: expected 1 to {layers - 1}, as the target has {layers}"
            )
        self._target = target
        self._exit_layer = exit_layer
        self._adapter = adapter

    def begin(self, request: int, capacity: int) -> None:
        """Nothing to prepare."""

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        runs = [self._start(job) for job in jobs]
        while active := [run for run in runs if len(run.drafted) < run.job.draft_len]:
            self._step(active)
        return [self._finish(run) for run in runs]

    def _start(self, job: DraftJob) -> _Run:
        assert job.sequence is not None, "the engine says where a request lies in the target's cache"
        return _Run(job, job.sequence, list(job.tokens[self._target.length(job.sequence) :]))

    def _step(self, runs: Sequence[_Run]) -> None:
        """One pass of the first layers, one more drafted token for each run."""
        boundary = self._exit_layer
        without = 0 if self._adapter is None else 1
        segments = [
            Segment(run.sequence, run.waiting, first_node=run.nodes, logits_from=len(run.waiting) - 1 + without)
            for run in runs
        ]
        output = self._target.forward(segments, layers=(0, boundary), capture=(boundary,))
        logits = output.logits if self._adapter is None else self._adapted(runs, output.hidden[boundary])
        start = 0
        for place, run in enumerate(runs):
            stop = start + len(run.waiting)
            run.hidden.append(output.hidden[boundary][start:stop])
            start = stop
            run.nodes += len(run.waiting)
            token = self._draw(run, logits[place : place + 1])
            run.drafted.append(token)
            run.waiting = [token]

    @torch.inference_mode()
    def _adapted(self, runs: Sequence[_Run], hidden: Float[Tensor, "node hidden"]) -> Float[Tensor, "row vocab"]:
        """The adapter's logits at each run's last row."""
        assert self._adapter is not None, "asked before"
        last = torch.tensor([len(run.waiting) for run in runs]).cumsum(0) - 1
        logits = self._adapter(hidden[last].to("cpu", torch.float32))
        return in_target_ids(logits, self._adapter.target_ids, self._target.config.vocab_size)

    @staticmethod
    def _draw(run: _Run, logits: Tensor) -> int:
        job = run.job
        prefix = Prefix(job.tokens, job.prompt_length, tuple(run.drafted))
        run.confidence.append(highest_prob(logits[0, : job.sampler.vocab_size]))
        if job.coupled:
            return job.sampler.choices(logits, [prefix])[0]
        law = job.sampler.laws(logits, [prefix])
        run.laws.append(law)
        return job.sampler.draw(law[0], prefix.position, start=len(job.tokens))

    def _finish(self, run: _Run) -> Draft:
        partial = PartialPass(self._exit_layer, torch.cat(run.hidden))
        return Draft.chain(run.drafted, torch.cat(run.laws) if run.laws else None, run.confidence, partial)

    def observe(self, observation: Observation) -> None:
        """Nothing to do: the target's cache has dropped what was not accepted."""

    def end(self, request: int) -> None:
        """Nothing to drop."""
