"""What is audited, as one value: rules, sampler, drafters. Production by default; a known-bad control replaces a part.

Owns the seams through which a control is injected, and the loop that drives the production round. Knows no statistics.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pilotfish.audit.options import Setting
from pilotfish.drafters.base import Drafter
from pilotfish.engine.request import Request
from pilotfish.engine.round import run_round
from pilotfish.metrics.counters import RequestTiming
from pilotfish.models.base import Executor
from pilotfish.sampling.sampler import Sampler
from pilotfish.verify import RULES, Rule


def _as_it_is(drafter: Drafter) -> Drafter:
    return drafter


@dataclass(frozen=True, slots=True)
class Subject:
    """The parts of the decoder that the audit puts together.

    Attributes:
        name: for messages.
        rules: by name, as in `pilotfish.verify.RULES`.
        sampler: makes a request's sampler.
        drafter: wraps the drafters of the law level.
    """

    name: str = "pilotfish"
    rules: Mapping[str, Rule] = field(default_factory=lambda: dict(RULES))
    sampler: Callable[..., Sampler] = Sampler
    drafter: Callable[[Drafter], Drafter] = _as_it_is


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a batch.

    Attributes:
        preempt_after: rounds after which the request loses its caches and reads its text again; `None` for never.
    """

    prompt: Sequence[int]
    setting: Setting
    seed: int
    max_tokens: int
    draft_len: int
    preempt_after: int | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """What became of a job: its output, and where in it each round began."""

    output: tuple[int, ...]
    starts: tuple[int, ...]
    request: Request


def generate(
    subject: Subject,
    target: Executor,
    drafter: Drafter | None,
    rule: str,
    jobs: Sequence[Job],
    vocab_size: int | None = None,
) -> list[Generated]:
    """Runs a batch through the production round until every request has ended.

    Args:
        vocab_size: ids of the tokenizer; the model's own, without padding, by default.
    """
    vocab_size = vocab_size or target.config.vocab_size
    branches = drafter.nodes_per_depth - 1 if drafter is not None else 0
    requests: list[Request] = []
    starts: list[list[int]] = []
    for key, job in enumerate(jobs):
        capacity = len(job.prompt) + job.max_tokens + job.draft_len * branches
        sampler = job.setting.sampler(subject.sampler, job.seed, vocab_size)
        ending = job.setting.ending(sampler.params, job.max_tokens, job.prompt)
        requests.append(
            Request(
                key=key,
                tokens=list(job.prompt),
                prompt_length=len(job.prompt),
                sampler=sampler,
                ending=ending,
                draft_len=job.draft_len if drafter is not None else 0,
                sequence=target.open(capacity),
                timing=RequestTiming(time.monotonic()),
            )
        )
        starts.append([])
        if drafter is not None:
            drafter.begin(key, capacity)
    running = list(requests)
    while running:
        before = {request.key: len(request.tokens) - request.prompt_length for request in running}
        for request in run_round(running, target, drafter, subject.rules[rule]):
            starts[request.key].append(before[request.key])
            job = jobs[request.key]
            if request.finish_reason is not None:
                running.remove(request)
                target.close(request.sequence)
                if drafter is not None:
                    drafter.end(request.key)
            elif len(starts[request.key]) == job.preempt_after:
                _preempt(request, job, target, drafter)
    return [
        Generated(tuple(request.output), tuple(begun), request) for request, begun in zip(requests, starts, strict=True)
    ]


def _preempt(request: Request, job: Job, target: Executor, drafter: Drafter | None) -> None:
    """Takes the request's caches away, as a scheduler does that is short of room; the next rounds read all again."""
    branches = drafter.nodes_per_depth - 1 if drafter is not None else 0
    capacity = len(job.prompt) + job.max_tokens + job.draft_len * branches
    target.close(request.sequence)
    request.sequence = target.open(capacity)
    if drafter is not None:
        drafter.end(request.key)
        drafter.begin(request.key, capacity)
