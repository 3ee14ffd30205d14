"""Tiny engines with a real tokenizer, on both executors, for options that need text."""

from functools import cache

from tokenizers import Tokenizer

from pilotfish.drafters.base import Drafter
from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.engine.engine import Engine
from pilotfish.models.base import Executor
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.torch_executor import TorchExecutor
from pilotfish.sampling.grammar import GrammarCompiler
from tests.engine.tiny import similar_draft, tiny_config
from tests.models.memory_weights import random_weights
from tests.models.tiny_models import trained_byte_level

VOCAB = 384
EOS = 2
CONTEXT = 160

_TEXT = trained_byte_level(VOCAB)
TOKENIZER = Tokenizer.from_str(_TEXT)
GRAMMARS = GrammarCompiler(lambda: _TEXT, VOCAB, [EOS])


def decode(ids):
    return TOKENIZER.decode(list(ids), skip_special_tokens=True)


def decode_all(ids):
    return TOKENIZER.decode(list(ids), skip_special_tokens=False)


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@cache
def target(kind: str) -> Executor:
    config = tiny_config(vocab_size=VOCAB, context_length=CONTEXT)
    return {"torch": TorchExecutor, "native": NativeExecutor}[kind](config, random_weights(config))


def drafter(kind: str | None) -> Drafter | None:
    if kind is None:
        return None
    if kind == "ngram":
        return NgramDrafter(1, 3)
    return DraftModelDrafter(similar_draft(vocab_size=VOCAB, context_length=CONTEXT))


def text_engine(kind: str, own: Drafter | None = None, draft_len: int = 4, **options: object) -> Engine:
    return Engine(
        target(kind),
        decode,
        VOCAB,
        [EOS],
        decode_all=decode_all,
        encode=encode,
        grammars=GRAMMARS,
        drafter=own,
        draft_len=draft_len,
        **options,  # type: ignore[arg-type]
    )
