"""The endpoints. Owns paths and what each answers with."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pilotfish.server import replies
from pilotfish.server.body import JsonRoute
from pilotfish.server.chat import ChatAnswer
from pilotfish.server.completion import CompletionAnswer
from pilotfish.server.errors import ApiError, translated
from pilotfish.server.generate import generate
from pilotfish.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from pilotfish.server.serving import Serving

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
    return await generate(request, body, ChatAnswer)


@router.post("/v1/completions", response_model=replies.Completion, responses=_events(replies.Completion))
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continues prompts."""
    return await generate(request, body, CompletionAnswer)


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
        return reader.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)

    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "expected either prompt or messages", param="prompt", code="invalid_value")
    if body.messages is not None and body.add_special_tokens is not None:
        message = "add_special_tokens goes with prompt; messages get the special tokens of the chat template"
        raise ApiError(400, message, param="add_special_tokens", code="invalid_value")
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
