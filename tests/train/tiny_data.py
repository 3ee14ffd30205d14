"""A tiny target whose text follows a planted pattern, and data sets of it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pilotfish.models.files import resolve
from pilotfish.models.loading import load_model
from pilotfish.train.dataset import DataSet
from pilotfish.train.hidden import compute_states
from pilotfish.train.manifest import Counts, Manifest, ModelFacts, ShardEntry
from pilotfish.train.projection import RoundCosts
from pilotfish.train.settings import DataSettings
from pilotfish.train.shards import FinishedConversation, shard_bytes, shard_name
from tests.models.tiny_models import tiny_tokenizer, tiny_transformers_model

VOCAB, LAYERS, HIDDEN = 384, 4, 32
COSTS = RoundCosts(plain=1.0, passes={1: 0.9, 8: 1.2}, draft=0.05, around=0.1)
"""Made up, so that no test depends on a clock."""


def successor(token: int) -> int:
    """The planted pattern: what the target most likely says next."""
    return (token * 5 + 7) % VOCAB


def planted_target(path: Path, seed: int = 0) -> Path:
    """A Hugging Face directory: small layers, and an LM head that says each token's successor."""
    tiny_tokenizer(path)
    model = tiny_transformers_model(
        seed=seed, num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=48, vocab_size=VOCAB,
        max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "layers" in name and "norm" not in name:
                parameter.mul_(0.3)
            if "norm" in name:
                parameter.fill_(1.0)
        embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
        model.model.embed_tokens.weight.copy_(embedding)
        for token in range(VOCAB):
            model.lm_head.weight[successor(token)] = 1.6 * embedding[token] / embedding[token].norm()
    model.save_pretrained(path)
    return path


def texts(model, count: int, *, seed: int = 0, answer: int = 20) -> list[tuple[list[int], int, float]]:
    """Conversations of the target: tokens, length of the prompt, temperature."""
    from pilotfish.engine.llm import LLM
    from pilotfish.sampling.params import SamplingParams

    llm = LLM(model, speculative_config=None, threads=1)
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, VOCAB, size=int(random.integers(3, 8))).tolist() for _ in range(count)]
    params = [
        SamplingParams(temperature=float(place % 2), seed=place, max_tokens=answer, ignore_eos=True)
        for place in range(count)
    ]
    outputs = llm.generate(prompts, params)
    return [
        ([*prompt, *output.outputs[0].token_ids], len(prompt), own.temperature)
        for prompt, output, own in zip(prompts, outputs, params, strict=True)
    ]


def write_data(
    directory: Path,
    target: Path,
    conversations: Sequence[tuple[list[int], int, float]],
    *,
    boundaries: tuple[int, ...] = tuple(range(LAYERS + 1)),
    per_shard: int = 64,
    held_out_share: float = 0.2,
) -> Path:
    """A data set as the generator writes it."""
    directory.mkdir(parents=True)
    model = load_model(target, threads=1)
    settings = DataSettings(boundaries=boundaries, held_out_share=held_out_share)
    manifest = Manifest(ModelFacts.of(model, "float32"), settings, {"command": "test"})
    for first in range(0, len(conversations), per_shard):
        made = [
            FinishedConversation(
                number=first + place,
                prompt_hash=int.from_bytes(
                    hashlib.sha256(bytes(str(tokens), "ascii")).digest()[:8], "big", signed=True
                ),
                temperature=temperature,
                tokens=tokens,
                loss_mask=[False] * prompt + [True] * (len(tokens) - prompt),
                turns=1,
                ended=False,
                hidden=compute_states(model.executor, tokens, boundaries) if boundaries else {},
            )
            for place, (tokens, prompt, temperature) in enumerate(conversations[first : first + per_shard])
        ]
        content = shard_bytes(made, boundaries, HIDDEN)
        name = shard_name(len(manifest.shards))
        (directory / name).write_bytes(content)
        counts = Counts(
            conversations=len(made),
            tokens=sum(len(each.tokens) for each in made),
            answers=len(made),
            answer_tokens=sum(sum(each.loss_mask) for each in made),
        )
        entry = ShardEntry(name, hashlib.sha256(content).hexdigest(), len(content), first, counts)
        manifest = manifest.with_shard(entry)
    manifest.write(directory)
    return directory


def open_data(directory: Path, target: Path) -> DataSet:
    return DataSet(directory, fingerprint=resolve(target).fingerprint)
