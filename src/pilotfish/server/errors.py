"""Errors as OpenAI's clients know them: `{"error": {"message", "type", "param", "code"}}` with the right status.

Owns the translation of whatever goes wrong into a status and a body. Knows no route.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pilotfish.errors import (
    CacheFullError,
    InvalidInputError,
    PilotfishError,
    SamplingParamsError,
    SpeculativeConfigError,
)
from pilotfish.sampling.params import SamplingParams

logger = logging.getLogger(__name__)

_SHOWN = 80
_OPTIONS = frozenset(field.name for field in fields(SamplingParams))
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 504: "timeout_error"}


class ApiError(HTTPException):
    """A refusal that a client sees.

    Args:
        status: of the response.
        message: what was got, what was expected, what to do.
        param: the field at fault.
        code: a word for programs.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The response's body."""
        kind = _KINDS.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status_code, headers=dict(self.headers or {}))


def translated(error: Exception) -> ApiError:
    """What a client is told about an error; one that is not the client's is logged."""
    if isinstance(error, ApiError):
        return error
    message = " ".join(str(error).split())
    if isinstance(error, SpeculativeConfigError):
        return ApiError(400, message, param="speculative", code="invalid_value")
    if isinstance(error, SamplingParamsError):
        word = re.match(r"[a-z_]+", message)
        param = word.group() if word and word.group() in _OPTIONS else None
        return ApiError(400, message, param=param, code="invalid_value")
    if isinstance(error, CacheFullError):  # such a request would not fit an idle engine either
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, InvalidInputError):
        return ApiError(400, message, code="invalid_value")
    if isinstance(error, PilotfishError):
        logger.error("the engine failed", exc_info=error)
        return ApiError(500, message, code="engine_error")
    logger.error("a mistake of ours", exc_info=error)
    return internal_error()


def internal_error() -> ApiError:
    """What a client is told about our own mistakes: nothing but that it was one."""
    return ApiError(500, "internal error; the server's log has the details", code="internal_error")


def deadline_exceeded(seconds: float) -> ApiError:
    # OpenAI's client would send the whole request again, and run into the same limit.
    return ApiError(
        504,
        f"the request took longer than {seconds:g} seconds; ask for fewer tokens, or start the server with a longer "
        "--request-timeout",
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


def invalid_body(problems: Sequence[Any], known: Sequence[str]) -> ApiError:
    """The first problem that validation of a body found.

    Args:
        problems: pydantic's list.
        known: fields of the body.
    """
    problem, message = _explanation(problems)
    place = _place(problem)
    param = ".".join(place) or None
    kind = problem["type"]
    if kind == "unsupported_field":
        field = ".".join((*place, problem["ctx"]["field"]))
        return ApiError(400, message, param=field, code="unsupported_parameter")
    if kind == "extra_forbidden":
        near = get_close_matches(place[-1], known, n=1) if len(place) == 1 else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return ApiError(400, f"unknown field {param!r}{hint}", param=param, code="unknown_parameter")
    if kind == "missing":
        what = f"{param!r} is missing" if param else "the body is empty: expected a JSON object"
        return ApiError(400, what, param=param, code="missing_required_parameter")
    if kind == "value_error":
        return ApiError(400, str(problem["ctx"]["error"]), param=param, code="invalid_value")
    got = repr(problem.get("input"))
    got = got if len(got) <= _SHOWN else got[:_SHOWN] + "..."
    return ApiError(400, f"{param or 'the body'}: {message}; got {got}", param=param, code="invalid_type")


def _explanation(problems: Sequence[Any]) -> tuple[Any, str]:
    """The problem to tell of, and in which words: of a union, each member complains."""
    for problem in problems:
        if problem["type"] == "extra_forbidden":  # explains others
            return problem, problem["msg"]
    first = _place(problems[0])[:1]
    own = [problem for problem in problems if _place(problem)[:1] == first]
    told = max(own, key=lambda problem: len(_place(problem)))  # who got furthest was meant
    words = [problem["msg"] for problem in own if _place(problem) == _place(told)]
    shared = "Input should be "
    if all(one.startswith(shared) for one in words):
        return told, shared + " or ".join(dict.fromkeys(one.removeprefix(shared) for one in words))
    return told, told["msg"]


def _place(problem: Any) -> tuple[str, ...]:
    """Where a problem is, as the client wrote it: without the names that pydantic gives to a union's members."""
    parts = [str(part) for part in problem["loc"] if part not in ("body", "query", "path")]
    if parts[:1] == ["response_format"]:
        del parts[1:2]  # which of the formats it is
    return tuple(part for part in parts if part != "str" and not part.startswith("list["))


async def on_invalid_body(request: Request, error: Exception) -> JSONResponse:
    """Handler for what a request model refuses."""
    assert isinstance(error, RequestValidationError), "registered for nothing else"
    refusal = invalid_body(error.errors(), request.scope.get("known_fields", ()))
    request.state.log["error"] = refusal.code
    return refusal.response()


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Handler for our refusals, and for the framework's: no such path, no such method."""
    assert isinstance(error, HTTPException), "registered for nothing else"
    if not isinstance(error, ApiError):
        phrase = HTTPStatus(error.status_code).phrase.lower()
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = f"{request.method} {request.url.path}: {phrase}"
        error = ApiError(error.status_code, message, code=code, headers=error.headers)
    request.state.log["error"] = error.code
    return error.response()
