"""`ServerSettings`: where the server listens and what it refuses. Owns the values, their ranges and their defaults."""

from dataclasses import dataclass
from math import isfinite
from typing import Any, no_type_check

from pilotfish.errors import InvalidInputError


# Values of any type are judged below, where the refusal can name the setting.
@no_type_check
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server behaves; one flag of `pilotfish serve` per field, same name.

    Attributes:
        host: address to listen on; nobody but this machine reaches the default.
        port: 0 takes a free one.
        served_model_name: what clients call the model; by default the name it was loaded by, without directories.
        api_key: what clients must send as `Authorization: Bearer ...`; `None` asks for nothing.
        max_body_bytes: largest request body.
        max_prompt_tokens: longest prompt; the model's context allows one token less than its length in any case.
        max_n: most samples per prompt (`n`, `best_of`).
        max_prompts: most prompts in one request.
        max_waiting: most requests in the engine's queue; each sample is one.
        request_timeout: seconds a request may take from its arrival to its last token, waiting included.
        body_timeout: seconds a client may take to send a request.
        write_timeout: seconds without any progress after which a reader that does not read is given up.
        drain_timeout: seconds that running requests have to end after SIGTERM.
        log_prompts: write prompts and outputs into the access log.

    Raises:
        InvalidInputError: names the setting, what was got and what was expected.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key: str | None = None
    max_body_bytes: int = 4 * 1024 * 1024
    max_prompt_tokens: int | None = None
    max_n: int = 16
    max_prompts: int = 64
    max_waiting: int = 256
    request_timeout: float = 600.0
    body_timeout: float = 30.0
    write_timeout: float = 60.0
    drain_timeout: float = 120.0
    log_prompts: bool = False

    def __post_init__(self) -> None:
        _integer("port", self.port, 0, 65535)
        for name in ("max_body_bytes", "max_n", "max_prompts", "max_waiting"):
            _integer(name, getattr(self, name), 1)
        if self.max_prompt_tokens is not None:
            _integer("max_prompt_tokens", self.max_prompt_tokens, 1)
        for name in ("request_timeout", "body_timeout", "write_timeout", "drain_timeout"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not isfinite(value) or value <= 0:
                raise InvalidInputError(f"{name}={value!r}: expected seconds, a number above 0")
        for name in ("served_model_name", "api_key"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                # The value of a key is nobody's business, not even in an error message.
                raise InvalidInputError(f"{name} is empty: expected text, or nothing at all")


def _integer(name: str, value: Any, smallest: int, largest: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < smallest or (largest is not None and value > largest):
        expected = f"of at least {smallest}" if largest is None else f"from {smallest} to {largest}"
        raise InvalidInputError(f"{name}={value!r}: expected an integer {expected}")
