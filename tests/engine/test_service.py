"""Requests from many threads: equal answers, cancellation, limits, and failures that stay with whoever caused them."""

import threading
import time

import pytest

from pilotfish import LLM, FinishReason, SamplingParams
from pilotfish.engine.service import Service
from pilotfish.errors import (
    InvalidInputError,
    PilotfishError,
    PromptError,
    QueueFullError,
    SamplingParamsError,
    ServiceClosedError,
)
from tests.models.tiny_models import tiny_hf_directory

WAIT = 60.0


class Listening:
    """Collects a request's deltas, and can be waited for."""

    def __init__(self, hold=None):
        self.deltas = []
        self.over = threading.Event()
        self.begun = threading.Event()
        self.hold = hold

    def __call__(self, delta):
        self.deltas.append(delta)
        self.begun.set()
        if self.hold is not None:
            self.hold.wait(WAIT)
        if delta.output is not None or delta.error is not None:
            self.over.set()

    @property
    def completion(self):
        assert self.over.wait(WAIT)
        (completion,) = self.deltas[-1].output.outputs
        return completion


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    directory = tiny_hf_directory(tmp_path_factory.mktemp("target"))
    return LLM(directory, speculative_config={"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3})


@pytest.fixture
def service(llm):
    with Service(llm, max_waiting=8) as running:
        yield running


def endless(**options):
    return SamplingParams(temperature=0, ignore_eos=True, **options)


def test_answers_equal_those_alone_and_deltas_join_to_them(llm, service):
    prompts = [[5, 6, 7, 5, 6], [9] * 12, list(range(5, 30)), [11]]
    each = [
        SamplingParams(temperature=0, max_tokens=20),
        SamplingParams(temperature=0.9, seed=3, max_tokens=24, logprobs=2),
        SamplingParams(temperature=1.2, seed=4, max_tokens=9, repetition_penalty=1.3),
        SamplingParams(temperature=0.5, seed=5, max_tokens=1),
    ]
    heard = [Listening() for _ in prompts]
    threads = [
        threading.Thread(target=service.submit, args=(prompt, params), kwargs={"listener": listening})
        for prompt, params, listening in zip(prompts, each, heard, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    streamed = [listening.completion for listening in heard]
    assert service.drain(WAIT)
    service.close()
    plain = llm.with_speculation(None)
    for prompt, params, listening, completion in zip(prompts, each, heard, streamed, strict=True):
        (alone,) = plain.generate([prompt], params)[0].outputs
        assert completion.token_ids == alone.token_ids
        assert completion.text == alone.text == "".join(delta.text for delta in listening.deltas)
        assert completion.logprobs == alone.logprobs
        shown = [delta.logprobs for delta in listening.deltas]
        if params.logprobs is None:
            assert set(shown) == {None}
        else:
            assert tuple(entry for entries in shown for entry in entries) == alone.logprobs
        assert all(len(delta.pieces) == len(delta.token_ids) for delta in listening.deltas)
    assert sum(completion.metrics.drafted_tokens for completion in streamed) > 0


def test_cancelled_request_ends_with_what_it_has(service):
    listening = Listening()
    ticket = service.submit([5, 6, 7], endless(), listener=listening)
    assert listening.begun.wait(WAIT)
    ticket.cancel()
    ticket.cancel()
    completion = listening.completion
    assert completion.finish_reason is FinishReason.CANCELLED == "cancelled"
    assert completion.text == "".join(delta.text for delta in listening.deltas)
    ticket.cancel()
    assert service.drain(WAIT)
    stats = service.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_deadline_ends_a_request(service):
    listening = Listening()
    service.submit([5, 6, 7], endless(), deadline=time.monotonic() - 1, listener=listening)
    assert listening.completion.finish_reason is FinishReason.DEADLINE == "deadline"
    assert listening.completion.token_ids == ()


def test_full_queue_is_refused_with_the_numbers(service):
    hold = threading.Event()
    first = Listening(hold)
    service.submit([5], endless(max_tokens=3), listener=first)
    assert first.begun.wait(WAIT), "the engine's thread is held within the first delta"
    others = [Listening() for _ in range(8)]
    for listening in others:
        service.submit([6], endless(max_tokens=2), listener=listening)
    with pytest.raises(QueueFullError, match="8 requests are waiting") as refused:
        service.submit([7], endless(), listener=Listening())
    assert (refused.value.waiting, refused.value.limit) == (8, 8)
    hold.set()
    for listening in (first, *others):
        assert listening.completion.finish_reason is FinishReason.LENGTH


def test_mistakes_are_refused_before_anything_starts(service):
    for prompt, params, error in (
        ([], SamplingParams(), PromptError),
        ([10**6], SamplingParams(), PromptError),
        ([1], SamplingParams(n=2), SamplingParamsError),
    ):
        with pytest.raises(error):
            service.submit(prompt, params, listener=Listening())
    assert service.drain(0.0)
    with pytest.raises(ServiceClosedError):
        service.submit([5], SamplingParams(), listener=Listening())


def test_listener_that_raises_hurts_nobody_else(service, caplog):
    def broken(delta):
        raise RuntimeError("gone")

    listening = Listening()
    service.submit([5, 6], endless(), listener=broken)
    service.submit([7, 8], endless(max_tokens=12), listener=listening)
    assert len(listening.completion.token_ids) == 12
    assert service.drain(WAIT), "the other was cancelled"
    assert "gone" in caplog.text


def test_failure_in_a_round_fails_the_request_that_caused_it(llm, service):
    def failing(prefix, logits):
        if prefix.position > 8:
            raise ZeroDivisionError("a caller's processor")
        return logits

    good, bad = [Listening(), Listening()], Listening()
    params = SamplingParams(temperature=0.8, seed=2, max_tokens=20)
    with llm.engine.scheduler._lock:  # so that all three are in the first round
        service.submit([5, 6, 5], params, listener=good[0])
        service.submit([5, 6, 7], endless(logits_processors=[failing]), listener=bad)
        service.submit([8, 9], params, listener=good[1])
    assert bad.over.wait(WAIT)
    assert isinstance(bad.deltas[-1].error, ZeroDivisionError)
    assert bad.deltas[-1].output is None
    assert sum(len(delta.token_ids) for delta in bad.deltas) > 0, "it had begun"
    completions = [listening.completion for listening in good]
    later = Listening()
    service.submit([5, 6, 5], params, listener=later)
    assert later.completion.token_ids == completions[0].token_ids
    service.close()
    plain = llm.with_speculation(None)
    for prompt, completion in zip(([5, 6, 5], [8, 9]), completions, strict=True):
        assert completion.token_ids == plain.generate([prompt], params)[0].outputs[0].token_ids


def test_failure_of_the_scheduler_fails_everyone_and_the_service_goes_on(llm, service, monkeypatch):
    listening = Listening()
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.scheduler, "_admit", lambda: 1 / 0)
        service.submit([5, 6], endless(), listener=listening)
        with pytest.raises(PilotfishError, match="division by zero"):
            llm.generate([[5, 6]], endless())
        assert listening.over.wait(WAIT)
    assert isinstance(listening.deltas[-1].error, PilotfishError)
    later = Listening()
    service.submit([5, 6], endless(max_tokens=4), listener=later)
    assert len(later.completion.token_ids) == 4


def test_delta_that_cannot_be_told_ends_its_request_with_the_error(service, monkeypatch):
    def broken(ids):
        raise ZeroDivisionError("no such text")

    listening, other = Listening(), Listening()
    monkeypatch.setattr(service, "decode_all", broken)
    service.submit([5, 6], endless(logprobs=1), listener=listening)
    service.submit([7, 8], endless(max_tokens=6), listener=other)
    assert listening.over.wait(WAIT)
    assert len(other.completion.token_ids) == 6
    assert service.drain(WAIT)
    (delta,) = listening.deltas
    assert isinstance(delta.error, ZeroDivisionError)
    assert delta.output is None


def test_second_service_of_an_engine_is_refused(llm, service):
    with pytest.raises(InvalidInputError, match="served already"):
        Service(llm)
    with pytest.raises(InvalidInputError, match="max_waiting=0"):
        Service(llm, max_waiting=0)
    service.close()
    with Service(llm) as again:
        listening = Listening()
        again.submit([5], endless(max_tokens=2), listener=listening)
        assert len(listening.completion.token_ids) == 2


def test_generate_shares_the_rounds_of_a_running_service(llm, service):
    hold = Listening()
    ticket = service.submit([5, 6, 7], endless(), listener=hold)
    assert hold.begun.wait(WAIT)
    (output,) = llm.generate([[9, 10]], SamplingParams(temperature=0, max_tokens=5))
    assert len(output.outputs[0].token_ids) == 5
    ticket.cancel()
    assert hold.completion.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)


def test_close_cancels_what_runs_and_counts_never_fall(llm):
    before = llm.totals.delivered_tokens
    service = Service(llm)
    heard = [Listening() for _ in range(8)]
    for listening in heard:
        service.submit([5, 6, 7], endless(), listener=listening)
    assert heard[0].begun.wait(WAIT)
    seen = service.stats().totals.delivered_tokens
    assert seen >= before
    service.close()
    service.close()
    assert all(listening.over.is_set() for listening in heard)
    tokens = sum(len(delta.token_ids) for listening in heard for delta in listening.deltas)
    assert service.stats().totals.delivered_tokens == llm.totals.delivered_tokens == before + tokens
    assert not llm.engine.is_served
