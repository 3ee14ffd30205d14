"""Requests in changing company: they join and leave at any round, are preempted in the middle, share beginnings.

Owns the drive of the production scheduler and the comparison with each request alone and plain. Part of the level
`identity`; for executors that are exact.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pilotfish.drafters.base import Drafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.request import NOWHERE, Request
from pilotfish.models.base import Executor, PagedExecutor
from pilotfish.sampling.params import SamplingParams

MAX_TOKENS = 20
_JOINS = 0.5
_PREEMPTED = 0.3


@dataclass(slots=True)
class CompanyCount:
    """What happened, and what was wrong."""

    tests: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    reused: int = 0
    """Tokens of texts that were not read, because another text had begun alike."""
    findings: list[str] = field(default_factory=list)


def run_company(
    target: Executor,
    vocab_size: int,
    drafters: Mapping[str, Callable[[], Drafter]],
    prompts: Sequence[Sequence[int]],
    settings: Sequence[SamplingParams],
    count: CompanyCount,
) -> None:
    """Tokens and log probabilities of every prompt under every setting, in company and alone, must be the same.

    Args:
        settings: with seeds; each prompt gets one of its own, derived from it by its place.
    """
    for params in settings:
        assert params.seed is not None, "identity is of seeds"
        own = [
            replace(params, seed=(params.seed + place) % 2**64, max_tokens=MAX_TOKENS, logprobs=1)
            for place in range(len(prompts))
        ]
        plain: list[Request] = []
        for prompt, one in zip(prompts, own, strict=True):
            _forget(target)
            plain += _lived(_engine(target, vocab_size, None), [prompt], [one], None, count)
        for kind, make in {"no drafter": None, **drafters}.items():
            engine = _engine(target, vocab_size, None if make is None else make())
            rng = random.Random(f"{params.seed} {kind}")
            _forget(target)
            reused = target.prefix_cache.hit_tokens if isinstance(target, PagedExecutor) else 0
            made = _lived(engine, prompts, own, rng, count)
            if isinstance(target, PagedExecutor):
                count.reused += target.prefix_cache.hit_tokens - reused
            for place, (alone, other) in enumerate(zip(plain, made, strict=True)):
                count.tests += 1
                count.tokens += len(other.output)
                count.drafted += other.counters.drafted_tokens
                count.accepted += other.counters.accepted_tokens
                length = len(other.output)
                # One request is cancelled on its way: what it had must be the beginning of what it would have had.
                if (other.output, other.logprobs) != (alone.output[:length], alone.logprobs[:length]):
                    label = f"{kind}, temperature {params.temperature}, in changing company"
                    count.findings.append(f"{label}: prompt {place} goes on otherwise")


def _forget(target: Executor) -> None:
    """Leaves no beginning of a text that another could share."""
    if isinstance(target, PagedExecutor):
        target.prefix_cache.clear()


def _engine(target: Executor, vocab_size: int, drafter: Drafter | None) -> Engine:
    return Engine(target, lambda ids: "", vocab_size, drafter=drafter, draft_len=0 if drafter is None else 3)


def _lived(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    rng: random.Random | None,
    count: CompanyCount,
) -> list[Request]:
    """All requests, over; without `rng` nothing disturbs them."""
    requests = [
        engine.request(prompt, engine.prepare(prompt, own)) for prompt, own in zip(prompts, params, strict=True)
    ]
    scheduler = engine.scheduler
    arriving = list(requests)
    leaver = rng.choice(requests) if rng is not None else None
    while arriving or not scheduler.is_idle:
        if arriving and (rng is None or scheduler.is_idle or rng.random() < _JOINS):
            scheduler.add(arriving.pop(0), _nobody_listens)
        scheduler.step()
        running = [request for request in requests if request.sequence != NOWHERE]
        if rng is not None and running and rng.random() < _PREEMPTED:
            scheduler.preempt(rng.choice(running))
        if leaver is not None and len(leaver.output) >= MAX_TOKENS // 2:
            scheduler.cancel(leaver)
            leaver = None
    count.preemptions += scheduler.preemptions
    failed = next((request for request in requests if request.error is not None), None)
    if failed is not None:
        count.findings.append(f"in changing company: a request failed: {failed.error!r}")
    return requests


def _nobody_listens(request: Request) -> None:
    pass
