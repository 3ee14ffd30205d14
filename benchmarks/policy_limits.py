"""The length policy at its limits, on the real engine: a perfect drafter, hopeless ones, and a text that turns.

    python benchmarks/policy_limits.py QUESTIONS.jsonl [--limit 1] [--max-tokens 128] [--repeats 1] [--weights bfloat16]
        [--json figures.json]

Every question is decoded plainly once; its answer is what the perfect drafter replays, at each fixed length and with
the length left to the policy, and what all sides must give token by token. The sides follow one another on every
question, each one first in its turn, so that whatever else the machine does meets all alike. Where small differences
count, with random tokens, a plain run goes before each run, and the median of their ratios is what counts: a shared
machine's pace changes within seconds. Goals: the policy reaches 95% of the best fixed length with the perfect drafter
and 97% of plain decoding with random tokens, whether these claim nothing or claim to be certain; and where a drafter
says random tokens up to the middle of an answer and the truth from there on, it is followed within 30 rounds: from then
on every draft has at least the length at which a fixed one reaches 92% of the best. "warm" is a policy that lives
through all questions, as in use; "cold" one that knows nothing before each. Exit code 1 if a warm policy misses a goal.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.bench.provenance import provenance
from pilotfish.bench.questions import load_questions, select
from pilotfish.bench.speed import prompt_of
from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.engine.calibration import pass_time
from pilotfish.engine.draft_policy import LONGEST, DraftPolicy
from pilotfish.engine.engine import Engine
from pilotfish.models.loading import Model, load_model
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import EMPTY_DRAFT, Draft

MODEL = "smollm2-135m-instruct"
FIXED = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16)
NEAR = 0.92
"""Where the speeds of fixed lengths are this close to the best, the difference is hardly worth following."""
GOALS = {"perfect": 0.95, "random": 0.97, "random, sure": 0.97}
PAIRED = ("random", "turning")
"""Kinds of drafters that have a plain run before each of their own."""
ROUNDS = 30


@dataclass
class Scripted(Drafter):
    """Says at each place of an answer what a script says; `known` is set before each request."""

    script: Callable[[Sequence[int], int, int], Sequence[int]]
    """From the answer, a place in it and a length to tokens."""
    confidence: float | None = None
    known: Sequence[int] = ()

    def begin(self, request: int, capacity: int) -> None:
        """Nothing to prepare."""

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._one(job) for job in jobs]

    def _one(self, job: DraftJob) -> Draft:
        tokens = self.script(self.known, len(job.tokens) - job.prompt_length, job.draft_len)
        if not tokens:
            return EMPTY_DRAFT
        return Draft.chain(tokens, confidence=None if self.confidence is None else [self.confidence] * len(tokens))

    def observe(self, observation: Observation) -> None:
        """Nothing to learn."""

    def end(self, request: int) -> None:
        """Nothing to drop."""


def truth(known: Sequence[int], place: int, length: int) -> Sequence[int]:
    return known[place : place + length]


def noise(vocab_size: int) -> Callable[[Sequence[int], int, int], Sequence[int]]:
    numbers = random.Random(0)
    return lambda known, place, length: [numbers.randrange(vocab_size) for _ in range(length)]


@dataclass
class Side:
    """One way of decoding: how its engine is made, and what it took so far, by run.

    Attributes:
        beside: by run, how many times as fast it was as the plain run before it, for the sides that have one.
    """

    make: Callable[[], tuple[Engine, Scripted | None]]
    lives: bool = True
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    engine: tuple[Engine, Scripted | None] | None = None

    def run(self, prompt: Sequence[int], params: SamplingParams, known: Sequence[int]) -> list[int]:
        """Decodes once, and notes the time after the first delivery and the number drafted in each round."""
        if self.engine is None or not self.lives:
            self.engine = self.make()
        engine, drafter = self.engine
        if drafter is not None:
            drafter.known = known
        sizes: list[int] = []
        drafted = first = 0
        started = 0.0
        output: list[int] = []
        for (request,) in engine.run([prompt], [params]):
            if not sizes:
                started, first = time.perf_counter(), len(request.output)
            sizes.append(request.counters.drafted_tokens - drafted)
            drafted = request.counters.drafted_tokens
            output = list(request.output)
        self.seconds.append(time.perf_counter() - started)
        self.tokens.append(len(output) - first)
        self.sizes.append(sizes)
        return output

    @property
    def latest(self) -> float:
        """Tokens per second of the last run."""
        return self.tokens[-1] / self.seconds[-1]

    @property
    def rate(self) -> float:
        return sum(self.tokens) / sum(self.seconds)


def followed_after(sizes: Sequence[int], turned: int, near: int, length: int) -> int | None:
    """Rounds from the turn until every draft has at least `near` tokens; `None` if that never comes.

    Args:
        sizes: drafted tokens of each round. Up to the turn a round delivers one token, random ones being rejected.
        turned: tokens before the turn.
        length: of the answer; rounds at its end, where fewer tokens are left to draft, say nothing.
    """
    place, long_enough = turned, []
    for size in sizes[turned:]:
        if place + near < length:
            long_enough.append(size >= near)
        place += size + 1
    if not long_enough or not long_enough[-1]:
        return None
    return len(long_enough) - long_enough[::-1].index(False) if False in long_enough else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--limit", type=int, default=1, help="questions per category")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--weights", default="bfloat16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--recalibrate", action="store_true")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    model = load_model(MODEL, executor="native", weights=options.weights, threads=options.threads)
    sides = _sides(model, options.recalibrate)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens, seed=0, ignore_eos=True)
    plain = Engine(model.executor, model.tokenizer.decode, model.tokenizer.vocab_size)
    asked = []
    for question in select(load_questions(options.questions), limit=options.limit, first_turn=True):
        prompt = prompt_of(model.tokenizer, [{"role": "user", "content": question.turns[0]}])
        answer = [list(request.output) for (request,) in plain.run([prompt], [params])][-1]
        asked.append((prompt, answer))
    turns = len(asked) * options.repeats
    for turn in range(turns):
        prompt, answer = asked[turn % len(asked)]
        names = list(sides)
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            paired = name.startswith(PAIRED)
            if paired:
                sides["plain"].run(prompt, params, answer)
            assert sides[name].run(prompt, params, answer) == answer, f"{name} gives other tokens"
            if paired:
                sides[name].beside.append(sides[name].latest / sides["plain"].latest)
        print(f"{turn + 1} of {turns}", file=sys.stderr)
    return _report(sides, options.max_tokens, options.json)


def _sides(model: Model, recalibrate: bool) -> dict[str, Side]:
    vocab_size = model.tokenizer.vocab_size
    pass_time(model.executor, model.files.fingerprint, recalibrate=recalibrate)

    def engine(drafter: Drafter | None, draft_len: int) -> Engine:
        return Engine(model.executor, model.tokenizer.decode, vocab_size, drafter=drafter, draft_len=draft_len)

    def fixed(draft_len: int) -> Callable[[], tuple[Engine, Scripted]]:
        def make() -> tuple[Engine, Scripted]:
            drafter = Scripted(truth)
            return engine(drafter, draft_len), drafter

        return make

    def chosen(scripted: Callable[[], Scripted]) -> Callable[[], tuple[Engine, Scripted]]:
        def make() -> tuple[Engine, Scripted]:
            drafter = scripted()
            policy = DraftPolicy([drafter], pass_time(model.executor, model.files.fingerprint))
            return engine(policy, LONGEST), drafter

        return make

    def turning() -> Scripted:
        wrong = noise(vocab_size)
        return Scripted(lambda known, place, n: (wrong if place < len(known) // 2 else truth)(known, place, n))

    sides = {"plain": Side(lambda: (engine(None, 0), None))}
    sides |= {f"perfect, k={draft_len}": Side(fixed(draft_len)) for draft_len in FIXED}
    drafters: dict[str, Callable[[], Scripted]] = {
        "perfect": lambda: Scripted(truth),
        "random": lambda: Scripted(noise(vocab_size)),
        "random, sure": lambda: Scripted(noise(vocab_size), 0.99),
        "turning": turning,
    }
    for name, scripted in drafters.items():
        sides[f"{name}, warm"] = Side(chosen(scripted))
        sides[f"{name}, cold"] = Side(chosen(scripted), lives=False)
    return sides


def _report(sides: dict[str, Side], length: int, json_path: Path | None) -> int:
    plain = sides["plain"]
    best = max(FIXED, key=lambda draft_len: sides[f"perfect, k={draft_len}"].rate)
    best_side = sides[f"perfect, k={best}"]
    near = min(k for k in FIXED if sides[f"perfect, k={k}"].rate >= NEAR * best_side.rate)
    print("| | tokens/s | over plain | middle half of its runs | of the best fixed length |")
    print("| --- | ---: | ---: | ---: | ---: |")
    figures, missed = {}, []
    for name, side in sides.items():
        over_plain, middle, spread = side.rate / plain.rate, "", None
        if side.beside:
            over_plain = statistics.median(side.beside)
            spread = statistics.quantiles([*side.beside, over_plain], n=4)
            middle = f"{spread[0]:.3f} to {spread[-1]:.3f}"
        share = side.rate / best_side.rate
        print(f"| {name} | {side.rate:.1f} | {over_plain:.3f} | {middle} | {share:.3f} |")
        figures[name] = {
            "tokens_per_second": side.rate,
            "over_plain": over_plain,
            "quartiles": spread,
            "of_best": share,
        }
        goal, reached = GOALS.get(name.removesuffix(", warm")), over_plain if side.beside else share
        if goal is not None and reached < goal:
            missed.append(f"{name}: {reached:.3f}, goal {goal}")
    print(f"\nBest fixed length {best}; {NEAR:.0%} of it from {near} on.")
    for name in ("turning, warm", "turning, cold"):
        rounds = [followed_after(sizes, length // 2, near, length) for sizes in sides[name].sizes]
        never = rounds.count(None)
        known = sorted(each for each in rounds if each is not None)
        middle = known[len(known) // 2] if known else None
        print(f"{name}: followed after {middle} rounds (median), {max(known, default=0)} at most, {never} times never.")
        figures[name]["followed_after"] = rounds
        if name == "turning, warm" and (never or max(known, default=0) > ROUNDS):
            missed.append(f"{name}: not followed within {ROUNDS} rounds in every answer")
    for line in missed:
        print(f"MISSED: {line}")
    if json_path is not None:
        record = {"figures": figures, "best_fixed": best, "near": near, "missed": missed, **provenance(0)}
        json_path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
