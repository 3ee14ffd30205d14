"""Many mixed requests, too few pages, random cancellation and preemption: each answer is the one it has alone."""

import random

import pytest

from pilotfish.engine.draft_policy import DraftPolicy
from pilotfish.engine.pass_time import PassTime
from pilotfish.errors import InvalidInputError
from pilotfish.metrics.counters import SpeculationCounters
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import FinishReason
from tests.engine.served import (
    CONTEXT,
    engine_over,
    everything,
    make_drafter,
    mixed_params,
    mixed_prompt,
    paged_target,
)
from tests.engine.text_engine import VOCAB
from tests.engine.tiny import run

REQUESTS = 90
AT_A_TIME = 32
MALFORMED = [
    ([], {}),
    ([VOCAB], {}),
    ([5] * CONTEXT, {}),
    ([5], {"stop_token_ids": [VOCAB]}),
    ([5], {"structured_outputs": {"regex": "("}}),
    ([5], {"n": 2}),
]


def policy(target):
    drafters = [make_drafter(kind, target) for kind in ("suffix", "draft_model", "recycle")]
    return DraftPolicy(drafters, PassTime({1: 1e-3, 8: 1.1e-3, 64: 2e-3}))


@pytest.mark.parametrize("seed", [1, 2])
def test_load_changes_nothing_but_time(seed):
    rng = random.Random(seed)
    jobs = [(mixed_prompt(rng), mixed_params(rng)) for _ in range(REQUESTS)]
    positions = sorted(len(prompt) + params.max_tokens for prompt, params in jobs)
    pages = max(sum(positions) * AT_A_TIME // REQUESTS // 4 // 32, CONTEXT // 32 + 1)
    target = paged_target(pages)
    engine = engine_over(target, policy(target))
    scheduler = engine.scheduler
    changes, told = [], {}
    open_requests, finished, cancelled, refused = {}, [], 0, 0
    waiting = list(enumerate(jobs))
    most = 0
    while waiting or open_requests:
        while waiting and len(open_requests) < AT_A_TIME:
            place, (prompt, params) = waiting.pop(0)
            if place % 10 == 0:
                bad, options = MALFORMED[refused % len(MALFORMED)]
                with pytest.raises(InvalidInputError):
                    engine.prepare(bad, SamplingParams(**options))
                refused += 1
                continue
            request = engine.request(prompt, engine.prepare(prompt, params))
            scheduler.add(request, changes.append)
            open_requests[request.key] = (request, place)
        dice = rng.random()
        if dice < 0.06 and cancelled < REQUESTS // 3:
            scheduler.cancel(rng.choice(list(open_requests.values()))[0])
        elif dice < 0.12 and scheduler.running:
            scheduler.preempt(rng.choice(scheduler._running))
        scheduler.step()
        most = max(most, scheduler.running)
        assert 0 <= target.free_pages <= target.prefix_cache.available_pages <= target.total_pages
        for request in changes:
            told[request.key] = told.get(request.key, 0) + 1
            if request.is_over:
                assert request.error is None
                _, place = open_requests.pop(request.key)
                if request.finish_reason is FinishReason.CANCELLED:
                    cancelled += 1
                else:
                    finished.append((request, place))
        changes.clear()
    assert scheduler.is_idle
    assert refused >= 9
    assert cancelled > 5
    assert most > 4
    assert scheduler.preemptions > 5
    assert target.prefix_cache.hit_tokens > 0
    assert target.prefix_cache.available_pages == target.total_pages
    target.prefix_cache.clear()
    assert target.free_pages == target.total_pages, "no page is lost"

    plain = engine_over(paged_target(CONTEXT // 32 + 1))
    counted = SpeculationCounters()
    for request, place in finished:
        plain.target.prefix_cache.clear()
        (alone,) = run(plain, [jobs[place][0]], jobs[place][1])
        assert everything(request) == everything(alone)
        counted.add(request.counters)
    assert counted.accepted_tokens > 0
    assert counted.delivered_tokens == sum(len(request.output) for request, _ in finished)
    assert scheduler.totals.delivered_tokens >= counted.delivered_tokens
