"""Token ids become text as they come, and no delta ever splits a character.

Owns how much of a request's text is known. A token may hold part of a character (byte-level BPE) or lose its leading
space at the start of a text (SentencePiece), so each new token is decoded together with the few before it, and text
that still ends in an incomplete character waits.
"""

from collections.abc import Callable, Sequence

CONTEXT_TOKENS = 6
"""Prompt tokens decoded in front of the output, so that the output's first token gets its space."""

_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Incremental decoding of one request's output.

    Args:
        decode: ids to text, special tokens left out.
        prompt: the prompt's token ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._settle(list(prompt[-CONTEXT_TOKENS:]))

    def _settle(self, window: list[int]) -> None:
        """Starts a new window in which every token's text is known, but for a character still incomplete."""
        self._window = window
        self._settled = self._decode(window)
        # A window must not start within a character: if the prompt ended within one, it stays in view as a whole.
        self._next_start = 0 if self._settled.endswith(_INCOMPLETE) else len(window)

    def push(self, token: int) -> str:
        """Takes in one token and returns the text that is complete now, possibly none."""
        self._window.append(token)
        text = self._decode(self._window)
        return "" if text.endswith(_INCOMPLETE) else self._advance(text)

    def flush(self) -> str:
        """What was still waiting, incomplete characters included, once nothing more comes."""
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        # Where the settled text is no longer the beginning, its incomplete end has become a character.
        known = self._settled if text.startswith(self._settled) else self._settled.rstrip(_INCOMPLETE)
        delta = text[len(known) :]
        if delta:  # a token without text keeps its forerunners in view: they decide the next one's leading space
            self._settle(self._window[self._next_start :])
        return delta
