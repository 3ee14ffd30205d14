"""Where a request ends: EOS, stop tokens, stop strings, end of the grammar, token budget, context limit.

Owns a request's output text and decides token by token, exactly as plain decoding would, so that a block of accepted
tokens is cut at the earliest end before anything of it is committed. Knows no drafts and no caches.
"""

from collections.abc import Sequence

from pilotfish.engine.detokenizer import Detokenizer
from pilotfish.sampling.grammar import GrammarEnd
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import FinishReason


class Ending:
    """The end conditions of one request and the text they are checked against.

    Args:
        params: `stop`, `stop_token_ids`, `ignore_eos`, `min_tokens`, `include_stop_str_in_output` are used.
        eos_ids: the model's end-of-sequence ids.
        budget: tokens that may be delivered, from `max_tokens` and the context; at least 1.
        detokenizer: decodes the output.
        grammar: says where the output is complete, if its form is prescribed.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: Sequence[int],
        budget: int,
        detokenizer: Detokenizer,
        grammar: GrammarEnd | None = None,
    ) -> None:
        ends = set(params.stop_token_ids)
        if not params.ignore_eos:
            ends.update(eos_ids)
        self._ending_ids = frozenset(ends)
        self._stop = params.stop_strings
        self._without_stop = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._detokenizer = detokenizer
        self._grammar = grammar
        self._text = ""
        self._released = 0
        self.budget = budget
        self.reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        """The stop string or the token that ended the request; `None` for the end of the grammar and for length."""

    @property
    def text(self) -> str:
        """All complete text so far; after the end, exactly the output text."""
        return self._text

    def push(self, token: int) -> FinishReason | None:
        """Delivers one token; returns why the request ends with it, or `None`."""
        assert self.reason is None, "nothing is delivered after the end"
        self.budget -= 1
        # A stop string needs a token after the first `min_tokens`, as an end token does: the sampler masks those.
        self._without_stop -= 1
        complete = self._grammar is not None and self._grammar.push(token)
        start = len(self._text)
        if token in self._ending_ids:
            self.stopped_by = token
            if self._include_stop:
                self._text += self._detokenizer.push(token)
                start = len(self._text)  # the token ends the text before its own letters could complete a stop string
            return self._end(FinishReason.STOP, start)
        self._text += self._detokenizer.push(token)
        if self._cut_at_stop_string(start):
            self.reason = FinishReason.STOP
        elif complete:
            return self._end(FinishReason.STOP, len(self._text))
        elif self.budget == 0:
            return self._end(FinishReason.LENGTH, len(self._text))
        return self.reason

    def _end(self, reason: FinishReason, start: int) -> FinishReason:
        """Ends here; text that was waiting for more tokens is complete now, and may complete a stop string."""
        self._text += self._detokenizer.flush()
        self.reason = FinishReason.STOP if self._cut_at_stop_string(start) else reason
        return self.reason

    def _cut_at_stop_string(self, start: int) -> bool:
        """Cuts the text at the stop string that is first complete in `text[start:]`; of several the longest."""
        if not self._stop or self._without_stop >= 0:
            return False
        found = [(self._text.find(stop, max(0, start - len(stop) + 1)), stop) for stop in self._stop]
        places = [(place + len(stop), place, stop) for place, stop in found if place >= 0]
        if not places:
            return False
        end, place, self.stopped_by = min(places)
        self._text = self._text[: end if self._include_stop else place]
        return True

    def release(self) -> str:
        """Text that may be shown now and was not before: what could still become a stop string is held back."""
        end = len(self._text) if self.reason is not None else len(self._text) - self._undecided()
        delta = self._text[self._released : max(end, self._released)]
        self._released += len(delta)
        return delta

    def abort(self, reason: FinishReason) -> None:
        """Ends from outside; text that was held back stays out of the output."""
        self.reason = reason
        self._text = self._text[: self._released]

    def _undecided(self) -> int:
        """Length of the longest end of the text that a stop string starts with."""
        if not self._stop or self._include_stop:
            return 0
        longest = max(len(stop) - 1 for stop in self._stop)
        for length in range(min(longest, len(self._text)), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0
