"""The endpoints. Owns paths and the order of steps; what a step does is its own module's."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pilotfish.engine.outputs import StreamDelta
from pilotfish.engine.service import Service
from pilotfish.server import replies
from pilotfish.server.answers import Answer, ChatAnswer, CompletionAnswer
from pilotfish.server.body import JsonRoute
from pilotfish.server.departure import EventStream, unless_gone
from pilotfish.server.desk import Desk
from pilotfish.server.errors import ApiError, internal_error, translated
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.options import sampling_params
from pilotfish.server.prompts import PromptReader
from pilotfish.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
)
from pilotfish.server.samples import Sample, Samples, draining
from pilotfish.server.settings import ServerSettings


@dataclass(slots=True)
class Serving:
    """What every endpoint works with; `app.state.serving`.

    Attributes:
        created: when the server started, in seconds since 1970.
        reading: reads prompts.
        submitting: gives requests to the engine.
        compiling: the same for those with a grammar, which may take its time to compile; the others do not wait for it.
        draining: no more requests are taken.
    """

    service: Service
    reader: PromptReader
    settings: ServerSettings
    metrics: ServerMetrics
    created: int
    draining: bool = False
    reading: Desk = field(default_factory=lambda: Desk(2, "reading"))
    submitting: Desk = field(default_factory=lambda: Desk(1, "submitting"))
    compiling: Desk = field(default_factory=lambda: Desk(4, "compiling"))

    def close(self) -> None:
        """Ends the threads."""
        for desk in (self.reading, self.submitting, self.compiling):
            desk.close()


_FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": replies.ErrorReply, "description": "The request is refused; the body says why"},
    "5XX": {"model": replies.ErrorReply, "description": "The server is at fault, too slow or shutting down"},
}

router = APIRouter(route_class=JsonRoute, responses=_FAILURES)


def _events(of: type[replies.Reply]) -> dict[int | str, dict[str, Any]]:
    told = f"One JSON object, or with `stream` events whose data are {of.__name__} objects and at last `[DONE]`"
    return {200: {"description": told, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.post(
    "/v1/chat/completions", response_model=replies.ChatCompletion, responses=_events(replies.ChatCompletionChunk)
)
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Answers a conversation."""
    return await _generate(request, body, ChatAnswer)


@router.post("/v1/completions", response_model=replies.Completion, responses=_events(replies.Completion))
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continues prompts."""
    return await _generate(request, body, CompletionAnswer)


async def _generate(request: Request, body: GenerationRequest, kind: type[Answer]) -> Response:
    serving: Serving = request.app.state.serving
    settings = serving.settings
    if serving.draining:
        raise draining()
    serving.reader.require_model(body.model)
    try:
        params = sampling_params(body, settings)
    except Exception as error:
        raise translated(error) from error
    log = request.state.log
    if settings.log_prompts:
        log["prompt"] = _prompt_of(body)

    async def begin() -> tuple[Samples, Answer]:
        try:
            prompts = await serving.reading.run(lambda: serving.reader.read(body))
        except Exception as error:
            raise translated(error) from error
        samples = Samples(
            serving.service,
            serving.metrics,
            prompts,
            params,
            draft_len=body.draft_len,
            arrived=request.state.arrived,
            timeout=settings.request_timeout,
        )
        answer = kind(body, serving.reader, samples.all, params.n, request.state.request_id)
        log["prompt_tokens"] = sum(len(ids) for ids in prompts)
        try:
            await samples.start(serving.submitting if params.structured_outputs is None else serving.compiling)
        except BaseException:
            samples.cancel()
            raise
        serving.metrics.prompt_tokens.inc(log["prompt_tokens"])
        return samples, answer

    async def whole() -> Response:
        samples, answer = await begin()
        try:
            await samples.finish()
        finally:
            samples.cancel()
            _note(log, samples, settings)
        return Response(answer.whole().to_json(), media_type="application/json")

    async def first() -> tuple[Samples, Answer, tuple[Sample, StreamDelta] | None]:
        # The status is told with the first token, so that whatever fails before it has a status of its own.
        samples, answer = await begin()
        try:
            return samples, answer, await samples.next()
        except BaseException:
            samples.cancel()
            raise

    if not body.streams:
        return await unless_gone(request, whole())
    samples, answer, arrival = await unless_gone(request, first())
    events = _stream(samples, answer, arrival, log, settings, include_usage=body.includes_usage)
    return EventStream(events, write_timeout=settings.write_timeout)


async def _stream(
    samples: Samples,
    answer: Answer,
    arrival: tuple[Sample, StreamDelta] | None,
    log: dict[str, Any],
    settings: ServerSettings,
    *,
    include_usage: bool,
) -> AsyncIterator[str]:
    try:
        while arrival is not None:
            for chunk in answer.chunks(*arrival):
                yield f"data: {chunk.to_json()}\n\n"
            arrival = await samples.next()
        if include_usage:
            yield f"data: {answer.usage_chunk().to_json()}\n\n"
    except ApiError as error:
        log["error"] = error.code
        yield _error_event(error)
    except Exception:
        log["error"] = "internal_error"
        yield _error_event(internal_error())
        raise
    finally:
        samples.cancel()
        _note(log, samples, settings)
    yield "data: [DONE]\n\n"


def _error_event(error: ApiError) -> str:
    return f"data: {bytes(error.response().body).decode()}\n\n"


def _note(log: dict[str, Any], samples: Samples, settings: ServerSettings) -> None:
    log["completion_tokens"] = sum(len(sample.tokens) for sample in samples.all)
    log["finish_reasons"] = [sample.output and sample.output.finish_reason.value for sample in samples.all]
    if settings.log_prompts:
        log["outputs"] = ["".join(sample.pieces) for sample in samples.all]


def _prompt_of(body: GenerationRequest) -> Any:
    if isinstance(body, ChatRequest):
        return [message.as_message() for message in body.messages]
    assert isinstance(body, CompletionRequest), "one of the two"
    return body.prompt


@router.get("/v1/models", response_model=replies.ModelList)
async def models(request: Request) -> JSONResponse:
    """The one model that is served."""
    return JSONResponse({"object": "list", "data": [_card(request.app.state.serving)]})


@router.get("/v1/models/{model:path}", response_model=replies.ModelCard)
async def model(request: Request, model: str) -> JSONResponse:
    """The model that is served, by its name."""
    serving: Serving = request.app.state.serving
    serving.reader.require_model(model)
    return JSONResponse(_card(serving))


def _card(serving: Serving) -> dict[str, Any]:
    return {
        "id": serving.reader.name,
        "object": "model",
        "created": serving.created,
        "owned_by": "pilotfish",
        "max_model_len": serving.reader.context,
    }


@router.post("/tokenize", response_model=replies.TokenizeReply)
async def tokenize(request: Request, body: TokenizeRequest) -> JSONResponse:
    """Token ids of a text, or of messages by the chat template."""
    serving: Serving = request.app.state.serving
    reader = serving.reader
    reader.require_model(body.model)

    def read() -> list[int]:
        if body.messages is not None:
            return reader.chat(body.messages, add_generation_prompt=body.add_generation_prompt)
        assert body.prompt is not None, "one of them is there"
        reader.require_length([body.prompt], "prompt")
        return reader.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)

    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "expected either prompt or messages", param="prompt", code="invalid_value")
    try:
        ids = await serving.reading.run(read)
    except Exception as error:
        raise translated(error) from error
    return JSONResponse({"count": len(ids), "max_model_len": reader.context, "tokens": ids})


@router.post("/detokenize", response_model=replies.DetokenizeReply)
async def detokenize(request: Request, body: DetokenizeRequest) -> JSONResponse:
    """The text of token ids."""
    serving: Serving = request.app.state.serving
    reader = serving.reader
    reader.require_model(body.model)
    reader.require_ids(body.tokens, "tokens")
    text = await serving.reading.run(
        lambda: reader.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)
    )
    return JSONResponse({"prompt": text})


@router.get("/health", response_model=replies.HealthReply, responses={503: {"model": replies.HealthReply}})
async def health(request: Request) -> JSONResponse:
    """200 while requests are taken, 503 once the server drains."""
    serving: Serving = request.app.state.serving
    stats = serving.service.stats()
    status = "draining" if serving.draining else "serving"
    found = {"status": status, "running": stats.running, "waiting": stats.waiting}
    return JSONResponse(found, 503 if serving.draining else 200)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """What Prometheus reads."""
    return Response(request.app.state.serving.metrics.text(), media_type=CONTENT_TYPE_LATEST)
