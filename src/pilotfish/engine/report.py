"""Ended requests become the records a caller gets back. Owns the translation, nothing of how they ran."""

from collections.abc import Callable, Iterable, Sequence

from pilotfish.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, StreamDelta
from pilotfish.engine.request import Request
from pilotfish.sampling.logprobs import TokenLogprobs
from pilotfish.sampling.params import SamplingParams

Decode = Callable[[Sequence[int]], str]


def request_output(
    prompt: str | None, requests: Sequence[Request], params: SamplingParams, decode: Decode
) -> RequestOutput:
    """A prompt's output from its samples.

    Args:
        requests: ended; one per `params.samples()`, in that order.
        params: as the caller gave them.
        decode: token ids to text, special tokens written out.
    """
    chosen = list(requests)
    if len(chosen) > params.n:
        chosen = sorted(chosen, key=lambda request: -_cumulative(request))[: params.n]  # ties: the earlier sample
    first = requests[0]
    prompt_logprobs = None
    if params.prompt_logprobs is not None:
        prompt_logprobs = (None, *_named(first.prompt_logprobs, decode))
    return RequestOutput(
        prompt=prompt,
        prompt_token_ids=tuple(first.tokens[: first.prompt_length]),
        outputs=tuple(
            _completion(index, request, decode, with_logprobs=params.logprobs is not None)
            for index, request in enumerate(chosen)
        ),
        prompt_logprobs=prompt_logprobs,
    )


def stream_delta(
    prompt: str | None, request: Request, shown: int, params: SamplingParams, decode: Decode
) -> StreamDelta:
    """What a request has got since its first `shown` tokens were shown; its output too where it has ended."""
    ended = request.finish_reason is not None
    with_logprobs = params.logprobs is not None
    return StreamDelta(
        pieces=tuple(request.pieces[shown:]),
        token_ids=tuple(request.tokens[request.prompt_length + shown :]),
        from_draft=tuple(request.from_draft[shown:]),
        output=request_output(prompt, [request], params, decode) if ended else None,
        logprobs=tuple(_named(request.logprobs[shown:], decode)) if with_logprobs else None,
        error=request.error,
    )


def _completion(index: int, request: Request, decode: Decode, *, with_logprobs: bool) -> CompletionOutput:
    counters, timing = request.counters, request.timing
    assert request.finish_reason is not None, "only ended requests have an output"
    metrics = RequestMetrics(
        rounds=counters.rounds,
        drafted_tokens=counters.drafted_tokens,
        accepted_tokens=counters.accepted_tokens,
        accepted_per_position=tuple(counters.accepted_per_position),
        tokens_per_round=counters.tokens_per_round,
        acceptance_rate=counters.acceptance_rate,
        decode_tokens_per_second=timing.decode_tokens_per_second(counters.delivered_tokens),
        time_to_first_token=timing.time_to_first_token,
    )
    return CompletionOutput(
        index=index,
        text=request.ending.text,
        token_ids=tuple(request.output),
        from_draft=tuple(request.from_draft),
        finish_reason=request.finish_reason,
        seed=request.sampler.seed,
        metrics=metrics,
        stop_reason=request.ending.stopped_by,
        logprobs=tuple(_named(request.logprobs, decode)) if with_logprobs else None,
        cumulative_logprob=_cumulative(request) if request.logprobs else None,
    )


def _cumulative(request: Request) -> float:
    return sum(own.token.logprob for own in request.logprobs)


def _named(found: Iterable[TokenLogprobs], decode: Decode) -> Iterable[dict[int, Logprob]]:
    for own in found:
        yield {one.token: Logprob(one.logprob, one.rank, decode([one.token])) for one in (*own.top, own.token)}
