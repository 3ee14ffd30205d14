import json
from itertools import count

import pytest

from pilotfish.bench.measure import Run, run_request
from pilotfish.drafters.base import Drafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.pass_time import PassTime
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import ROOT, Draft

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, seed=1)
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def prompt(llm):
    return llm.tokenizer.encode("The shark looks once, and once more the shark looks")


def test_run_counts_what_the_engine_counts(llm, prompt):
    own = llm.with_speculation(NGRAM)
    (output,) = own.generate(prompt, PARAMS)
    run = run_request(llm.with_speculation(NGRAM), prompt, PARAMS)
    metrics = output.outputs[0].metrics
    assert run.token_ids == output.outputs[0].token_ids
    assert run.text == output.outputs[0].text
    assert run.drafted_tokens == metrics.drafted_tokens > 0
    assert run.accepted_per_position == metrics.accepted_per_position
    assert run.rounds == metrics.rounds
    assert sum(run.draft_sizes.values()) == run.rounds - 1
    assert sum(run.drafted_per_position) == run.drafted_tokens
    assert all(a <= d for a, d in zip(run.accepted_per_position, run.drafted_per_position, strict=False))


def test_times_are_parts_of_the_whole_and_of_the_right_side(llm, prompt):
    plain = run_request(llm.with_speculation(None), prompt, PARAMS)
    fast = run_request(llm.with_speculation(NGRAM), prompt, PARAMS)
    assert plain.draft_seconds == 0
    assert plain.draft_sizes == {0: 23}
    for run in (plain, fast):
        assert 0 < run.first_seconds < run.seconds
        assert 0 < run.draft_seconds + run.verify_seconds < run.seconds - run.first_seconds
    assert fast.draft_seconds > 0


def test_clock_is_read_around_every_pass_and_draft(llm, prompt):
    """A clock that ticks once per reading: each timed call then takes one tick."""
    ticks = count()
    run = run_request(llm.with_speculation(NGRAM), prompt, PARAMS, clock=lambda: float(next(ticks)))
    assert run.verify_seconds == run.rounds - 1
    # Asked in every round but those with no room for a draft, told in every round but the last.
    assert run.rounds - 2 < run.draft_seconds <= 2 * run.rounds


def test_prompt_is_read_whole_whoever_read_it_before(llm, monkeypatch):
    """A long prompt again, on both sides: every time the target runs all of its rows."""
    prompt = llm.tokenizer.encode("The shark looks once, and once more the shark looks. " * 11)
    read = []
    forward = type(llm.engine.target).forward

    def counted(self, segments, **options):
        read.append(sum(len(segment.tokens) for segment in segments))
        return forward(self, segments, **options)

    monkeypatch.setattr(type(llm.engine.target), "forward", counted)
    for config in (None, NGRAM, None):
        own = llm.with_speculation(config)
        for _ in range(2):
            read.clear()
            run_request(own, prompt, SamplingParams(temperature=0.0, max_tokens=1))
            assert sum(read) >= len(prompt)


def test_policy_is_timed_without_the_drafters_it_chooses_from(llm, prompt, monkeypatch):
    """A clock that ticks once per reading: around the policy, around each member, and twice within the policy."""
    policy = llm.with_speculation({"method": "auto", "drafters": ["ngram", "suffix"]})
    ticks = count()
    policy.engine.drafter._clock = lambda: 0.0
    # A clock that stands still would teach the policy that the passes it runs take no time, and the others do.
    monkeypatch.setattr(PassTime, "observe", lambda self, rows, seconds: None)
    run = run_request(policy, prompt, PARAMS, clock=lambda: float(next(ticks)))
    rounds = run.rounds - 1
    # In a round: propose is 1 tick and 2 for each member, observe the same; of these 1 for each member is its own.
    assert run.draft_seconds == pytest.approx(10 * rounds, abs=10)
    assert run.policy_seconds == pytest.approx(6 * rounds, abs=6)
    assert "propose" not in vars(policy.engine.drafter.drafters[0]), "nothing stays wrapped"
    assert run_request(llm.with_speculation(NGRAM), prompt, PARAMS).policy_seconds == 0.0


class _RunsTheTarget(Drafter):
    """Drafts a tree of three nodes, and runs a layer of the target for it, as an early exit does."""

    nodes_per_depth = 2

    def __init__(self, target):
        self._target = target

    def begin(self, request, capacity):
        pass

    def propose(self, jobs):
        self._target.forward([])
        return [Draft((5, 6, 7), (ROOT, ROOT, 1)) for _ in jobs]

    def observe(self, observation):
        pass

    def end(self, request):
        pass


def test_passes_within_the_drafter_are_drafting_and_depths_are_of_trees(llm, prompt, monkeypatch):
    own = llm.with_speculation(None)
    target, tokenizer = own.engine.target, own.tokenizer
    drafting = Engine(target, tokenizer.decode, tokenizer.vocab_size, drafter=_RunsTheTarget(target), draft_len=2)
    monkeypatch.setattr(own, "engine", drafting)
    calls = []
    forward = type(own.engine.target).forward

    def counted(self, segments, **options):
        calls.append(len(segments))
        return forward(self, segments, **options) if segments else None

    monkeypatch.setattr(type(own.engine.target), "forward", counted)
    ticks = count()
    run = run_request(own, prompt, PARAMS, clock=lambda: float(next(ticks)))
    assert 0 in calls
    assert run.verify_seconds == run.rounds - 1
    assert run.drafted_per_position[0] == run.drafted_per_position[1]
    assert 3 in run.draft_sizes


def test_timing_leaves_no_trace_on_the_engine(llm, prompt):
    own = llm.with_speculation(NGRAM)
    run_request(own, prompt, PARAMS)
    assert "forward" not in vars(own.engine.target)
    assert "propose" not in vars(own.engine.drafter)


def test_run_survives_json(llm, prompt):
    run = run_request(llm.with_speculation(NGRAM), prompt, PARAMS)
    assert Run.from_dict(json.loads(json.dumps(run.as_dict()))) == run
