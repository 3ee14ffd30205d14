"""Where a request ends: EOS, stop tokens, stop strings, token budget, context limit.

Owns a request's output text and decides token by token, exactly as plain decoding would, so that a block of accepted
tokens is cut at the earliest end before anything of it is committed. Knows no drafts and no caches.
"""

from collections.abc import Sequence

from pilotfish.engine.detokenizer import Detokenizer
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import FinishReason


class Ending:
    """The end conditions of one request and the text they are checked against.

    Args:
        params: `stop`, `stop_token_ids`, `ignore_eos` are used.
        eos_ids: the model's end-of-sequence ids.
        budget: tokens that may be delivered, from `max_tokens` and the context; at least 1.
        detokenizer: decodes the output.
    """

    def __init__(self, params: SamplingParams, eos_ids: Sequence[int], budget: int, detokenizer: Detokenizer) -> None:
        ends = set(params.stop_token_ids)
        if not params.ignore_eos:
            ends.update(eos_ids)
        self._ending_ids = frozenset(ends)
        self._stop = params.stop_strings
        self._detokenizer = detokenizer
        self._text = ""
        self._released = 0
        self.budget = budget
        self.reason: FinishReason | None = None

    @property
    def text(self) -> str:
        """All complete text so far; after the end, exactly the output text."""
        return self._text

    def push(self, token: int) -> FinishReason | None:
        """Delivers one token; returns why the request ends with it, or `None`."""
        assert self.reason is None, "nothing is delivered after the end"
        self.budget -= 1
        if token in self._ending_ids:
            return self._end(FinishReason.STOP)
        start = len(self._text)
        self._text += self._detokenizer.push(token)
        if self._cut_at_stop_string(start):
            self.reason = FinishReason.STOP
        elif self.budget == 0:
            return self._end(FinishReason.LENGTH)
        return self.reason

    def _end(self, reason: FinishReason) -> FinishReason:
        """Ends here; text that was waiting for more tokens is complete now, and may complete a stop string."""
        start = len(self._text)
        self._text += self._detokenizer.flush()
        self.reason = FinishReason.STOP if self._cut_at_stop_string(start) else reason
        return self.reason

    def _cut_at_stop_string(self, start: int) -> bool:
        """Cuts the text before the earliest stop string that reaches into `text[start:]`."""
        places = [self._text.find(stop, max(0, start - len(stop) + 1)) for stop in self._stop]
        found = min((place for place in places if place >= 0), default=None)
        if found is None:
            return False
        self._text = self._text[:found]
        return True

    def release(self) -> str:
        """Text that may be shown now and was not before: what could still become a stop string is held back."""
        end = len(self._text) if self.reason is not None else len(self._text) - self._undecided()
        delta = self._text[self._released : max(end, self._released)]
        self._released += len(delta)
        return delta

    def _undecided(self) -> int:
        """Length of the longest end of the text that a stop string starts with."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(self._text)), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0
