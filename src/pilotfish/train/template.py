"""What a model's chat template writes around user turns, as the generator needs it. Owns the taking apart of templates.

A template is a black box: it is shown a conversation of markers, and what it wrote between them is the answer.
"""

from collections.abc import Sequence

from pilotfish.errors import InvalidInputError
from pilotfish.models.tokenizer import Tokenizer

_USER, _ANSWER, _NEXT = "firstmarkerquestion", "secondmarkeranswer", "thirdmarkerquestion"


class TurnTemplate:
    """The fixed parts of a conversation.

    Attributes:
        before: what comes before the first user turn.
        between: what comes after an answer and before the next user turn, the answer's end included.
        after: what comes after a user turn, up to the start of the answer.

    Raises:
        InvalidInputError: the model has no chat template, or it does not write turns out as they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        messages = [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": _NEXT},
        ]
        text = tokenizer.decode(tokenizer.chat(messages), skip_special_tokens=False)
        parts = [text]
        for marker in (_USER, _ANSWER, _NEXT):
            parts[-1:] = parts[-1].split(marker)
        if len(parts) != 4:
            raise InvalidInputError(f"the chat template of {tokenizer.name} does not write out each turn once")
        self.before, _, self.between, self.after = parts

    def opening(self, text: str) -> list[int]:
        """Ids of a first user turn, up to the start of the answer."""
        return self._tokenizer.chat([{"role": "user", "content": text}])

    def opening_prefix(self, starter: str) -> list[int]:
        """Ids after which the model goes on with a first user turn that begins so."""
        return self._encode(self.before + starter)

    def next_prefix(self) -> list[int]:
        """Ids after an answer, without its end, after which the model goes on with a user turn."""
        return self._encode(self.between)

    def next_turn(self, text: str) -> list[int]:
        """Ids of a further user turn, from the answer's end to the start of the next answer."""
        return self._encode(self.between + text + self.after)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def without_end(answer: Sequence[int], end_ids: Sequence[int]) -> list[int]:
    """An answer without its end-of-sequence token."""
    return list(answer[:-1] if answer and answer[-1] in end_ids else answer)
