"""Sampled text of servers: drawing it within a budget, and the two questions asked of it.

Owns the statistics of the endpoint level. The tokens of a completion depend on each other as they may; nothing here
assumes otherwise.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pilotfish.audit.endpoint_client import Completion, Server
from pilotfish.audit.statistics import SMALLEST_CELL, Floats, Tally, chi2_sf, two_sample_fit
from pilotfish.errors import InvalidInputError

TOKENS_PER_COMPLETION = 4
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
class Sample:
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
class Answer:
    """One question at one look."""

    question: str
    p_value: float
    degrees: int


def _prefixes(sample: Sample) -> dict[tuple[str, tuple[str, ...]], dict[str, int]]:
    """How often each token followed each prefix."""
    counts: dict[tuple[str, tuple[str, ...]], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for prompt, completions in sample.completions.items():
        for tokens in completions:
            for place, token in enumerate(tokens):
                counts[prompt, tokens[:place]][token] += 1
    return counts


def two_samples(left: Sample, right: Sample) -> Iterator[Answer]:
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
        yield Answer(text, chi2_sf(statistic, degrees), degrees)
    common = _common(left, right)
    if len(common) > 1:
        value, freedom = _hotelling(_per_completion(left, common), _per_completion(right, common))
        yield Answer("the two servers choose tokens at different rates", chi2_sf(value, freedom), freedom)


def _common(*samples: Sample) -> list[tuple[str, str]]:
    """(prompt, token) pairs frequent enough to be counted by themselves."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for sample in samples:
        for prompt, completions in sample.completions.items():
            for tokens in completions:
                for token in tokens:
                    counts[prompt, token] += 1
    frequent = sorted((pair for pair in counts if counts[pair] >= 100), key=lambda pair: (-counts[pair], pair))
    return frequent[:COMMON_TOKENS]


def _per_completion(sample: Sample, common: Sequence[tuple[str, str]]) -> dict[str, Floats]:
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


def known_law(sample: Sample, law: ReferenceLaw) -> Iterator[Answer]:
    """Both questions, asked of a server whose law is known."""
    statistic, degrees = 0.0, 0
    common = {pair: place for place, pair in enumerate(_common(sample))}
    rates = Tally.empty(len(common) + 1)
    for (prompt, before), counts in _prefixes(sample).items():
        expected = law(prompt, before)
        if expected is None:
            continue
        if any(not expected.get(name, 0.0) > 0 for name in counts):
            yield Answer(f"a token of probability 0 follows {prompt + ''.join(before)!r}", 0.0, 1)
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
        yield Answer("a next token does not follow the law of the reference", chi2_sf(statistic, degrees), degrees)
    fit = rates.fit()
    if fit.degrees:
        yield Answer("tokens do not come at the rates of the reference", fit.p_value, fit.degrees)


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
