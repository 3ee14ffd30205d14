"""How close the native executor is to PyTorch in float32, prompt by prompt: logits and perplexity.

    python benchmarks/closeness.py QUESTIONS.jsonl [--prompts 60] [--tokens 512] [--json figures.json]

Each storage of the native executor reads the same prompts (the first turns, plain text, at most so many tokens of
each) as the PyTorch executor in float32 on the same model. Prints, for each storage, the largest difference of a logit,
of the prompts' perplexities the largest and the mean relative difference, and the perplexity of all of them together.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pilotfish.bench.provenance import provenance
from pilotfish.bench.questions import by_turns_of_categories, load_questions
from pilotfish.models.base import Executor, Segment
from pilotfish.models.loading import load_model

MODEL = "smollm2-135m-instruct"
STORAGES = ("int8", "bfloat16", "bfloat16-compute", "float32")
PASS_ROWS = 128


def logits_of(executor: Executor, tokens: Sequence[int]) -> Tensor:
    """Of every row of a text, in passes of some rows."""
    sequence = executor.open(len(tokens))
    found = []
    for start in range(0, len(tokens), PASS_ROWS):
        chunk = tokens[start : start + PASS_ROWS]
        found.append(executor.forward([Segment(sequence, chunk)]).logits.clone())
        executor.keep(sequence, range(len(chunk)))
    executor.close(sequence)
    return torch.cat(found)


def surprise(logits: Tensor, tokens: Sequence[int]) -> float:
    """Minus the log-probability of all tokens but the first, in float64."""
    rows = logits[:-1].double().log_softmax(-1)
    return -float(rows.gather(1, torch.tensor(tokens[1:])[:, None]).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=512, help="longer prompts lose their end")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    reference = load_model(MODEL, executor="torch", threads=options.threads)
    executors = {
        storage: load_model(MODEL, executor="native", weights=storage, threads=options.threads).executor
        for storage in STORAGES
    }
    vocab_size = reference.tokenizer.vocab_size
    lengths: list[int] = []
    expected: list[float] = []
    found: dict[str, list[float]] = {storage: [] for storage in STORAGES}
    furthest = dict.fromkeys(STORAGES, 0.0)
    for question in by_turns_of_categories(load_questions(options.questions))[: options.prompts]:
        tokens = reference.tokenizer.encode(question.turns[0])[: options.tokens]
        true = logits_of(reference.executor, tokens)[:, :vocab_size]
        lengths.append(len(tokens) - 1)
        expected.append(surprise(true, tokens))
        for storage, executor in executors.items():
            own = logits_of(executor, tokens)[:, :vocab_size]
            furthest[storage] = max(furthest[storage], float((own - true).abs().max()))
            found[storage].append(surprise(own, tokens))
        print(f"{len(lengths)} of {options.prompts}", file=sys.stderr)
    whole = sum(lengths)
    print(
        f"{len(lengths)} prompts, {whole} tokens; PyTorch float32: perplexity {math.exp(sum(expected) / whole):.4f}\n"
    )
    print("| storage | largest difference of a logit | of a prompt's perplexity: largest | mean | perplexity of all |")
    print("| --- | ---: | ---: | ---: | ---: |")
    figures = {}
    for storage in STORAGES:
        each = [
            abs(math.expm1((own - true) / length))
            for own, true, length in zip(found[storage], expected, lengths, strict=True)
        ]
        perplexity = math.exp(sum(found[storage]) / whole)
        mean = sum(each) / len(each)
        print(f"| {storage} | {furthest[storage]:.2e} | {max(each):.1e} | {mean:.1e} | {perplexity:.4f} |")
        figures[storage] = {"logit": furthest[storage], "largest": max(each), "mean": mean, "perplexity": perplexity}
    if options.json is not None:
        record = {"figures": figures, "prompts": len(lengths), "tokens": whole, **provenance(0)}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
