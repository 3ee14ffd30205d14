"""Level `law`: the production round, sampler, drafters and rules on toy models, against the oracle's law.

Owns the plan of the tests and the reading of their outcomes. The models are tables with context, so the law of every
next token is known; what comes out of hundreds of thousands of rounds is compared with it.

Outcomes are coded so that a bias shows in the same cell everywhere: the tokens of a context are ranked by p / q (by p
where the draft has no law), and grouped into classes of about equal mass. Three tests look at each plan: every next
token (5 classes), pairs of tokens from the beginning of a round (25 cells), and triples (27 cells of 3 classes each).
Departures of equal coding add up over contexts, and plans of one rule, drafter, option or draft length are also judged
together. A token of probability 0 is a finding at once, and so is a draft that was not drawn from its reported law.
"""

import hashlib
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context

import numpy as np

from pilotfish.audit.drafters import TreeDrafter, Witness
from pilotfish.audit.options import BY_NAME, GREEDY, HOT, PAIRS, PLAIN, SINGLES, Setting
from pilotfish.audit.results import AcceptancePlot, LawPlot, Level
from pilotfish.audit.statistics import Tally, smallest_total_variation
from pilotfish.audit.subject import Job, Subject, generate
from pilotfish.audit.table_model import Table, TableExecutor, nearby, random_table
from pilotfish.audit.windows import WINDOWS, Contexts, Windows
from pilotfish.drafters.base import Drafter
from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.recycle import RecycleDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.draft_policy import DraftPolicy
from pilotfish.engine.pass_time import PassTime
from pilotfish.metrics.counters import SpeculationCounters

RUN_FALSE_ALARM = 1e-4
BATCH = 16
WINDOW_NAMES = ("next token", "pair from a round's start", "triple from a round's start")
MODEL_FREE = ("ngram", "suffix", "recycle")
TREES = ("suffix tree", "recycle tree", "tree")
DRAFTERS = {
    "match": (*MODEL_FREE, *TREES, "draft_model", "policy"),
    "rejection": (*MODEL_FREE, "draft_model", "policy"),
    "block": (*MODEL_FREE, "draft_model", "policy"),
    "traversal": (*MODEL_FREE, *TREES, "tree with replacement", "draft_model", "policy"),
}
CORE = (("match", "draft_model"), ("rejection", "draft_model"), ("block", "draft_model"), ("traversal", "tree"))


@dataclass(frozen=True, slots=True)
class Plan:
    """One toy world and how many tokens to draw in it.

    Attributes:
        drafter: a name in `DRAFTERS`, or chain (stateless).
        option: a name of `options.BY_NAME`.
        core: looked at with enough tokens to see small effects by itself.
        tables: different pairs of toy models to spread the tokens over.
    """

    rule: str
    drafter: str
    option: str
    draft_len: int
    vocab_size: int
    order: int
    tokens: int
    core: bool = False
    tables: int = 1

    @property
    def setting(self) -> Setting:
        return BY_NAME[self.option]

    @property
    def name(self) -> str:
        return f"{self.rule}, {self.drafter}, {self.option}, k={self.draft_len}, vocabulary {self.vocab_size}"

    @property
    def groups(self) -> tuple[str, ...]:
        """What this plan has in common with others."""
        options = (f"option {option}" for option in self.option.split(" + "))
        return ("all plans", f"rule {self.rule}", f"drafter {self.drafter}", f"k={self.draft_len}", *options)


@dataclass(frozen=True, slots=True)
class LawSize:
    """Tokens of a core plan and of each plan of the grid, and whether option pairs meet every rule or one each."""

    core_tokens: int
    grid_tokens: int
    pairs_under_every_rule: bool


SIZES = {
    "ci": LawSize(4_000, 64, False),
    "standard": LawSize(160_000, 500, True),
    "full": LawSize(600_000, 40_000, True),
}


def make_plans(size: LawSize) -> list[Plan]:
    """Core plans, then the grid: rules x drafters x options, and option pairs; lengths and vocabularies in turn."""
    plans = [
        Plan(rule, drafter, PLAIN.name, 3 if rule == "block" else 2, 5, 1, size.core_tokens, core=True, tables=4)
        for rule, drafter in CORE
    ]
    lengths, worlds = cycle((1, 2, 3, 4, 2)), cycle(((5, 1), (5, 2), (8, 1), (50, 1)))

    def add(rule: str, drafter: str, setting: Setting) -> None:
        vocab_size, order = (8, 1) if setting.looks_back else next(worlds)
        plans.append(Plan(rule, drafter, setting.name, next(lengths), vocab_size, order, size.grid_tokens))

    for rule, drafters in DRAFTERS.items():
        for drafter in drafters:
            for setting in (PLAIN, GREEDY, HOT, *SINGLES):
                add(rule, drafter, setting)
    turns = {rule: cycle(drafters) for rule, drafters in DRAFTERS.items()}
    rules = cycle(DRAFTERS)
    for pair in PAIRS:
        for rule in DRAFTERS if size.pairs_under_every_rule else (next(rules),):
            add(rule, next(turns[rule]), pair)
    return plans


@dataclass(slots=True)
class PlanResult:
    """What one plan saw."""

    plan: Plan
    tallies: list[Tally]
    findings: list[str]
    honest_draws: int
    counters: SpeculationCounters


def derived_seed(*parts: object) -> int:
    """A 64-bit seed from names and numbers."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def run_plan(plan: Plan, subject: Subject, seed: int) -> PlanResult:
    """Draws a plan's tokens and counts their outcomes."""
    import torch

    torch.set_num_threads(1)
    result = PlanResult(
        plan, [Tally.empty(classes**length) for length, classes in WINDOWS], [], 0, SpeculationCounters()
    )
    for world in range(plan.tables):
        _run_world(plan, subject, (seed, world), plan.tokens // plan.tables, result)
    return result


def _run_world(plan: Plan, subject: Subject, seed: tuple[int, int], tokens: int, result: PlanResult) -> None:
    entropy = derived_seed(*seed, plan.name)
    rows = None if plan.order == 1 else 7
    target = random_table((entropy, 0), plan.vocab_size, order=plan.order, rows=rows)
    draft = nearby(target, (entropy, 1), 0.8)
    contexts = Contexts(plan.setting, target, draft if plan.drafter != "ngram" else None)
    rng = np.random.default_rng((entropy, 2))
    counters = [Windows(contexts, length, classes) for length, classes in WINDOWS]
    witness = Witness(
        subject.drafter(_drafter(plan, draft)),
        draft,
        plan.setting,
        max(20, tokens // 40),
        replacement=plan.drafter != "tree",
    )
    drawn = batch = 0
    while drawn < tokens:
        jobs = [_job(plan, rng, derived_seed(entropy, batch, row), tokens - drawn) for row in range(BATCH)]
        for job, made in zip(jobs, generate(subject, TableExecutor(target), witness, plan.rule, jobs), strict=True):
            drawn += len(made.output)
            result.counters.add(made.request.counters)
            for counter in counters:
                counter.count(job, made)
        batch += 1
    for tally, counter in zip(result.tallies, counters, strict=True):
        counter.add_to(tally)
    result.honest_draws += witness.checked
    result.findings.extend(f"{plan.name}: {lie}" for lie in witness.lies[:1])
    result.findings.extend(f"{plan.name}: {text}" for text in contexts.impossible[:1])


def _job(plan: Plan, rng: np.random.Generator, seed: int, wanted: int) -> Job:
    """A ragged batch: prompts and budgets of all lengths, and some requests that draft less."""
    # Where the law looks back every text is a context of its own: few prompts and short outputs keep them few.
    looks_back = plan.setting.looks_back
    lengths = rng.integers(3) if looks_back else rng.integers(6)
    drawn = np.arange(1 + lengths) * 3 if looks_back else rng.integers(plan.vocab_size, size=plan.order + int(lengths))
    prompt = (drawn % plan.vocab_size).tolist()
    longest = 5 if looks_back else max(6, min(64, 2 * wanted // BATCH))
    budget = int(rng.integers(1, longest + 1))
    draft_len = plan.draft_len if rng.random() < 0.9 else int(rng.integers(plan.draft_len + 1))
    return Job(prompt, plan.setting, seed, budget, draft_len)


def _drafter(plan: Plan, draft: Table) -> Drafter:
    if plan.drafter == "ngram":
        return NgramDrafter(1, 2)
    if plan.drafter == "draft_model":
        return DraftModelDrafter(TableExecutor(draft))
    if plan.drafter.startswith("suffix"):
        return SuffixDrafter(2 if plan.drafter.endswith("tree") else 1)
    if plan.drafter.startswith("recycle"):
        return RecycleDrafter(2 if plan.drafter.endswith("tree") else 1)
    if plan.drafter == "policy":
        members = [NgramDrafter(1, 2), SuffixDrafter(), RecycleDrafter(), DraftModelDrafter(TableExecutor(draft))]
        ticks = itertools.count()  # a clock of its own: the same seed makes the same choices
        return DraftPolicy(members, PassTime({1: 10.0, 20: 20.0}), lambda: float(next(ticks)))
    width = 1 if plan.drafter == "chain" else 2
    return TreeDrafter(draft, width=width, replacement=plan.drafter == "tree with replacement")


def run_law(subject: Subject, plans: Sequence[Plan], seed: int, workers: int = 1, share: int | None = None) -> Level:
    """Runs the level.

    Args:
        workers: processes; 1 stays in this one.
        share: number of tests over which the run's false-alarm rate is divided, where these plans are only a part.
    """
    began = time.monotonic()
    if workers > 1:
        # The longest first, so that no worker is left with one at the end; results come back in order.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(run_plan, plans, [subject] * len(plans), [seed] * len(plans)))
    else:
        results = [run_plan(plan, subject, seed) for plan in plans]
    return judge(results, time.monotonic() - began, share)


def judge(results: Sequence[PlanResult], seconds: float, share: int | None = None) -> Level:
    """Turns counts into findings: each plan by itself, then all plans that have something in common."""
    tallies: list[tuple[str, str, str, Tally]] = []
    groups: dict[tuple[str, str], Tally] = {}
    for result in results:
        for window, tally in zip(WINDOW_NAMES, result.tallies, strict=True):
            kind = "a core plan" if result.plan.core else "a plan of the grid"
            tallies.append((kind, result.plan.name, window, tally))
            for group in result.plan.groups:
                groups.setdefault((group, window), Tally.empty(len(tally.observed))).merge(tally)
    for (group, window), tally in groups.items():
        kind = "all plans together" if group == "all plans" else f"plans of one {group.split()[0].split('=')[0]}"
        tallies.append((kind, group, window, tally))
    tests = [(kind, name, window, fit) for kind, name, window, tally in tallies if (fit := tally.fit()).degrees > 0]
    alpha = RUN_FALSE_ALARM / (share or max(1, len(tests)))
    findings = [finding for result in results for finding in result.findings]
    effects: dict[str, float] = {}
    for kind, name, window, fit in tests:
        label = f"total variation, {window}, {kind}"
        effects[label] = max(effects.get(label, 0.0), smallest_total_variation(fit.samples, fit.degrees, alpha))
        if fit.p_value < alpha:
            findings.append(
                f"{name}: the law of the {window} is not the target's "
                f"(p = {fit.p_value:.1e}, {fit.samples} samples, {fit.degrees} degrees of freedom)"
            )
    tokens = sum(result.tallies[0].samples for result in results)
    drafted = sum(result.counters.drafted_tokens for result in results)
    if not drafted:
        findings.append("nothing was drafted, so nothing was tested")
    honest = sum(result.honest_draws for result in results)
    return Level(
        name="law",
        tests=len(tests) + len(results),
        samples=tokens,
        false_alarm_rate=RUN_FALSE_ALARM,
        smallest_effect={**effects, "difference of a reported draft law": 1e-5},
        findings=tuple(findings),
        notes=(
            f"{tokens} tokens in {sum(result.counters.rounds for result in results)} rounds; {drafted} drafted, "
            f"{sum(result.counters.accepted_tokens for result in results)} of them accepted",
            f"{honest} draws repeated from their reported laws",
            f"each test at {alpha:.1e}; effects are those of the weakest test of a group",
        ),
        p_values=tuple(fit.p_value for _, _, _, fit in tests),
        laws=tuple(_plot(result) for result in results if result.plan.core),
        acceptance=tuple(_acceptance(result) for result in results if result.plan.core),
        seconds=seconds,
    )


def _plot(result: PlanResult) -> LawPlot:
    tally = result.tallies[1]
    total = max(1, tally.samples)
    return LawPlot(
        f"{result.plan.name}: pairs of tokens by rank of p/q",
        tuple((tally.observed / total).tolist()),
        tuple((tally.expected / total).tolist()),
    )


def _acceptance(result: PlanResult) -> AcceptancePlot:
    counters = result.counters
    rounds = max(1, counters.rounds)
    return AcceptancePlot(result.plan.name, tuple(count / rounds for count in counters.accepted_per_position))
