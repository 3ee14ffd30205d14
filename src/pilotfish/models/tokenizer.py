"""Text to token ids and back, chat templates, and the question whether two models share a tokenizer.

Owns the only use of `transformers`' tokenizers. Knows no weights. Incremental detokenisation is the engine's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pilotfish.errors import (
    CorruptModelError,
    InvalidInputError,
    ModelNotFoundError,
    PromptError,
    TokenizerMismatchError,
)

VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
COSMETIC_OPTIONS = {"trim_offsets"}
"""Options of pipeline steps that change offsets into the text and no id."""


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        name: where it came from, for messages.
        vocab_size: the highest id it knows plus one; a model's padded embedding may have more rows.
        bos_id, eos_id: `None` where there is none.
        special_ids: control tokens, which `decode` leaves out.
    """

    def __init__(self, fast: Any, name: str) -> None:
        # Some files ask for both. The library would put that right at the first call, which is no time to change a
        # tokenizer that other threads are using.
        fast.backend_tokenizer.no_truncation()
        fast.backend_tokenizer.no_padding()
        self._fast = fast
        # A byte-level decoder joins the tokens' bytes, whatever they are, and reads the whole as UTF-8.
        self._by_bytes = type(fast.backend_tokenizer.decoder).__name__ == "ByteLevel"
        self._bytes = _TokenBytes(fast, skip_special=False)
        self._shown_bytes = _TokenBytes(fast, skip_special=True)
        self.name = name
        self.vocab_size: int = max(fast.get_vocab().values()) + 1
        self.bos_id: int | None = fast.bos_token_id
        self.eos_id: int | None = fast.eos_token_id
        added = fast.added_tokens_decoder
        self.special_ids: frozenset[int] = frozenset(fast.all_special_ids) | {
            token_id for token_id, token in added.items() if token.special
        }

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with `add_special_tokens`, those the model expects around it (a BOS, for some)."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids. An incomplete UTF-8 character comes out as U+FFFD."""
        if not self._by_bytes:
            return self.decode_by_library(ids, skip_special_tokens=skip_special_tokens)
        parts = self._shown_bytes if skip_special_tokens else self._bytes
        return b"".join([parts[token_id] for token_id in ids]).decode("utf-8", "replace")

    def decode_by_library(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """What `decode` must equal: the tokenizer library's own way, which is dear for the few tokens of a round."""
        text: str = self._fast.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; `None` for an id it does not know."""
        token: str | None = self._fast.convert_ids_to_tokens(token_id)
        return token

    @property
    def has_chat_template(self) -> bool:
        return self._fast.chat_template is not None

    def chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, by the model's own chat template.

        Args:
            messages: each with the keys "role" and "content", both text.
            add_generation_prompt: end with the start of the assistant's answer.

        Raises:
            InvalidInputError: the model has no chat template.
            PromptError: a message is malformed (named), or the template refuses the conversation.
        """
        if not self.has_chat_template:
            raise InvalidInputError(f"{self.name} has no chat template; use `generate` with a plain prompt")
        require_messages(messages)
        from jinja2 import TemplateError

        try:
            text = self._fast.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(f"the chat template of {self.name} refuses these messages: {error}") from None
        return self.encode(text, add_special_tokens=False)

    def to_json(self) -> str:
        """The whole tokenizer in the form of `tokenizer.json`, tokens added elsewhere included."""
        text: str = self._fast.backend_tokenizer.to_str()
        return text

    def vocabulary(self) -> dict[int, str]:
        """Every token by id, added ones included."""
        return {token_id: token for token, token_id in self._fast.get_vocab().items()}

    def pipeline(self) -> dict[str, Any]:
        """Merges, normaliser, pre-tokenizer and decoder in a form that can be compared."""
        parts = json.loads(self._fast.backend_tokenizer.to_str())
        model = parts["model"]
        return {
            "kind of model": model.get("type"),
            "merges": model.get("merges"),
            "ignore_merges": bool(model.get("ignore_merges")),
            "byte_fallback": bool(model.get("byte_fallback")),
            "normalizer": _steps(parts.get("normalizer"), "normalizers"),
            "pre_tokenizer": _steps(parts.get("pre_tokenizer"), "pretokenizers"),
            # A byte-level decoder reads none of its options.
            "decoder": [
                {"type": "ByteLevel"} if step["type"] == "ByteLevel" else step
                for step in _steps(parts.get("decoder"), "decoders")
            ],
        }


class _TokenBytes(dict[int, bytes]):
    """The bytes that each token stands for under a byte-level decoder; looked up once."""

    def __init__(self, fast: Any, *, skip_special: bool) -> None:
        super().__init__()
        self._fast = fast
        self._skip_special = skip_special

    def __missing__(self, token_id: int) -> bytes:
        token = self._fast.convert_ids_to_tokens(token_id)
        # The library says itself which tokens it leaves out; every other one has some text.
        hidden = self._skip_special and not self._fast.decode([token_id], skip_special_tokens=True)
        if token is None or hidden:
            part = b""
        else:
            spelled = [BYTE_LEVEL_ALPHABET.get(character) for character in token]
            known = [byte for byte in spelled if byte is not None]
            part = bytes(known) if len(known) == len(spelled) else token.encode("utf-8")
        self[token_id] = part
        return part


def _byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for, as in GPT-2.

    Bytes that print stand for themselves; the others, in order, are written as the characters from U+0100 on.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


BYTE_LEVEL_ALPHABET = _byte_characters()


@dataclass(frozen=True, slots=True)
class TokenizerDifference:
    """The first thing in which two tokenizers differ.

    Attributes:
        token_id: the lowest id that stands for different tokens; `None` when the vocabularies agree.
        part: "vocabulary", or the part of the pipeline.
        target, draft: what each has there; `None` where it has nothing.
    """

    token_id: int | None
    part: str
    target: str | None
    draft: str | None

    def __str__(self) -> str:
        where = self.part if self.token_id is None else f"token {self.token_id}"
        return f"{where} is {self.target!r} in the target and {self.draft!r} in the draft model"


def load_tokenizer(path: str | Path, *, name: str | None = None) -> Tokenizer:
    """The tokenizer of a model directory. Prints nothing and reaches for no network.

    Args:
        name: what messages call it; by default the directory's name.

    Raises:
        ModelNotFoundError: the directory has no tokenizer.
        CorruptModelError: its files cannot be read.
    """
    path = Path(path)
    if not any((path / name).is_file() for name in VOCABULARY_FILES):
        raise ModelNotFoundError(f"{path} has no tokenizer; expected {VOCABULARY_FILES[0]} in it")
    with _quiet_transformers():
        if (path / "config.json").is_file() or not (path / "tokenizer.json").is_file():
            from transformers import AutoTokenizer as Loader
        else:  # no model type to go by, so no need to import the table of all of them (0.3 s)
            from transformers import PreTrainedTokenizerFast as Loader
        try:
            fast = Loader.from_pretrained(str(path), local_files_only=True)
        # The tokenizers library raises bare `Exception` for a damaged tokenizer.json.
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CorruptModelError(f"{path}: the tokenizer cannot be read: {reason}") from error
    if not fast.is_fast:
        raise CorruptModelError(f"{path}: got a slow tokenizer, expected one with tokenizer.json")
    return Tokenizer(fast, name or path.name)


def same_tokenizer(target: Tokenizer, draft: Tokenizer) -> TokenizerDifference | None:
    """The first difference between two tokenizers, `None` when ids mean the same to both.

    Compares what the tokenizers know, id by id, and how they cut and join text. The sizes of the models' embeddings
    play no part: padding is no difference. Neither is what they add around a text (BOS), since a draft model is given
    the target's ids.
    """
    ours, theirs = target.vocabulary(), draft.vocabulary()
    if ours != theirs:
        token_id = min(
            token_id for token_id in ours.keys() | theirs.keys() if ours.get(token_id) != theirs.get(token_id)
        )
        return TokenizerDifference(token_id, "vocabulary", ours.get(token_id), theirs.get(token_id))
    for (part, here), there in zip(target.pipeline().items(), draft.pipeline().values(), strict=True):
        if here == there:
            continue
        if isinstance(here, list) and isinstance(there, list):
            pairs = enumerate(zip_longest(here, there))
            number, (left, right) = next(item for item in pairs if item[1][0] != item[1][1])
            return TokenizerDifference(None, f"{part}[{number}]", _shown(left), _shown(right))
        return TokenizerDifference(None, part, _shown(here), _shown(there))
    return None


def require_same_tokenizer(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuses a draft model whose ids mean something else.

    Raises:
        TokenizerMismatchError: names both models and the first difference.
    """
    difference = same_tokenizer(target, draft)
    if difference is not None:
        raise TokenizerMismatchError(
            f"the draft model {draft.name} has another tokenizer than the target {target.name}: {difference}; "
            "choose a draft model of the same family"
        )


def require_messages(messages: Any) -> None:
    """Refuses what is not a conversation.

    Raises:
        PromptError: says which message lacks which key, or has something else than text there.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise PromptError(f"messages: got {messages!r}, expected a non-empty list of role and content")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise PromptError(f"message {number}: got {type(message).__name__}, expected a dict with role and content")
        for key in ("role", "content"):
            value = message.get(key)
            if not isinstance(value, str):
                got = f"{key} of type {type(value).__name__}" if key in message else f"no {key!r}"
                raise PromptError(f"message {number}: got {got}, expected {key!r} as text")


def _steps(part: Mapping[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """A pipeline part as a flat list of steps without cosmetic options."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for member in part[members] for step in _steps(member, members)]
    return [{key: value for key, value in part.items() if key not in COSMETIC_OPTIONS}]


def _shown(part: Any) -> str | None:
    if part is None:
        return None
    return " ".join(part) if isinstance(part, list) else json.dumps(part, ensure_ascii=False)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keeps transformers' own advice off the terminal while it loads; errors still raise."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
