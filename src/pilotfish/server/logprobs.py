"""Log probabilities in OpenAI's two shapes. Owns how a token is written there, and where it begins in the text."""

from collections.abc import Sequence

from pilotfish.engine.detokenizer import Detokenizer
from pilotfish.engine.outputs import Logprob
from pilotfish.models.tokenizer import BYTE_LEVEL_ALPHABET, Tokenizer
from pilotfish.server.replies import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

_INCOMPLETE = "\ufffd"


class LogprobWriter:
    """Writes the log probabilities of one sample, in order, as its tokens come.

    Args:
        tokenizer: the model's.
        prompt: the prompt's token ids.
        start: where the output begins in the choice's text.
        skip_special_tokens: whether control tokens have no text.
        top: how many alternatives were asked for.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], *, start: int, skip_special_tokens: bool, top: int
    ) -> None:
        self._tokenizer = tokenizer
        self._offset = start
        self._top = top
        self._waits = False
        # A stop string that is undecided holds text back; where a token begins in the text does not wait for that.
        self._text = Detokenizer(lambda ids: tokenizer.decode(ids, skip_special_tokens=skip_special_tokens), prompt)

    def chat(self, ids: Sequence[int], found: Sequence[dict[int, Logprob]]) -> ChatLogprobs:
        """Of the tokens that came now, for a chat."""
        content = []
        for token, own in zip(ids, found, strict=True):
            alternatives = [self._named(other, own[other]) for other in ranked(own, self._top)]
            named = self._named(token, own[token])
            content.append(
                TokenLogprob(token=named.token, logprob=named.logprob, bytes=named.bytes, top_logprobs=alternatives)
            )
        return ChatLogprobs(content=content)

    def completion(self, ids: Sequence[int], found: Sequence[dict[int, Logprob]]) -> CompletionLogprobs:
        """Of the tokens that came now, for a completion."""
        offsets = [self._begins(token, own[token].decoded_token) for token, own in zip(ids, found, strict=True)]
        return CompletionLogprobs(
            tokens=[own[token].decoded_token for token, own in zip(ids, found, strict=True)],
            token_logprobs=[own[token].logprob for token, own in zip(ids, found, strict=True)],
            top_logprobs=[top_by_text(own, self._top) for own in found] if self._top else None,
            text_offset=offsets,
        )

    def _begins(self, token: int, text: str) -> int:
        """Where the next token begins; all tokens of one character begin with it."""
        piece = self._text.push(token)
        # What comes after parts of a character that never became one brings their text along.
        before = len(piece) - len(text) if self._waits and piece.endswith(text) else 0
        begins = self._offset + before
        self._offset += len(piece)
        self._waits = not piece
        return begins

    def _named(self, token: int, own: Logprob) -> TopLogprob:
        written = token_bytes(self._tokenizer, token, own.decoded_token)
        return TopLogprob(
            token=own.decoded_token, logprob=own.logprob, bytes=None if written is None else list(written)
        )


def ranked(found: dict[int, Logprob], top: int) -> list[int]:
    """The ids of the `top` most probable tokens, best first."""
    return sorted((token for token, own in found.items() if own.rank <= top), key=lambda token: found[token].rank)


def top_by_text(found: dict[int, Logprob], top: int) -> dict[str, float]:
    """The most probable tokens by their text; of several with one text (parts of characters) the most probable."""
    named: dict[str, float] = {}
    for token in ranked(found, top):
        named.setdefault(found[token].decoded_token, found[token].logprob)
    return named


def token_bytes(tokenizer: Tokenizer, token: int, text: str) -> bytes | None:
    """The bytes of a token, also of one that is a part of a character; `None` where its spelling does not tell them."""
    if _INCOMPLETE not in text:
        return text.encode()
    spelled = tokenizer.token(token) or ""
    if len(spelled) == 6 and spelled.startswith("<0x") and spelled.endswith(">"):
        return bytes([int(spelled[3:5], 16)])
    letters = [BYTE_LEVEL_ALPHABET.get(letter) for letter in spelled]
    known = [byte for byte in letters if byte is not None]
    return bytes(known) if known and len(known) == len(letters) else None
