"""Early exit, honestly: for every exit layer of a model the acceptance, the cost and the speed to expect of them.

    python benchmarks/exit_layers.py QUESTIONS.jsonl [--limit 1] [--max-tokens 128] [--weights bfloat16]
        [--confirm LAYER:K ...] [--json figures.json] [--docs docs/choosing.md]

Acceptance does not depend on the machine. The first layers drafted from a true prefix run what the target runs itself,
so one pass per answer, layer by layer with norm and LM head after each, says for every place and exit layer whether the
layer's token is the target's own; how many in a row agree is how far a draft would have been accepted, and the rounds
are counted by walking along the answer. Costs are of this machine: a drafted token is a one-row pass of the first
layers and the LM head, and the verification reuses these rows (`engine/resume.py`). `--confirm` runs the engine itself
with that exit layer and draft length, by turns with plain decoding, beside what the formula of docs/choosing.md gives.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import put_into

from pilotfish.bench.measure import run_request
from pilotfish.bench.provenance import provenance
from pilotfish.bench.questions import load_questions, select
from pilotfish.bench.speed import prompt_of
from pilotfish.bench.totals import Totals, speedup
from pilotfish.engine.llm import LLM
from pilotfish.models.base import Executor, Segment
from pilotfish.models.pass_cost import PREFILL_ROWS
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.sampler import Sampler

MODEL = "smollm2-135m-instruct"
LENGTHS = (1, 2, 3, 4, 6)
CONTEXT = 256
REPEATS = 7
HEADINGS = "| exit layer | tokens that agree | best k | tokens per round | c | c k | verification | expected speed |"
Agreement = list[list[bool]]
"""For each exit layer from 1, for each token of an answer after the first, whether the layer's choice is that token."""


class Costs(NamedTuple):
    """Seconds of parts of the model on one sequence, by exit layer where they depend on it."""

    plain: float
    draft: dict[int, float]
    """The first layers and the LM head, one row."""
    verify: dict[tuple[int, int], float]
    """By exit layer and draft length: the last drafted row's first layers, then the rest with 1 + k rows."""


class Line(NamedTuple):
    """One exit layer's best draft length."""

    layer: int
    agreement: float
    draft_len: int
    tokens_per_round: float
    draft_cost: float
    verify_cost: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_round / (self.draft_len * self.draft_cost + self.verify_cost)


def prefill(target: Executor, tokens: Sequence[int], capacity: int) -> int:
    """A sequence with committed tokens."""
    sequence = target.open(capacity)
    for start in range(0, len(tokens), PREFILL_ROWS):
        chunk = tokens[start : start + PREFILL_ROWS]
        target.forward([Segment(sequence, chunk, logits_from=len(chunk))])
        target.keep(sequence, range(len(chunk)))
    return sequence


def agreement(target: Executor, prompt: Sequence[int], answer: Sequence[int], sampler: Sampler) -> Agreement:
    """Each exit layer's choices along an answer, with the target's noise, against the answer."""
    # The pending token is the answer's first; every later token is drafted from the row before it.
    rows = answer[:-1]
    sequence = prefill(target, prompt, len(prompt) + len(answer))
    prefixes = [Prefix([*prompt, *answer[: place + 1]], len(prompt)) for place in range(len(rows))]
    hidden, found = None, []
    for layer in range(1, target.config.num_layers + 1):
        output = target.forward(
            [Segment(sequence, rows)], layers=(layer - 1, layer), hidden_in=hidden, capture=(layer,)
        )
        hidden = output.hidden[layer]
        choices = sampler.choices(output.logits[:, : sampler.vocab_size], prefixes)
        found.append([choice == token for choice, token in zip(choices, answer[1:], strict=True)])
    target.close(sequence)
    assert all(found[-1]) or not target.exact, "the last layer is the target itself"
    return found[:-1]


def rounds_of(agrees: Sequence[bool], draft_len: int) -> tuple[int, int]:
    """Tokens after the first, and the rounds that deliver them at a fixed draft length."""
    place = rounds = 0
    while place < len(agrees):
        taken = 0
        while taken < draft_len and place + taken < len(agrees) - 1 and agrees[place + taken]:
            taken += 1
        place += taken + 1
        rounds += 1
    return len(agrees), rounds


def measure_costs(target: Executor) -> Costs:
    """Medians of parts of the model, all of them by turns."""
    config = target.config
    tokens = [(place + 1) * 7919 % config.vocab_size for place in range(CONTEXT + 1 + max(LENGTHS))]
    sequence = prefill(target, tokens[:CONTEXT], len(tokens))
    every = [Segment(sequence, tokens[CONTEXT:], logits_from=1 + max(LENGTHS))]
    boundaries = tuple(range(1, config.num_layers))
    states = target.forward(every, capture=boundaries).hidden
    samples: dict[tuple[str, int, int], list[float]] = {}

    def timed(name: str, layer: int, rows: int, **options: Any) -> None:
        segment = Segment(sequence, tokens[CONTEXT : CONTEXT + rows], logits_from=options.pop("logits_from", 0))
        started = time.perf_counter()
        target.forward([segment], **options)
        samples.setdefault((name, layer, rows), []).append(time.perf_counter() - started)

    for _ in range(REPEATS):
        timed("plain", 0, 1)
        for layer in boundaries:
            timed("draft", layer, 1, layers=(0, layer), capture=(layer,))
            timed("last", layer, 1, layers=(0, layer), capture=(layer,), logits_from=1)
            for draft_len in LENGTHS:
                rows = 1 + draft_len
                # Nodes go through the layers in order: the last pass has left one of them.
                target.forward(
                    [Segment(sequence, tokens[CONTEXT : CONTEXT + rows], logits_from=rows)], layers=(0, layer)
                )
                timed("rest", layer, rows, layers=(layer, config.num_layers), hidden_in=states[layer][:rows])
        timed("plain", 0, 1)
    target.close(sequence)
    middle = {key: statistics.median(values) for key, values in samples.items()}
    return Costs(
        middle["plain", 0, 1],
        {layer: middle["draft", layer, 1] for layer in boundaries},
        {(layer, k): middle["last", layer, 1] + middle["rest", layer, 1 + k] for layer in boundaries for k in LENGTHS},
    )


def expected_line(layer: int, draft_len: int, answers: Sequence[Agreement], costs: Costs, step: float) -> Line:
    """What the formula of docs/choosing.md says of an exit layer and a draft length.

    Args:
        step: seconds of a plain step with everything around its pass.
    """
    agrees = [answer[layer - 1] for answer in answers]
    counts = [rounds_of(each, draft_len) for each in agrees]
    return Line(
        layer,
        sum(map(sum, agrees)) / sum(map(len, agrees)),
        draft_len,
        sum(tokens for tokens, _ in counts) / sum(rounds for _, rounds in counts),
        costs.draft[layer] / step,
        1 + (costs.verify[layer, draft_len] - costs.plain) / step,
    )


def best_line(layer: int, answers: Sequence[Agreement], costs: Costs, step: float) -> Line:
    """The draft length with the highest expected speed at one exit layer."""
    lines = [expected_line(layer, draft_len, answers, costs, step) for draft_len in LENGTHS]
    return max(lines, key=lambda line: line.speedup)


def row_of(line: Line) -> str:
    return (
        f"| {line.layer} | {line.agreement:.1%} | {line.draft_len} | {line.tokens_per_round:.2f} | "
        f"{line.draft_cost:.3f} | {line.draft_cost * line.draft_len:.3f} | {line.verify_cost:.3f} | "
        f"{line.speedup:.2f}x |"
    )


def confirm(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, layer: int, draft_len: int) -> float:
    """Measured decode speed of the engine over plain decoding, by turns."""
    config = {"method": "early_exit", "exit_layer": layer, "num_speculative_tokens": draft_len}
    sides = {"plain": llm.with_speculation(None), "early exit": llm.with_speculation(config)}
    runs: dict[str, list[Any]] = {name: [] for name in sides}
    for place, prompt in enumerate(prompts):
        for name in list(sides) if place % 2 == 0 else reversed(sides):
            runs[name].append(run_request(sides[name], prompt, params))
    plain, fast = Totals.of(runs["plain"]), Totals.of(runs["early exit"])
    assert [run.token_ids for run in runs["plain"]] == [run.token_ids for run in runs["early exit"]], "ids differ"
    measured = speedup(fast, plain)
    assert measured is not None, "something was decoded"
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--limit", type=int, default=1, help="questions per category")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", default="bfloat16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--confirm", action="append", default=[], metavar="LAYER:K", help="run the engine; repeatable")
    parser.add_argument("--confirm-answers", type=int, default=13, help="answers to confirm on")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--docs", type=Path, help="page to put the table into")
    options = parser.parse_args()
    llm = LLM(MODEL, speculative_config=None, executor="native", weights=options.weights, threads=options.threads)
    target = llm.engine.target
    params = SamplingParams(temperature=options.temperature, seed=options.seed, max_tokens=options.max_tokens)
    prompts, answers = [], []
    plain_runs = []
    for question in select(load_questions(options.questions), limit=options.limit, first_turn=True):
        prompt = prompt_of(llm.tokenizer, [{"role": "user", "content": question.turns[0]}])
        run = run_request(llm, prompt, params)
        if len(run.token_ids) > 1:
            sampler = Sampler(params, llm.tokenizer.vocab_size)
            prompts.append(prompt)
            plain_runs.append(run)
            answers.append(agreement(target, prompt, list(run.token_ids), sampler))
        print(f"{len(answers)} answers, {question.category}", file=sys.stderr)
    costs = measure_costs(target)
    totals = Totals.of(plain_runs)
    step = totals.decode_seconds / totals.decode_tokens
    lines = [best_line(layer, answers, costs, step) for layer in range(1, target.config.num_layers)]
    parts = [HEADINGS, "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", *map(row_of, lines)]
    confirmed = []
    for text in options.confirm:
        layer, draft_len = map(int, text.split(":"))
        few = answers[: options.confirm_answers]
        expected = expected_line(layer, draft_len, few, costs, step).speedup
        measured = confirm(llm, prompts[: len(few)], params, layer, draft_len)
        confirmed.append({"layer": layer, "draft_len": draft_len, "expected": expected, "measured": measured})
        parts.append(
            f"\nLayer {layer}, k = {draft_len} in the engine: expected {expected:.2f}x, measured {measured:.2f}x."
        )
    facts = provenance(options.seed)
    parts.append(
        f"\n{len(answers)} answers, {totals.decode_tokens} tokens after the first, temperature "
        f"{options.temperature:g}, weights in {options.weights}; commit {facts['commit']}, "
        f"{facts['hardware']['processor']}, {facts['date']}."
    )
    print("\n".join(parts))
    if options.docs is not None:
        put_into(options.docs, "exit layers", "\n".join(parts))
    if options.json is not None:
        figures = {
            "lines": [{**line._asdict(), "speedup": line.speedup} for line in lines],
            "confirmed": confirmed,
            "answers": len(answers),
            "tokens": totals.decode_tokens,
            "step_seconds": step,
            **facts,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
