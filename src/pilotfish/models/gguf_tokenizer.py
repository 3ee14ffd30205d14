"""Turns the tokenizer inside a GGUF into an ordinary tokenizer directory in the user's cache, once.

Owns what llama.cpp's `tokenizer.ggml.*` keys mean, in terms of the `tokenizers` library. Knows no weights. Written out
here because general converters know `tokenizer.ggml.pre` for some types only and fall back to GPT-2's splitting in
silence; a tokenizer that splits differently from the model's own is refused here by name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from pilotfish.errors import CorruptModelError, UnsupportedModelError
from pilotfish.models.cache import cache_dir, new_directory

CONVERSION_VERSION = 1
"""Part of the cache's path: a change to this module's result must raise it."""

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6
PADDING_TOKEN = re.compile(r"\[PAD\d+\]")
"""What llama.cpp's converter calls the rows of a padded embedding; no tokenizer knows them."""

SPACE = "▁"
SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True, slots=True)
class _Splitting:
    """How a byte-level vocabulary cuts text before it merges.

    Attributes:
        pattern: pieces of text to keep apart; `None` is GPT-2's own pattern.
        single_digits: every digit stands alone, before anything else.
        compose: NFC normalisation first.
        whole_words: a piece that is a token needs no merges.
        add_bos: default of `tokenizer.ggml.add_bos_token`.
    """

    pattern: str | None = None
    single_digits: bool = False
    compose: bool = False
    whole_words: bool = False
    add_bos: bool = False


_WORDS_AND_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _Splitting(_WORDS_AND_DIGITS.format(digits="{1,3}"), whole_words=True, add_bos=True)
_QWEN2 = _Splitting(_WORDS_AND_DIGITS.format(digits=""), compose=True)
SPLITTINGS = {
    "gpt-2": _Splitting(),
    "smollm": _Splitting(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def gguf_tokenizer_directory(path: Path, metadata: Mapping[str, Any], checksum: str) -> Path:
    """The directory with the converted tokenizer; made when the cache does not have it.

    Args:
        checksum: of the GGUF file; names the directory.

    Raises:
        UnsupportedModelError: a kind of tokenizer or pre-tokenizer that we do not know, named.
        CorruptModelError: the tokenizer's metadata is incomplete or contradicts itself.
    """
    directory = cache_dir() / "tokenizers" / f"v{CONVERSION_VERSION}-{checksum}"
    if directory.is_dir():
        return directory
    vocabulary = _Vocabulary(path, metadata)
    tokenizer = vocabulary.build()
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: vocabulary.special_token(key) for name, key in SPECIAL_TOKENS.items()},
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    with new_directory(directory) as partial:
        tokenizer.save(str(partial / "tokenizer.json"), pretty=False)
        (partial / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
    return directory


class _Vocabulary:
    """The token table of one file."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.metadata = metadata
        self.kind = self._get("model", str)
        self.tokens: list[str] = self._get("tokens", list)
        self.types: list[int] = self._get("token_type", list, [1] * len(self.tokens))
        if len(self.types) != len(self.tokens) or not all(isinstance(token, str) for token in self.tokens):
            raise CorruptModelError(f"{path}: the token table makes no sense: {len(self.types)} types for its tokens")
        if self.kind == "llama" and str(metadata.get("general.architecture")).startswith("gemma"):
            self._respell_spaces()
        self.ids: dict[str, int] = {}
        for token_id, (token, token_type) in enumerate(zip(self.tokens, self.types, strict=True)):
            if token_type == UNUSED and PADDING_TOKEN.fullmatch(token):
                continue
            if token in self.ids:
                raise CorruptModelError(f"{path}: token {token!r} has two ids, {self.ids[token]} and {token_id}")
            self.ids[token] = token_id

    def build(self) -> Tokenizer:
        if self.kind == "gpt2":
            tokenizer, add_bos = self._byte_level()
        elif self.kind == "llama":
            tokenizer, add_bos = self._sentencepiece()
        else:
            raise UnsupportedModelError(
                f"{self.path}: tokenizer {self.kind!r} is not covered; expected 'gpt2' (byte-level BPE) or 'llama'"
            )
        added = {CONTROL: True, USER_DEFINED: False}
        for token_type, special in added.items():
            tokens = [token for token, kind in zip(self.tokens, self.types, strict=True) if kind == token_type]
            # Runs of spaces are reached by merges; as added tokens they would match the text's own marks.
            entries = [
                AddedToken(token, special=special, normalized=False) for token in tokens if set(token) != {SPACE}
            ]
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(entries)
        bos = self.special_token("bos_token_id") if self._get("add_bos_token", bool, add_bos) else None
        eos = self.special_token("eos_token_id") if self._get("add_eos_token", bool, False) else None
        if bos or eos:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*([bos] if bos else []), "$A", *([eos] if eos else [])],
                special_tokens=[(token, self.ids[token]) for token in (bos, eos) if token],
            )
        return tokenizer

    def special_token(self, key: str) -> str | None:
        """The text of the token that a `tokenizer.ggml.<key>` names."""
        token_id: int = self._get(key, int, -1)
        if token_id == -1:
            return None
        if not 0 <= token_id < len(self.tokens):
            raise CorruptModelError(f"{self.path}: tokenizer.ggml.{key} is {token_id}, of {len(self.tokens)} tokens")
        return self.tokens[token_id]

    def _get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, kind):
            raise CorruptModelError(
                f"{self.path}: metadata 'tokenizer.ggml.{key}': got {type(value).__name__}, expected {kind.__name__}"
            )
        return value

    def _byte_level(self) -> tuple[Tokenizer, bool]:
        pre = self._get("pre", str, "none")
        if pre not in SPLITTINGS:
            raise UnsupportedModelError(
                f"{self.path}: pre-tokenizer {pre!r} is not covered; expected one of {', '.join(SPLITTINGS)}"
            )
        splitting = SPLITTINGS[pre]
        merges = []
        for merge in self._get("merges", list):
            left, _, right = str(merge).partition(" ")
            if left + right not in self.ids or left not in self.ids or right not in self.ids:
                raise CorruptModelError(f"{self.path}: merge {merge!r} does not join two tokens into a third")
            merges.append((left, right))
        tokenizer = Tokenizer(BPE(self.ids, merges, ignore_merges=splitting.whole_words))
        steps: list[Any] = []
        if splitting.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if splitting.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if splitting.compose:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, splitting.add_bos

    def _sentencepiece(self) -> tuple[Tokenizer, bool]:
        prefix = self._get("add_space_prefix", bool, True)
        model = BPE(
            self.ids,
            self._merges_by_score(),
            unk_token=self.special_token("unknown_token_id"),
            fuse_unk=True,
            byte_fallback=True,
        )
        tokenizer = Tokenizer(model)
        spaces: list[Any] = [normalizers.Prepend(SPACE)] if prefix else []
        tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", SPACE)])
        parts: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
        return tokenizer, True

    def _merges_by_score(self) -> list[tuple[str, str]]:
        """SentencePiece joins the pair whose result scores best; the same as merges ranked by that score.

        Gemma's scores do not follow its merges, the order of its tokens does.
        """
        by_position = str(self.metadata.get("general.architecture")).startswith("gemma")
        scores = [] if by_position else self._get("scores", list)
        if not by_position and len(scores) != len(self.tokens):
            raise CorruptModelError(f"{self.path}: {len(scores)} scores for {len(self.tokens)} tokens")
        ranked = []
        for token, token_id in self.ids.items():
            if self.types[token_id] in (UNKNOWN, CONTROL, BYTE):
                continue
            rank = token_id if by_position else -scores[token_id]
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in self.ids and right in self.ids:
                    ranked.append((rank, self.ids[left], self.ids[right], left, right))
        ranked.sort()
        return [(left, right) for *_, left, right in ranked]

    def _respell_spaces(self) -> None:
        """llama.cpp's converter writes Gemma's runs of spaces as spaces; the tokenizer itself has them as marks."""
        present = set(self.tokens)
        for token_id, token in enumerate(self.tokens):
            marks = SPACE * len(token)
            if token and not token.strip(" ") and marks not in present:
                self.tokens[token_id] = marks
