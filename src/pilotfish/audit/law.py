"""Level `law`: the production round, sampler, drafters and rules on toy models, against the oracle's law.

Owns the running of the plans and the reading of their outcomes. The law of every next token is known, because the
models are tables with context, or a tiny decoder whose logits are taken as given. Two kinds of test:

- Counts. Outcomes are coded so that a bias shows in the same cell everywhere: the tokens of a context are ranked by
  p / q (by p where the draft has no law), and grouped into classes of about equal mass. Three tests look at each plan:
  every next token (5 classes), and the joint law of pairs (5 x 5) and triples (3 x 3 x 3) of tokens from the beginning
  of a round. Departures of equal coding add up over contexts, and plans of one rule, drafter, option or draft length
  are also judged together. They suppose nothing about how the tokens came about.
- Replays. The first rounds of each plan are lived through again with the documented random numbers (`replay.py`).

A token of probability 0 is a finding at once, and so is a draft that was not drawn from its reported law.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from pilotfish.audit.plans import CORE, DRAFTERS, Plan
from pilotfish.audit.replay import Replay
from pilotfish.audit.results import AcceptancePlot, LawPlot, Level
from pilotfish.audit.seeds import derived_seed
from pilotfish.audit.statistics import Tally, smallest_share, smallest_total_variation
from pilotfish.audit.subject import Job, Subject, generate
from pilotfish.audit.windows import WINDOWS, Contexts, Windows, blocks_of
from pilotfish.audit.witness import Witness
from pilotfish.audit.worlds import make_world
from pilotfish.metrics.counters import SpeculationCounters

RUN_FALSE_ALARM = 1e-4
BATCH = 8
CORE_BATCH = 48
WINDOW_NAMES = ("next token", "pair from a round's start", "triple from a round's start")
MAIN_TESTS = len(WINDOWS) * (len(CORE) + len(DRAFTERS))
"""Tests of core plans and of all plans of one rule: they share half of the false-alarm rate, all others the rest."""


@dataclass(slots=True)
class PlanResult:
    """What one plan saw."""

    plan: Plan
    tallies: list[Tally]
    findings: list[str]
    counters: SpeculationCounters
    honest_draws: int = 0
    replays: int = 0
    undecided: int = 0


def run_plan(plan: Plan, subject: Subject, seed: int) -> PlanResult:
    """Draws a plan's tokens and counts their outcomes."""
    tallies = [Tally.empty(classes, blocks_of(length, classes)) for length, classes in WINDOWS]
    result = PlanResult(plan, tallies, [], SpeculationCounters())
    for world in range(plan.tables):
        _run_world(plan, subject, (seed, world), result)
    return result


def _run_world(plan: Plan, subject: Subject, seed: tuple[int, int], result: PlanResult) -> None:
    entropy = derived_seed(*seed, plan.name)
    world = make_world(plan.drafter, entropy, plan.vocab_size, plan.order)
    contexts = Contexts(plan.setting, world)
    rng = np.random.default_rng((entropy, 2))
    counters = [Windows(contexts, length, classes) for length, classes in WINDOWS]
    replay = Replay(plan.rule, contexts, -(-plan.replays // plan.tables))
    tokens = plan.tokens // plan.tables
    witness = Witness(
        subject.drafter(world.drafter()),
        world,
        plan.setting,
        max(20, tokens // 40),
        replacement=plan.drafter != "tree",
    )
    drawn = batch = 0
    while drawn < tokens:
        size = CORE_BATCH if plan.core else BATCH
        jobs = [_job(plan, rng, derived_seed(entropy, batch, row), tokens - drawn, size) for row in range(size)]
        witness.seen.clear()
        for job, made in zip(jobs, generate(subject, world.executor, witness, plan.rule, jobs), strict=True):
            drawn += len(made.output)
            result.counters.add(made.request.counters)
            walked = contexts.walk(job, made.output)
            for counter in counters:
                counter.count(made, walked)
            replay.check(job, made, walked, witness.seen)
        batch += 1
    for tally, counter in zip(result.tallies, counters, strict=True):
        counter.add_to(tally)
    result.honest_draws += witness.checked
    result.replays += replay.rounds
    result.undecided += replay.undecided
    for wrong in (witness.lies, contexts.impossible, replay.differences):
        result.findings.extend(f"{plan.name}: {text}" for text in wrong[:1])


def _job(plan: Plan, rng: np.random.Generator, seed: int, wanted: int, batch: int) -> Job:
    """A ragged batch: prompts and budgets of all lengths, and some requests that draft less."""
    # Where the law looks back outputs are short, so that masks of what has been do not end up forbidding everything.
    looks_back = plan.setting.looks_back
    lengths = rng.integers(3) if looks_back else rng.integers(6)
    least = max(1, plan.order)
    drawn = np.arange(1 + lengths) * 3 if looks_back else rng.integers(plan.vocab_size, size=least + int(lengths))
    prompt = (drawn % plan.vocab_size).tolist()
    longest = 8 if looks_back else max(8, min(64, 2 * wanted // batch))
    budget = int(rng.integers(1, longest + 1))
    draft_len = plan.draft_len if rng.random() < 0.9 else int(rng.integers(plan.draft_len + 1))
    return Job(prompt, plan.setting, seed, budget, draft_len)


def run_law(
    subject: Subject, plans: Sequence[Plan], seed: int, pool: Executor | None = None, share: int | None = None
) -> Level:
    """Runs the level.

    Args:
        pool: processes to share the plans out to; this one alone by default.
        share: number of tests over which the run's false-alarm rate is divided, where these plans are only a part.
    """
    began = time.monotonic()
    # The longest come first, so that no process is left with one at the end; results come back in order.
    spread = map if pool is None else pool.map
    results = list(spread(run_plan, plans, repeat(subject), repeat(seed)))
    return judge(results, time.monotonic() - began, share)


def judge(results: Sequence[PlanResult], seconds: float, share: int | None = None) -> Level:
    """Turns counts into findings: each plan by itself, then all plans that have something in common."""
    tallies: list[tuple[str, str, str, Tally]] = []
    groups: dict[tuple[str, str], Tally] = {}
    replays: dict[str, int] = {}
    for result in results:
        for window, tally in zip(WINDOW_NAMES, result.tallies, strict=True):
            kind = "a core plan" if result.plan.core else "a plan of the grid"
            tallies.append((kind, result.plan.name, window, tally))
            for group in result.plan.groups:
                blocks, cells = tally.observed.shape
                groups.setdefault((group, window), Tally.empty(cells, blocks)).merge(tally)
        for group in result.plan.groups:
            replays[group] = replays.get(group, 0) + result.replays
    for (group, window), tally in groups.items():
        tallies.append((_kind(group), group, window, tally))
    tests = [(kind, name, window, fit) for kind, name, window, tally in tallies if (fit := tally.fit()).degrees > 0]
    main = {"a core plan", "plans of one rule"}
    others = max(1, sum(kind not in main for kind, _, _, _ in tests))
    main_level, other_level = (RUN_FALSE_ALARM / 2 / count for count in (MAIN_TESTS, others))
    findings = [finding for result in results for finding in result.findings]
    effects: dict[str, float] = {}
    for kind, name, window, fit in tests:
        alpha = RUN_FALSE_ALARM / share if share else main_level if kind in main else other_level
        label = f"total variation, {window}, {kind}"
        effects[label] = max(effects.get(label, 0.0), smallest_total_variation(fit.samples, fit.degrees, alpha))
        if fit.p_value < alpha:
            findings.append(
                f"{name}: the law of the {window} is not the target's "
                f"(p = {fit.p_value:.1e}, {fit.samples} samples, {fit.degrees} degrees of freedom)"
            )
    for group, rounds in replays.items():
        label = f"total variation, a round's tokens, replayed, {_kind(group)}"
        effects[label] = max(effects.get(label, 0.0), smallest_share(rounds))
    tokens = sum(result.tallies[0].samples for result in results)
    drafted: dict[str, int] = {}
    for result in results:
        kind = f"{result.plan.rule}, {result.plan.drafter}"
        drafted[kind] = drafted.get(kind, 0) + result.counters.drafted_tokens
    findings.extend(
        f"{kind}: nothing was drafted, so nothing was tested" for kind, count in drafted.items() if not count
    )
    replayed = sum(result.replays for result in results)
    undecided = sum(result.undecided for result in results)
    if undecided > 10 + 0.01 * replayed:
        findings.append(f"{undecided} replayed rounds were too near to a limit to be judged, beside {replayed} others")
    return Level(
        name="law",
        tests=len(tests) + 2 * len(results),
        samples=tokens,
        false_alarm_rate=RUN_FALSE_ALARM,
        smallest_effect={**effects, "difference of a reported draft law": 1e-5},
        findings=tuple(findings),
        notes=(
            f"{tokens} tokens in {sum(result.counters.rounds for result in results)} rounds; "
            f"{sum(drafted.values())} drafted, "
            f"{sum(result.counters.accepted_tokens for result in results)} of them accepted",
            f"{sum(result.honest_draws for result in results)} draws repeated from their reported laws; "
            f"{replayed} rounds replayed, {undecided} more too near to a limit to be judged",
            f"tests of core plans and rules at {main_level:.1e}, others at {other_level:.1e}; "
            "effects are those of the weakest test of a group",
        ),
        p_values=tuple(fit.p_value for _, _, _, fit in tests),
        laws=tuple(_plot(result) for result in results if result.plan.core),
        acceptance=tuple(_acceptance(result) for result in results if result.plan.core),
        seconds=seconds,
    )


def _kind(group: str) -> str:
    return "all plans together" if group == "all plans" else f"plans of one {group.split()[0].split('=')[0]}"


def _plot(result: PlanResult) -> LawPlot:
    observed, expected = (cells[1:].ravel() for cells in (result.tallies[1].observed, result.tallies[1].expected))
    total = max(1.0, float(observed.sum()))
    return LawPlot(
        f"{result.plan.name}: pairs of tokens by rank of p/q",
        tuple((observed / total).tolist()),
        tuple((expected / total).tolist()),
    )


def _acceptance(result: PlanResult) -> AcceptancePlot:
    counters = result.counters
    rounds = max(1, counters.rounds)
    return AcceptancePlot(result.plan.name, tuple(count / rounds for count in counters.accepted_per_position))
