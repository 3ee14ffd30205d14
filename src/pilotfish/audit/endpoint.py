"""Level `endpoint`: a server's law and its greedy texts, judged from outside.

Owns the sequential test and the verdicts; knows no server's insides. One server is compared with another that runs the
same weights without speculation, or with a local model whose law is known exactly. Two questions are asked of sampled
text: does the next token depend on what came before it as it should (a statistic over all prefixes seen), and does
each token come as often as it should (counts per completion). Looks are taken at a sixteenth, an eighth, ... and all of
the budget, and the level's false-alarm rate is spent over them: half at the last look, half of the rest before it.

A known law needs half the tokens of a second server: the noncentrality of a departure d of law p after n tokens is
n sum d^2 / p against a known law, and n/2 of it against a second sample of the same size.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pilotfish.audit.endpoint_client import Completion, Server
from pilotfish.audit.results import LawPlot, Level
from pilotfish.audit.statistics import (
    SMALLEST_CELL,
    Floats,
    Tally,
    chi2_sf,
    smallest_total_variation,
    two_sample_fit,
)
from pilotfish.errors import InvalidInputError

LOOKS = 5
TOKENS_PER_COMPLETION = 4
GREEDY_TOKENS = 32
NEAR_TIE = 0.25
"""Nats. A bfloat16 logit between 16 and 32 is known to 1/8; two of them may trade places within twice that."""
COMMON_TOKENS = 24

PROMPTS = (
    "A coin is thrown. It shows",
    "The answer to the riddle is either yes or no. The answer is",
    "Pick a colour: red, green or blue. I pick",
    "Once upon a time there was a",
)

ReferenceLaw = Callable[[str, tuple[str, ...]], Mapping[str, float] | None]
"""(prompt, tokens so far) -> law of the next token by its text; `None` where it is not known."""


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """What to ask for.

    Attributes:
        tokens: sampled tokens asked of each server at most.
        requests: requests to each server at most, whatever they bring.
        per_request: completions per request (`n`).
        false_alarm_rate: of the whole level.
    """

    tokens: int = 20_000
    requests: int = 4_000
    per_request: int = 8
    prompts: tuple[str, ...] = PROMPTS
    false_alarm_rate: float = 1e-4
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("tokens", "requests", "per_request"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name}={getattr(self, name)}: expected at least 1")
        if not 0 < self.false_alarm_rate < 1:
            raise InvalidInputError(f"false_alarm_rate={self.false_alarm_rate}: expected a rate between 0 and 1")


@dataclass(slots=True)
class _Sample:
    """What one server said: completions by prompt, tokens counted."""

    server: Server
    completions: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))
    tokens: int = 0
    requests: int = 0
    without_tokens: bool = False

    def draw(self, plan: EndpointPlan, target: int) -> None:
        """Asks until `target` tokens were sampled or the budget of requests is used up."""
        while (few := (target - self.tokens) // TOKENS_PER_COMPLETION) > 0 and self.requests < plan.requests:
            prompt = plan.prompts[self.requests % len(plan.prompts)]
            seed = (plan.seed * 1_000_003 + self.requests) % 2**31
            answer = self.server.complete(
                prompt,
                max_tokens=TOKENS_PER_COMPLETION,
                temperature=1.0,
                seed=seed,
                n=min(plan.per_request, few),
                logprobs=1,
            )
            self.requests += 1
            for completion in answer:
                outcome = self._outcome(completion)
                self.tokens += len(outcome)
                self.completions[prompt].append(outcome)

    def _outcome(self, completion: Completion) -> tuple[str, ...]:
        if completion.tokens is None:
            # Texts alone can still be compared, as one outcome each.
            self.without_tokens = True
            return (completion.text,)
        return completion.tokens[:TOKENS_PER_COMPLETION]


@dataclass(frozen=True, slots=True)
class _Answer:
    """One question at one look."""

    question: str
    p_value: float
    degrees: int


def run_endpoint(server: Server, reference: Server | ReferenceLaw, plan: EndpointPlan) -> Level:
    """Runs the level.

    Args:
        server: the one under audit.
        reference: a server that decodes the same weights plainly, or the law itself.
    """
    began = time.monotonic()
    findings: list[str] = []
    notes: list[str] = []
    greedy_tests = 0
    if isinstance(reference, Server):
        greedy_tests = _compare_greedy(server, reference, plan, findings, notes)
    else:
        greedy_tests = _check_greedy(server, reference, plan, findings, notes)
    sample = _Sample(server)
    other = _Sample(reference) if isinstance(reference, Server) else None
    p_values: list[float] = []
    degrees = looks = 0
    law_found = False
    for look in range(LOOKS):
        alpha = plan.false_alarm_rate / 2 ** (LOOKS - look)
        target = plan.tokens >> (LOOKS - 1 - look)
        sample.draw(plan, target)
        if other is not None:
            other.draw(plan, target)
        answers = list(_two_samples(sample, other) if other is not None else _known_law(sample, reference))  # type: ignore[arg-type]
        looks += 1
        for answer in answers:
            p_values.append(answer.p_value)
            degrees = max(degrees, answer.degrees)
            if answer.p_value < alpha / 2 and not law_found:
                findings.append(
                    f"sampled text: {answer.question} (p = {answer.p_value:.1e} at {sample.tokens} sampled tokens)"
                )
        law_found = any(finding.startswith("sampled text") for finding in findings)
        if law_found:
            break
    notes += _could_not(sample, other, plan)
    if not sample.tokens or (other is not None and not other.tokens):
        findings.append("no text could be sampled: " + ("; ".join(server.trouble.messages) or "the answers were empty"))
    effective = sample.tokens if other is None else sample.tokens // 2
    smallest = smallest_total_variation(effective, min(max(degrees, 1), COMMON_TOKENS), plan.false_alarm_rate / 4)
    return Level(
        name="endpoint",
        tests=greedy_tests + 2 * looks,
        samples=sample.tokens + (other.tokens if other is not None else 0),
        false_alarm_rate=plan.false_alarm_rate,
        smallest_effect={"total variation of how often a token comes": smallest},
        findings=tuple(findings),
        notes=tuple(notes),
        p_values=tuple(p_values),
        laws=_plots(sample, other, reference),
        seconds=time.monotonic() - began,
    )


# --- sampled text


def _prefixes(sample: _Sample) -> dict[tuple[str, tuple[str, ...]], dict[str, int]]:
    """How often each token followed each prefix."""
    counts: dict[tuple[str, tuple[str, ...]], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for prompt, completions in sample.completions.items():
        for tokens in completions:
            for place, token in enumerate(tokens):
                counts[prompt, tokens[:place]][token] += 1
    return counts


def _two_samples(left: _Sample, right: _Sample) -> Iterator[_Answer]:
    """Both questions, asked of two servers."""
    mine, theirs = _prefixes(left), _prefixes(right)
    statistic, degrees = 0.0, 0
    for prefix in mine.keys() & theirs.keys():
        names = sorted(mine[prefix].keys() | theirs[prefix].keys())
        counts = [np.array([own[prefix].get(name, 0) for name in names], dtype=np.float64) for own in (mine, theirs)]
        value, freedom = two_sample_fit(*counts)
        statistic, degrees = statistic + value, degrees + freedom
    if degrees:
        text = "after the same words the two servers go on differently"
        yield _Answer(text, chi2_sf(statistic, degrees), degrees)
    common = _common(left, right)
    if len(common) > 1:
        value, freedom = _hotelling(_per_completion(left, common), _per_completion(right, common))
        yield _Answer("the two servers choose tokens at different rates", chi2_sf(value, freedom), freedom)


def _common(*samples: _Sample) -> list[tuple[str, str]]:
    """(prompt, token) pairs frequent enough to be counted by themselves."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for sample in samples:
        for prompt, completions in sample.completions.items():
            for tokens in completions:
                for token in tokens:
                    counts[prompt, token] += 1
    frequent = sorted((pair for pair in counts if counts[pair] >= 100), key=lambda pair: (-counts[pair], pair))
    return frequent[:COMMON_TOKENS]


def _per_completion(sample: _Sample, common: Sequence[tuple[str, str]]) -> dict[str, Floats]:
    """`[completion, token]` counts for each prompt."""
    found = {}
    for prompt, completions in sample.completions.items():
        names = [token for own, token in common if own == prompt]
        found[prompt] = np.array([[tokens.count(name) for name in names] for tokens in completions], dtype=np.float64)
    return found


def _hotelling(left: Mapping[str, Floats], right: Mapping[str, Floats]) -> tuple[float, int]:
    """The quadratic form of the difference of mean counts, tokens of a completion depending on each other as they may.

    The covariance is that of completions, so no assumption on the model is made; its directions without variance are
    left out. Prompts are independent, and their statistics add up.
    """
    statistic, degrees = 0.0, 0
    for prompt in left.keys() & right.keys():
        mine, theirs = left[prompt], right[prompt]
        if mine.shape[1] == 0 or min(len(mine), len(theirs)) < 50:
            continue
        covariance = np.atleast_2d(np.cov(mine.T)) / len(mine) + np.atleast_2d(np.cov(theirs.T)) / len(theirs)
        variances, directions = np.linalg.eigh(covariance)
        usable = variances > 1e-3 * variances.max()
        shift = directions.T @ (mine.mean(0) - theirs.mean(0))
        statistic += float((shift[usable] ** 2 / variances[usable]).sum())
        degrees += int(usable.sum())
    return statistic, degrees


def _known_law(sample: _Sample, law: ReferenceLaw) -> Iterator[_Answer]:
    """Both questions, asked of a server whose law is known."""
    statistic, degrees = 0.0, 0
    common = {pair: place for place, pair in enumerate(_common(sample))}
    rates = Tally.empty(len(common) + 1)
    for (prompt, before), counts in _prefixes(sample).items():
        expected = law(prompt, before)
        if expected is None:
            continue
        if any(not expected.get(name, 0.0) > 0 for name in counts):
            yield _Answer(f"a token of probability 0 follows {prompt + ''.join(before)!r}", 0.0, 1)
            return
        number = sum(counts.values())
        # Of a vocabulary of thousands only the tokens that can be counted have a cell; the others share one.
        likely = [name for name, probability in expected.items() if number * probability >= SMALLEST_CELL]
        tally = Tally.empty(len(likely) + 1)
        tally.add(*_cells(counts, expected, likely))
        fit = tally.fit()
        if fit.degrees:
            # p-values become chi-squares of the same degrees again, so that prefixes of all sizes add up.
            statistic += _as_chi2(fit.p_value, fit.degrees)
            degrees += fit.degrees
        names = [name for own, name in common if own == prompt]
        observed, shares = _cells(counts, expected, names)
        cells = [*(common[prompt, name] for name in names), len(common)]
        coded, law_of_cells = np.zeros(len(common) + 1), np.zeros(len(common) + 1)
        coded[cells], law_of_cells[cells] = observed, shares
        rates.add(coded, law_of_cells)
    if degrees:
        yield _Answer("a next token does not follow the law of the reference", chi2_sf(statistic, degrees), degrees)
    fit = rates.fit()
    if fit.degrees:
        yield _Answer("tokens do not come at the rates of the reference", fit.p_value, fit.degrees)


def _cells(counts: Mapping[str, int], expected: Mapping[str, float], names: Sequence[str]) -> tuple[Floats, Floats]:
    """Counts and probabilities of these tokens, and of all others together."""
    observed = np.array([*(counts.get(name, 0) for name in names), 0.0])
    shares = np.array([*(expected.get(name, 0.0) for name in names), 0.0])
    observed[-1] = sum(counts.values()) - observed.sum()
    shares[-1] = max(0.0, 1.0 - shares.sum())
    return observed, shares / shares.sum()


def _as_chi2(p_value: float, degrees: int) -> float:
    """The chi-square value with this tail."""
    low, high = 0.0, 10.0 * degrees + 2_000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chi2_sf(middle, degrees) > p_value else (low, middle)
    return high


# --- greedy text


def _compare_greedy(
    server: Server, reference: Server, plan: EndpointPlan, findings: list[str], notes: list[str]
) -> int:
    """Greedy texts of both, and the margin where they part."""
    tests = 0
    for prompt in plan.prompts:
        mine, theirs = (
            one.complete(prompt, max_tokens=GREEDY_TOKENS, temperature=0.0, seed=plan.seed, logprobs=2)
            for one in (server, reference)
        )
        if not mine or not theirs:
            notes.append(f"could not test: no greedy text for {prompt!r}")
            continue
        tests += 1
        if mine[0].text == theirs[0].text:
            continue
        margin = _margin(mine[0], theirs[0])
        if margin is None:
            notes.append(
                f"could not test: greedy texts differ after {prompt!r}, but without logprobs nobody can say whether "
                "that is a near tie"
            )
        elif margin > NEAR_TIE:
            findings.append(f"greedy texts differ after {prompt!r} by a margin of {margin:.2f} nats")
        else:
            notes.append(f"greedy texts differ after {prompt!r} at a near tie of {margin:.2f} nats")
    return tests


def _margin(mine: Completion, theirs: Completion) -> float | None:
    """By how much the reference preferred its own token where the texts part."""
    if mine.tokens is None or theirs.tokens is None or theirs.alternatives is None:
        return None
    place = 0
    while place < min(len(mine.tokens), len(theirs.tokens)) and mine.tokens[place] == theirs.tokens[place]:
        place += 1
    if place >= min(len(mine.tokens), len(theirs.tokens), len(theirs.alternatives)):
        return None
    told = theirs.alternatives[place]
    own, other = told.get(theirs.tokens[place]), told.get(mine.tokens[place])
    if own is None or not told:
        return None
    return abs(own - (other if other is not None else min(told.values())))


def _check_greedy(server: Server, law: ReferenceLaw, plan: EndpointPlan, findings: list[str], notes: list[str]) -> int:
    """Each greedy token against the most probable one of the known law."""
    tests = 0
    for prompt in plan.prompts:
        answer = server.complete(prompt, max_tokens=8, temperature=0.0, seed=plan.seed, logprobs=1)
        if not answer or answer[0].tokens is None:
            notes.append(f"could not test: no greedy tokens for {prompt!r}")
            continue
        tests += 1
        tokens = answer[0].tokens
        for place, token in enumerate(tokens):
            expected = law(prompt, tokens[:place])
            if expected is None:
                break
            margin = math.log(max(expected.values())) - math.log(max(expected.get(token, 0.0), 1e-300))
            if margin > NEAR_TIE:
                findings.append(f"greedy token {place} after {prompt!r} is {token!r}, {margin:.2f} nats below the best")
                break
    return tests


# --- words and pictures


def _could_not(sample: _Sample, other: _Sample | None, plan: EndpointPlan) -> list[str]:
    """What was not tested, plainly."""
    notes = []
    for one in (sample, other):
        if one is None:
            continue
        name, trouble = one.server.base_url, one.server.trouble
        notes.append(f"{name}: {one.tokens} tokens sampled in {one.requests} requests")
        if one.without_tokens:
            notes.append(f"could not test: {name} gives no logprobs, so texts were compared as wholes")
        if trouble.rate_limited:
            notes.append(f"{name} refused {trouble.rate_limited} requests for their rate; they were sent again")
        if trouble.errors:
            notes.append(f"{name} failed {trouble.errors} requests: {'; '.join(trouble.messages[:3])}")
        if one.tokens < plan.tokens and one.requests >= plan.requests:
            notes.append(f"could not test further: the budget of {plan.requests} requests is used up")
    return notes


def _plots(sample: _Sample, other: _Sample | None, reference: Server | ReferenceLaw) -> tuple[LawPlot, ...]:
    """First tokens after each prompt, observed and expected."""
    plots = []
    for prompt, completions in sample.completions.items():
        counts: dict[str, int] = defaultdict(int)
        for tokens in completions:
            counts[tokens[0] if tokens else ""] += 1
        names = sorted(counts, key=lambda name: -counts[name])[:COMMON_TOKENS]
        observed = tuple(counts[name] / len(completions) for name in names)
        if other is not None:
            theirs = other.completions.get(prompt, [])
            expected = tuple(sum(t[:1] == (name,) for t in theirs) / max(1, len(theirs)) for name in names)
        else:
            assert not isinstance(reference, Server), "a law or a server"
            law = reference(prompt, ()) or {}
            expected = tuple(law.get(name, 0.0) for name in names)
        plots.append(LawPlot(f"first token after {prompt!r}", observed, expected))
    return tuple(plots)
