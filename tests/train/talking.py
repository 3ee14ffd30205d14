"""A tiny target that says words and comes to an end, so that it can invent prompts; and data sets that it makes."""

from pathlib import Path
from typing import Any

import torch

from pilotfish.models.loading import Model, load_model
from pilotfish.models.tokenizer import load_tokenizer
from pilotfish.train.data import make_data
from pilotfish.train.manifest import Manifest
from pilotfish.train.settings import DataSettings
from tests.models.tiny_models import EOS_ID, tiny_tokenizer, tiny_transformers_model

VOCAB, LAYERS, HIDDEN = 384, 3, 32
GOAL = 200
"""Answer tokens; five or six shards of `settings`."""


def talking_target(path: Path, seed: int = 0) -> Path:
    """A Hugging Face directory. One direction of the hidden state is the same everywhere and decides which tokens can
    come: pieces of words, and the end one time in fifteen; the others decide among them."""
    tiny_tokenizer(path)
    words = {
        token
        for token, text in load_tokenizer(path).vocabulary().items()
        if len(text) > 1 and text.replace("Ġ", "").isalpha() and text.isascii() | text.startswith("Ġ")
    }
    model = tiny_transformers_model(
        seed=seed, num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=48, vocab_size=VOCAB,
        max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name and "norm" not in name:
                parameter.mul_(0.2)
            if "norm" in name:
                parameter.fill_(1.0)
        embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
        embedding[:, 0] = 6.0
        model.model.embed_tokens.weight.copy_(embedding)
        head = 0.4 * torch.randn(VOCAB, HIDDEN, generator=generator)
        head[:, 0] = -10.0
        head[sorted(words), 0] = 0.0
        head[EOS_ID] = 0.0
        head[EOS_ID, 0] = 0.9
        model.lm_head.weight.copy_(head)
    model.save_pretrained(path)
    return path


def talking_model(path: Path, seed: int = 0) -> Model:
    return load_model(talking_target(path, seed), threads=1)


def settings(**values: Any) -> DataSettings:
    """Small ones: six conversations a shard."""
    small: dict[str, Any] = {
        "batch": 6, "max_prompt_tokens": 24, "max_answer_tokens": 12, "max_tokens": 120, "follow_ups": 0.5,
        "boundaries": (1, LAYERS), "held_out_share": 0.3,
    }  # fmt: skip
    return DataSettings(**{**small, **values})


def make(model: Model, directory: Path, goal: int = GOAL, **values: Any) -> Manifest:
    return make_data(model, settings(**values), directory, goal, weights="float32", origin={"command": "test"})


def files(directory: Path) -> dict[str, bytes]:
    """What a data set consists of; the record of how it was made left out."""
    return {
        path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.name not in ("runs.jsonl", "lock")
    }
