"""Ids, text and endings with speculation equal those without: the full matrix on the real model.

Every prompt x sampling parameters x drafter x draft length, alone and in batches of mixed length in any order. Prints
one line per cell and ends with 1 if anything differs.

    python benchmarks/identity_matrix.py QUESTIONS.jsonl [--prompts 32] [--prompt-tokens 600] [--max-tokens 32]
        [--executor native|torch]

On an executor that is not exact a difference counts only where the target's best two scores lie further apart than
1e-4; those that do not are printed with their margin.
"""

import argparse
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.engine.engine import Engine
from pilotfish.models.base import Executor, Segment
from pilotfish.models.files import resolve
from pilotfish.models.loading import load_model
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.torch_executor import TorchExecutor
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.sampler import Sampler

MODEL = "smollm2-135m-instruct"
DRAFT_LAYERS = 4
BATCH = 8
BOUND = 1e-4
SETTINGS = {
    "greedy": {"temperature": 0},
    "T=0.7": {"temperature": 0.7},
    "T=1": {"temperature": 1.0},
    "T=1 top_p=0.9": {"temperature": 1.0, "top_p": 0.9},
    "T=1 top_k=40": {"temperature": 1.0, "top_k": 40},
}


def run(engine, prompts, params, draft_len=None):
    requests = {}
    for delivered in engine.run(prompts, params, draft_len):
        requests.update((request.key, request) for request in delivered)
    return [requests[key] for key in sorted(requests)]


def margin(executor: Executor, tokens: list[int], sampler: Sampler, prompt_length: int) -> float:
    """Distance between the best two (score + noise) of the token after `tokens`, run plainly."""
    sequence = executor.open(len(tokens))
    logits = executor.forward([Segment(sequence, tokens, logits_from=len(tokens) - 1)]).logits[:, : sampler.vocab_size]
    executor.close(sequence)
    prefix = Prefix(tokens, prompt_length)
    best = sampler.choices(logits, [prefix])[0]
    for bump in (1e-6, 1e-5, BOUND, 1e-3, 1e-2, 1e-1, 1.0, 10.0):
        lowered = logits.clone()
        lowered[0, best] -= bump
        if sampler.choices(lowered, [prefix])[0] != best:
            return bump
    return float("inf")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("questions", type=Path)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=600, help="longer prompts lose their beginning")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--executor", default="native")
    options = parser.parse_args()

    model = load_model(MODEL, executor=options.executor)
    config, weights = model.files.config, resolve(MODEL).weights
    draft_config = replace(config, layers=config.layers[:DRAFT_LAYERS])
    if options.executor == "native":
        draft: Executor = NativeExecutor(draft_config, weights)
    else:
        draft = TorchExecutor(draft_config, weights)

    lines = options.questions.read_text(encoding="utf-8").splitlines()
    step = max(1, len(lines) // options.prompts)
    questions = [json.loads(line) for line in lines[::step]][: options.prompts]
    prompts = [model.tokenizer.chat([{"role": "user", "content": q["turns"][0]}]) for q in questions]
    prompts = [prompt[-options.prompt_tokens :] for prompt in prompts]

    def engine(drafter=None):
        tokenizer = model.tokenizer
        return Engine(
            model.executor, tokenizer.decode, tokenizer.vocab_size, model.eos_ids, drafter=drafter, draft_len=8
        )

    drafters = {"ngram": NgramDrafter(1, 4), "draft_model": DraftModelDrafter(draft)}
    failures = cells = near_ties = 0
    for name, values in SETTINGS.items():
        params = [
            SamplingParams(seed=1000 + place, max_tokens=options.max_tokens, **values) for place in range(len(prompts))
        ]
        started = time.monotonic()
        plain = [run(engine(), [prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
        print(
            f"{name}: plain {sum(len(r.output) for r in plain)} tokens, {time.monotonic() - started:.0f} s", flush=True
        )
        for kind, drafter in drafters.items():
            for draft_len in range(1, 9):
                alone = draft_len in (1, 4, 8)
                order = list(range(len(prompts)))
                random.Random(draft_len).shuffle(order)
                size = 1 if alone else BATCH
                drafted = accepted = 0
                for start in range(0, len(order), size):
                    places = order[start : start + size]
                    batch = run(engine(drafter), [prompts[p] for p in places], [params[p] for p in places], draft_len)
                    for place, request in zip(places, batch, strict=True):
                        before = plain[place]
                        drafted += request.counters.drafted_tokens
                        accepted += request.counters.accepted_tokens
                        cells += 1
                        same = (request.output, request.ending.text, request.finish_reason) == (
                            before.output,
                            before.ending.text,
                            before.finish_reason,
                        )
                        if same:
                            continue
                        first = next(
                            i for i, (a, b) in enumerate(zip(before.output, request.output, strict=False)) if a != b
                        )
                        tokens = before.tokens[: before.prompt_length + first]
                        gap = margin(model.executor, tokens, before.sampler, before.prompt_length)
                        tie = not model.executor.exact and gap <= BOUND
                        near_ties += tie
                        failures += not tie
                        print(f"  {kind} k={draft_len} prompt {place}: token {first} differs, margin <= {gap:g}")
                print(
                    f"  {kind} k={draft_len} {'alone' if alone else 'batches'}: {drafted} drafted, {accepted} accepted"
                )
    print(f"{cells} outputs compared, {near_ties} near ties, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
