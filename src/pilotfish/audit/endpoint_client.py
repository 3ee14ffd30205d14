"""A small client of OpenAI-compatible completion servers, on the standard library alone.

Owns requests, retries and what went wrong; judges nothing. Speaks only to addresses that the caller gave.
"""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from pilotfish.errors import InvalidInputError

RETRIES = 4
LONGEST_WAIT = 20.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled continuation.

    Attributes:
        tokens: the tokens as text, where the server tells them; otherwise `None`.
        alternatives: for each token the log probabilities of the likeliest ones, where told.
    """

    text: str
    tokens: tuple[str, ...] | None
    alternatives: tuple[dict[str, float], ...] | None


@dataclass(slots=True)
class Trouble:
    """What did not work, counted."""

    rate_limited: int = 0
    errors: int = 0
    messages: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        if message not in self.messages:
            self.messages.append(message)


class Server:
    """One OpenAI-compatible server.

    Args:
        base_url: up to and including `/v1`.
        model: the name to ask for; the first one that the server lists by default.
        api_key: sent as a bearer token where given.
        timeout: seconds per request.

    Raises:
        InvalidInputError: the address is none, or nobody answers there.
    """

    def __init__(
        self, base_url: str, *, model: str | None = None, api_key: str | None = None, timeout: float = 60.0
    ) -> None:
        parts = urllib.parse.urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(f"base URL {base_url!r}: expected http://host:port/v1")
        self.base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        proxies = [urllib.request.ProxyHandler({})] if parts.hostname in _LOOPBACK else []
        self._opener = urllib.request.build_opener(*proxies)
        self.trouble = Trouble()
        self.requests = 0
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        try:
            return str(self._send("/models", None)["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InvalidInputError(
                f"{self.base_url}/models does not answer with a list of models ({error}); check the address, "
                "and name the model if the server lists none"
            ) from error

    def complete(
        self, prompt: str, *, max_tokens: int, temperature: float, seed: int, n: int = 1, logprobs: int = 0
    ) -> list[Completion]:
        """Continues a prompt; an empty list where the server could not be brought to do it."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": 1.0,
            "seed": seed,
            "n": n,
            "logprobs": logprobs or None,
        }
        for attempt in range(RETRIES):
            self.requests += 1
            try:
                answer = self._send("/completions", body)
                return [_completion(choice) for choice in answer["choices"]]
            except urllib.error.HTTPError as error:
                if error.code == 429:
                    self.trouble.rate_limited += 1
                    time.sleep(min(LONGEST_WAIT, _retry_after(error, 0.5 * 2**attempt)))
                    continue
                self.trouble.errors += 1
                self.trouble.note(f"{self.base_url}: HTTP {error.code} {error.reason}")
                if error.code < 500:
                    return []
            except (OSError, ValueError, LookupError, TypeError) as error:
                self.trouble.errors += 1
                self.trouble.note(f"{self.base_url}: {type(error).__name__}: {error}")
        return []

    def _send(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        request = urllib.request.Request(self.base_url + path, data=data, headers=self._headers)
        with self._opener.open(request, timeout=self._timeout) as response:
            return json.load(response)


def _retry_after(error: urllib.error.HTTPError, otherwise: float) -> float:
    try:
        return float(error.headers.get("Retry-After", otherwise))
    except ValueError:
        return otherwise


def _completion(choice: dict[str, Any]) -> Completion:
    told = choice.get("logprobs") or {}
    tokens, top = told.get("tokens"), told.get("top_logprobs")
    return Completion(
        str(choice["text"]),
        tuple(map(str, tokens)) if tokens else None,
        tuple({str(token): float(value) for token, value in (one or {}).items()} for one in top) if top else None,
    )
