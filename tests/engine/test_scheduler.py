"""Who runs when: every wait has a bound, nothing is lost, and no output shows any of it.

Over 400 lines: the bounds, preemption under every kind of drafter and what survives a failed round share one world.
"""

import random

import pytest
import torch

from pilotfish.drafters.eagle import EagleDrafter
from pilotfish.engine import scheduler as scheduling
from pilotfish.engine.scheduler import LEAST_ROWS, SHARED_ROWS, fair_shares
from pilotfish.errors import CacheFullError, PromptError
from pilotfish.models.eagle_files import load_eagle_head
from pilotfish.models.torch_executor import TorchExecutor
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import EMPTY_DRAFT, FinishReason
from tests.engine.served import (
    CONFIG,
    CONTEXT,
    PAGE,
    engine_over,
    everything,
    make_drafter,
    mixed_params,
    mixed_prompt,
    paged_target,
)
from tests.engine.tiny import ScriptedDrafter, run, tiny_engine
from tests.models.memory_weights import random_weights
from tests.models.tiny_eagle import LAYOUTS, head_config, head_tensors, save_head, target_config, target_weights
from tests.models.tiny_eagle import VOCAB as EAGLE_VOCAB

KINDS = ["ngram", "suffix", "recycle", "early_exit", "draft_model", "auto"]
GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=24)


def add(engine, prompt, params=GREEDY, **options):
    """A request in the queue of an engine, and the rounds in which it was told of."""
    request = engine.request(prompt, engine.prepare(prompt, params), **options)
    heard = []
    engine.scheduler.add(request, lambda told: heard.append(len(told.output)))
    return request, heard


def finish(engine, limit=2000):
    """Steps until nothing is left."""
    steps = 0
    while engine.scheduler.step():
        steps += 1
        assert steps < limit
    assert engine.scheduler.is_idle


def unused(target):
    """Whether every page is free, or kept only in case a text comes again."""
    return target.prefix_cache.available_pages == target.total_pages


@pytest.fixture(scope="module")
def reference():
    """Each request alone on an idle engine without a drafter."""
    engine = engine_over(paged_target(64))

    def alone(prompt, params):
        engine.target.prefix_cache.clear()
        (request,) = run(engine, [prompt], params)
        return everything(request)

    return alone


@pytest.mark.parametrize(
    ("wanted", "budget", "shares"),
    [
        ([5], 10, [5]),
        ([50], 10, [10]),
        ([50, 50], 10, [5, 5]),
        ([2, 50, 50], 10, [2, 4, 4]),
        ([50, 3, 50, 1], 21, [8, 3, 9, 1]),
        ([], 10, []),
    ],
)
def test_rows_are_shared_as_equally_as_the_prompts_allow(wanted, budget, shares):
    assert fair_shares(wanted, budget) == shares


def test_every_admitted_request_takes_part_in_every_round():
    engine = engine_over(paged_target(400))
    rng = random.Random(1)
    # Each begins differently: nobody waits for another to read the same.
    requests = [add(engine, [3 + place, *mixed_prompt(rng)], GREEDY)[0] for place in range(40)]
    while not engine.scheduler.is_idle:
        engine.scheduler.step()
        before = {r.key: (engine.scheduler.places.unread(r), len(r.tokens)) for r in engine.scheduler._running}
        engine.scheduler.step()
        for request in engine.scheduler._running:
            if request.key in before:
                unread, tokens = before[request.key]
                now = engine.scheduler.places.unread(request)
                assert len(request.tokens) > tokens or now < unread, "it was delivered a token, or read some"
    assert all(request.finish_reason is FinishReason.LENGTH for request in requests)
    assert engine.scheduler.preemptions == 0


def test_short_prompt_is_read_at_once_while_a_long_one_is():
    engine = engine_over(paged_target(64))
    add(engine, list(range(3, 40)) * 12)
    decoding, _ = add(engine, [9, 8, 7])
    for _ in range(2):
        engine.scheduler.step()
    short, heard = add(engine, [5] * 40)
    rounds = 0
    while not heard:
        engine.scheduler.step()
        rounds += 1
        assert engine.scheduler.running == 3
    # Two prompts share what one decoding request leaves.
    assert rounds <= -(-40 * 2 // max(SHARED_ROWS - 1, LEAST_ROWS)) == 1
    assert len(decoding.output) >= 1 + rounds, "it got a token in every round meanwhile"
    engine.scheduler.drop([short, decoding])
    finish(engine)


def test_requests_that_come_together_read_the_same_text_once(monkeypatch, reference):
    target = paged_target(64)
    engine = engine_over(target, make_drafter("ngram", target))
    rows = []
    forward = target.forward
    monkeypatch.setattr(
        target,
        "forward",
        lambda segments, **options: rows.append(sum(len(s.tokens) for s in segments)) or forward(segments, **options),
    )
    prompt = list(range(3, 63)) * 5
    jobs = [(prompt, SamplingParams(temperature=0.9, seed=seed, max_tokens=4)) for seed in range(3)]
    jobs += [([*prompt[:200], 9, 9], jobs[0][1]), (prompt, SamplingParams(seed=1, max_tokens=4, prompt_logprobs=1))]
    requests = [add(engine, *job)[0] for job in jobs]
    finish(engine)
    verified = sum(request.counters.rounds + request.counters.drafted_tokens for request in requests)
    # The last one wants the logits of its prompt's rows, which nobody can read for it.
    assert sum(rows) - verified == 299 + 2 * (299 - 288) + (201 - 192) + 299
    monkeypatch.undo()
    for job, request in zip(jobs, requests, strict=True):
        assert everything(request) == reference(*job)
    assert unused(target)


def test_requests_are_admitted_in_the_order_they_came():
    engine = engine_over(paged_target(18))
    big = [add(engine, list(range(3, 63)) * 5, GREEDY)[0] for _ in range(2)]
    small, _ = add(engine, [7, 7])
    engine.scheduler.step()
    assert [request.key for request in engine.scheduler._running] == [big[0].key]
    assert engine.scheduler.waiting == 2, "the small one does not overtake, or large ones might never run"
    finish(engine)
    assert small.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_requests_go_on_with_the_same_output(reference, kind):
    target = paged_target(64)
    engine = engine_over(target, make_drafter(kind, target))
    rng = random.Random(3)
    jobs = [(mixed_prompt(rng, 200), mixed_params(rng, 30)) for _ in range(8)]
    requests = [add(engine, *job)[0] for job in jobs]
    while engine.scheduler.step():
        if rng.random() < 0.3 and engine.scheduler.running:
            engine.scheduler.preempt(rng.choice(engine.scheduler._running))
        if rng.random() < 0.3:
            target.prefix_cache.provide(rng.randrange(target.total_pages))
    assert engine.scheduler.preemptions > 4
    for job, request in zip(jobs, requests, strict=True):
        assert everything(request) == reference(*job)
    assert sum(request.counters.drafted_tokens for request in requests) > 0
    assert unused(target)


def test_pages_that_run_out_send_the_newest_back_and_all_finish(reference):
    target = paged_target(18)
    engine = engine_over(target, make_drafter("ngram", target))
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=120, ignore_eos=True)
    prompts = [[place, *range(3, 90)] for place in range(5, 10)]
    requests = [add(engine, prompt, params)[0] for prompt in prompts]
    order = []
    while engine.scheduler.step():
        order.extend(r.key for r in requests if r.is_over and r.key not in order)
    assert engine.scheduler.preemptions > 0
    assert order[0] == requests[0].key, "the oldest was never held up"
    for prompt, request in zip(prompts, requests, strict=True):
        assert everything(request) == reference(prompt, params)
    assert unused(target)


def test_drafts_shrink_where_pages_are_short_before_anybody_is_sent_back():
    target = paged_target(4)
    engine = engine_over(target, make_drafter("ngram", target), draft_len=40)
    # 90 tokens and 30 to come: three pages, and the fourth for drafts until both are used.
    request, _ = add(engine, [5, 6, 7] * 30, SamplingParams(temperature=0, ignore_eos=True, max_tokens=38))
    drafts = []
    while engine.scheduler.step():
        drafts.append(request.counters.drafted_tokens)
        assert request.row_limit + len(request.tokens) <= 4 * PAGE + request.counters.delivered_tokens
    assert drafts[-1] > 0
    assert request.finish_reason is FinishReason.LENGTH
    assert engine.scheduler.preemptions == 0


def test_drafters_are_told_of_rows_that_are_not_theirs():
    told = []

    class Listening(ScriptedDrafter):
        def propose(self, jobs):
            told.append([(len(job.tokens), job.other_rows) for job in jobs])
            return super().propose(jobs)

    engine = engine_over(paged_target(32), Listening(lambda tokens, draft_len: EMPTY_DRAFT))
    for place in range(3):
        add(engine, [5 + place, 6], GREEDY, draft_len=0)
    add(engine, [9, 9], GREEDY)
    engine.scheduler.step()
    add(engine, [7] * 20, GREEDY, draft_len=0)
    finish(engine)
    assert told[:3] == [[(2, 1 * 3 + 4)], [(3, 3 + 20)], [(4, 4)]]


def test_place_of_a_cancelled_request_is_free_for_the_next_round():
    target = paged_target(16)
    engine = engine_over(target)
    prompt = list(range(3, 63)) * 7
    first, heard = add(engine, prompt)
    second, _ = add(engine, [9, *prompt[1:]])
    engine.scheduler.step()
    assert engine.scheduler.waiting == 1
    engine.scheduler.cancel(first)
    engine.scheduler.step()
    assert first.finish_reason is FinishReason.CANCELLED
    assert heard == [0], "told once, in the middle of its prompt"
    assert [request.key for request in engine.scheduler._running] == [second.key]
    assert engine.scheduler.places.unread(second) < len(prompt), "it had its rows in the same round"
    finish(engine)
    assert unused(target)


def test_request_that_cannot_fit_even_alone_is_refused_with_the_numbers():
    engine = engine_over(paged_target(4))
    with pytest.raises(CacheFullError, match=r"a request of 150 tokens.* cache of 128"):
        run(engine, [[5] * 100], SamplingParams(max_tokens=50))
    with pytest.raises(PromptError, match=f"context of {CONTEXT}"):
        run(engine, [[5] * CONTEXT], SamplingParams(max_tokens=1))


def test_batch_larger_than_the_cache_queues(reference):
    target = paged_target(8)
    engine = engine_over(target, make_drafter("draft_model", target))
    prompts = [[place, *range(3, 70)] for place in range(5, 17)]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=40)
    for prompt, request in zip(prompts, run(engine, prompts, params), strict=True):
        assert everything(request) == reference(prompt, params)
    assert unused(target)


def test_pages_run_out_on_pytorch_too(reference):
    target = TorchExecutor(CONFIG, random_weights(CONFIG), kv_cache_tokens=14 * PAGE)
    engine = engine_over(target, make_drafter("ngram", target))
    prompts = [[place, *range(3, 80)] for place in range(5, 10)] * 2
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    for prompt, request in zip(prompts, run(engine, prompts, params), strict=True):
        assert request.output == reference(prompt, params)["ids"]
        assert request.counters.drafted_tokens > 0
    assert engine.scheduler.preemptions > 0
    assert unused(target)


def test_two_batches_of_one_engine_take_turns():
    engine = engine_over(paged_target(32))
    one = engine.run([[5, 6]], [SamplingParams(temperature=0, max_tokens=20)])
    other = engine.run([[7, 8]], [SamplingParams(temperature=0, max_tokens=20)])
    (first,), (second,) = next(one), next(other)
    for _ in range(30):
        next(one, None)
        next(other, None)
    assert len(first.output) == len(second.output) == 20
    (alone,) = run(engine, [[5, 6]], SamplingParams(temperature=0, max_tokens=20))
    assert first.output == alone.output


def test_whoever_stops_early_takes_only_his_own_requests_along():
    target = paged_target(32)
    engine = engine_over(target)
    kept, _ = add(engine, [5, 6])
    rounds = engine.run([[7, 8], [9]], [GREEDY, GREEDY])
    next(rounds)
    rounds.close()
    assert engine.scheduler.running == 1
    finish(engine)
    assert kept.finish_reason is FinishReason.LENGTH
    assert unused(target)


def test_rows_of_a_round_keep_to_the_budget(monkeypatch):
    target = paged_target(64)
    engine = engine_over(target)
    rows = []

    def counting(segments, **options):
        rows.append([len(segment.tokens) for segment in segments])
        return forward(segments, **options)

    forward = target.forward
    monkeypatch.setattr(target, "forward", counting)
    for first in range(3):  # different from the start, or they would read their pages from one another
        add(engine, [first, *list(range(3, 53)) * 8])
    for _ in range(3):
        engine.scheduler.step()
    add(engine, [5])
    finish(engine)
    assert max(sum(each) for each in rows[:3]) <= scheduling.PROMPT_ROWS
    shared = [each for each in rows[3:] if 1 in each and max(each) > 1]
    assert shared
    assert max(sum(each) for each in shared) <= SHARED_ROWS


def test_request_that_ended_in_a_round_that_failed_is_over(reference):
    target = paged_target(32)
    engine = engine_over(target, make_drafter("ngram", target))

    def failing(prefix, logits):
        if prefix.position == 7:
            raise ZeroDivisionError("a caller's processor")
        return logits

    plainly = SamplingParams(temperature=0, ignore_eos=True, max_tokens=4)
    ended, heard = add(engine, [5, 6, 7], plainly, draft_len=0)
    broken, _ = add(
        engine, [5, 6, 7, 8], SamplingParams(seed=1, ignore_eos=True, logits_processors=[failing]), draft_len=0
    )
    other, _ = add(engine, [8, 9], GREEDY)
    finish(engine, 100)
    assert heard == [1, 2, 3, 4]
    assert everything(ended) == reference([5, 6, 7], plainly)
    assert isinstance(broken.error, ZeroDivisionError)
    assert len(broken.output) == len(ended.output) - 1, "it failed in the other's last round"
    assert everything(other) == reference([8, 9], GREEDY)
    assert engine.totals.delivered_tokens == sum(len(request.output) for request in (ended, broken, other))
    assert unused(target)


@pytest.mark.parametrize("width", [1, 2])
def test_eagle_drafts_the_same_after_a_prefix_hit_and_preemption(tmp_path, width):
    config, weights = target_config(), target_weights()
    head = load_eagle_head(save_head(tmp_path, head_config(LAYOUTS[0]), head_tensors(LAYOUTS[0])), config, weights)
    boundaries = head.config.boundaries_of(config.num_layers)
    prompt, params = [(7 * place) % 40 + 3 for place in range(70)], SamplingParams(temperature=0, max_tokens=20)

    def fresh():
        target = TorchExecutor(config, weights)
        return target, tiny_engine(target, EagleDrafter(head, boundaries, width), 3, vocab_size=EAGLE_VOCAB)

    target, engine = fresh()
    (first,) = run(engine, [prompt], params)
    (again,) = run(engine, [prompt], params)
    assert target.prefix_cache.hit_tokens == 64
    assert again.output == first.output
    assert again.counters == first.counters, "the head knows the states of what was not read again"
    assert first.counters.drafted_tokens > 0
    request, _ = add(engine, prompt, params)
    for rounds in range(60):
        if rounds % 3 == 2 and engine.scheduler.running:
            engine.scheduler.preempt(request)
        engine.scheduler.step()
    assert request.output == first.output
    assert request.counters.drafted_tokens > 0
    assert unused(target)


def test_plain_engine_over_the_same_cache_shares_what_a_drafter_with_states_cannot():
    target = TorchExecutor(target_config(), target_weights())
    seen = []

    class Recorder(ScriptedDrafter):
        hidden_boundaries = (1,)

        def observe(self, observation):
            seen.append((observation.cached_length, len(observation.hidden[1])))

    prompt = [(7 * place) % 40 + 3 for place in range(70)]
    params = SamplingParams(temperature=0, max_tokens=2)
    run(tiny_engine(target, vocab_size=EAGLE_VOCAB), [prompt], params)
    recorder = Recorder(lambda tokens, draft_len: EMPTY_DRAFT)
    run(tiny_engine(target, recorder, vocab_size=EAGLE_VOCAB), [prompt], params)
    assert seen == [(70 - 1 + 1, 70)], "no states were noted, so all of it was read"
    seen.clear()
    run(tiny_engine(target, recorder, vocab_size=EAGLE_VOCAB), [prompt], params)
    assert seen == [(64, 64), (70, 6)], "those noted now come without being read"


def test_draft_model_reads_only_what_no_earlier_text_began_with(monkeypatch):
    target = paged_target(64)
    drafter = make_drafter("draft_model", target)
    engine = engine_over(target, drafter)
    prompt, params = list(range(3, 103)), SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    (first,) = run(engine, [prompt], params)
    (draft,) = drafter.executors
    rows = []
    forward = draft.forward
    monkeypatch.setattr(
        draft,
        "forward",
        lambda segments, **options: rows.append(sum(len(s.tokens) for s in segments)) or forward(segments, **options),
    )
    (again,) = run(engine, [prompt], params)
    assert again.output == first.output
    assert again.counters == first.counters
    assert rows[0] == 100 - 96
    assert unused(draft)


def test_draft_model_without_room_drafts_nothing_and_hurts_nobody(reference):
    target = paged_target(64)
    drafter = make_drafter("draft_model", target)
    (draft,) = drafter.executors
    draft.limit_pages(5)
    engine = engine_over(target, drafter)
    prompts = [[place, *range(3, 80)] for place in range(5, 9)]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30)
    requests = run(engine, prompts, params)
    for prompt, request in zip(prompts, requests, strict=True):
        assert everything(request) == reference(prompt, params)
    assert sum(request.counters.drafted_tokens for request in requests) > 0
    assert unused(draft)


def test_the_native_executor_leaves_pytorch_one_thread_in_a_round():
    """A second one waited for a core that the executor's threads had not given back yet: a head took twice as long."""
    before = torch.get_num_threads()
    seen = []

    def script(tokens, draft_len):
        seen.append(torch.get_num_threads())
        if len(seen) == 5:
            raise RuntimeError("a drafter fails")
        return EMPTY_DRAFT

    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="a drafter fails"):
            run(tiny_engine(paged_target(pages=40), ScriptedDrafter(script)), [[1, 2, 3]], GREEDY)
        assert len(seen) >= 5
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert TorchExecutor.torch_threads is None
