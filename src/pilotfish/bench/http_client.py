"""A client of OpenAI-compatible chat servers that streams, on the standard library alone.

Owns the request, the stream and what went wrong, in words. Judges and times nothing. Speaks only to the address that
the caller gave. What a Pilotfish server tells beyond OpenAI's protocol (who proposed a token, what speculation did) is
read where it is told, and never needed.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.errors import InvalidInputError, RemoteServerError

OWNER = "pilotfish"
"""What a Pilotfish server says of its models' owner."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """What speculation did for one request, as its server counts it."""

    rounds: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event of a stream brought.

    Attributes:
        text: the text that is new.
        pieces: the same by tokens, where the server tells them apart; some may be empty.
        from_draft: for each of them whether a drafter proposed it.
        finish_reason: with the last one that carries text.
        completion_tokens: the usage, with the last one.
        speculation: the server's own counts, where it tells them.
    """

    text: str
    pieces: tuple[str, ...] = ()
    from_draft: tuple[bool, ...] = ()
    finish_reason: str | None = None
    completion_tokens: int | None = None
    speculation: SpeculationReport | None = None


class ChatServer:
    """One server.

    Args:
        url: with or without `/v1` at its end.
        model: the name to ask for; the first one that the server lists by default.
        api_key: sent as a bearer token where given.
        timeout: seconds to wait for a connection, and for each next event.

    Attributes:
        is_ours: whether it is a Pilotfish server, which takes fields beyond OpenAI's.

    Raises:
        InvalidInputError: the address is none.
        RemoteServerError: nobody answers there, or it does not list its models.
    """

    def __init__(
        self, url: str, *, model: str | None = None, api_key: str | None = None, timeout: float = 600.0
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(f"URL {url!r}: expected the address of a server, such as http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        proxies = [urllib.request.ProxyHandler({})] if parts.hostname in _LOOPBACK else []
        self._opener = urllib.request.build_opener(*proxies)
        self.model, self.is_ours = self._first_model()
        if model is not None:
            self.model = model

    def _first_model(self) -> tuple[str, bool]:
        with self._open("/v1/models", None) as response:
            try:
                first = json.load(response)["data"][0]
                return str(first["id"]), first.get("owned_by") == OWNER
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise RemoteServerError(
                    f"{self.url}/v1/models does not answer with a list of models ({error}): expected the address of an "
                    "OpenAI-compatible server"
                ) from error

    def stream(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Iterator[Chunk]:
        """Sends a chat and gives its chunks as they come. Closing the iterator takes the request back.

        Args:
            messages: with `role` and `content`.
            options: further fields of the request, as they go over the wire.

        Raises:
            RemoteServerError: it refuses, or breaks off before it said that it is done.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }
        with self._open("/v1/chat/completions", body) as response:
            try:
                for line in response:
                    if line.startswith(b"data:"):
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        yield _chunk(json.loads(data), self.url)
            except (OSError, http.client.HTTPException) as error:
                raise RemoteServerError(f"{self.url} broke off in the middle of an answer: {error}") from error
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise RemoteServerError(f"{self.url} sent an event that is none of a chat's: {error}") from error
        raise RemoteServerError(f"{self.url} closed the connection in the middle of an answer")

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self._headers)
        try:
            return self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise RemoteServerError(self._refusal(path, error), error.code) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RemoteServerError(
                f"{self.url} cannot be reached ({reason}): check the address, or start a server there with "
                "`pilotfish serve`"
            ) from error

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> str:
        told = _message(error)
        if error.code in (401, 403):
            return f"{self.url} refuses the API key, or wants one (HTTP {error.code}): give it with --api-key"
        if error.code == 404 and not told:
            return f"{self.url}{path} does not exist (HTTP 404): expected the address of an OpenAI-compatible server"
        return f"{self.url} refuses (HTTP {error.code}): {told or error.reason}"


def _message(error: urllib.error.HTTPError) -> str:
    """What an error's body says, if it has OpenAI's shape."""
    try:
        told = json.load(error)["error"]
        return " ".join(str(told["message"] if isinstance(told, dict) else told).split())[:_SHOWN]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""


def _chunk(event: dict[str, Any], url: str) -> Chunk:
    if event.get("error"):
        error = event["error"]
        raise RemoteServerError(f"{url} gave up: {error.get('message', error) if isinstance(error, dict) else error}")
    choice = (event.get("choices") or [{}])[0]
    tokens = choice.get("tokens") or ()
    usage = event.get("usage") or {}
    return Chunk(
        text=(choice.get("delta") or {}).get("content") or "",
        pieces=tuple(str(token["text"]) for token in tokens),
        from_draft=tuple(bool(token["from_draft"]) for token in tokens),
        finish_reason=choice.get("finish_reason"),
        completion_tokens=usage.get("completion_tokens"),
        speculation=_speculation(event, usage.get("completion_tokens")),
    )


def _speculation(event: dict[str, Any], tokens: int | None) -> SpeculationReport | None:
    told = event.get("speculative_decoding")
    if told:
        return SpeculationReport(told["rounds"], told["drafted_tokens"], told["accepted_tokens"])
    # llama.cpp's server counts drafts, if there were any; each of its rounds delivers one token more than it accepts.
    timings = event.get("timings") or {}
    if tokens is None or "predicted_n" not in timings:
        return None
    accepted = timings.get("draft_n_accepted", 0)
    return SpeculationReport(tokens - accepted, timings.get("draft_n", 0), accepted)
