"""Answers of a server for `pilotfish chat --url`: asks, prints as it comes, and says how fast it was.

Only a Pilotfish server is sent fields that OpenAI's protocol has not got. Imports nothing heavy: no model is loaded.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pilotfish.bench.http_client import ChatServer
from pilotfish.cli.terminal import in_words, print_pieces
from pilotfish.errors import SpeculativeConfigError


class RemoteModel:
    """A model behind a server.

    Args:
        server: that has it.
        fields: of every request, besides the messages.
        draft_len: most tokens to draft per round; `None` leaves that to the server.

    Raises:
        SpeculativeConfigError: the server is none of ours, and cannot be told a draft length.
    """

    def __init__(self, server: ChatServer, fields: Mapping[str, Any], draft_len: int | None) -> None:
        self._server = server
        self._fields = dict(fields)
        if server.is_ours:
            own = {} if draft_len is None else {"num_speculative_tokens": draft_len}
            self._fields["speculative"] = {"report": True, **own}
        elif draft_len is not None:
            raise SpeculativeConfigError(
                f"{server.url} is no Pilotfish server: it takes neither --num-speculative-tokens nor --method off"
            )

    def answer(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
        """Prints the next answer of a conversation; gives it, and its figures in words.

        Raises:
            RemoteServerError: the server refuses or breaks off.
        """
        parts: list[str] = []
        tokens = first_tokens = 0
        first = last = 0.0
        usage = rounds = None
        for chunk in self._server.stream(messages, self._fields):
            if chunk.text or chunk.pieces:
                print_pieces(chunk.pieces or (chunk.text,), chunk.from_draft or (False,))
                parts.append(chunk.text)
                last = time.perf_counter()
                tokens += len(chunk.pieces) or 1
                if len(parts) == 1:
                    first, first_tokens = last, tokens
            usage = usage if chunk.completion_tokens is None else chunk.completion_tokens
            rounds = rounds if chunk.speculation is None else chunk.speculation.rounds
        print(flush=True)
        tokens = tokens if usage is None else usage
        return "".join(parts), in_words(
            tokens,
            (tokens - first_tokens) / (last - first) if last > first else None,
            tokens / rounds if rounds else None,
        )
