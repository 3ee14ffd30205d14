"""How `pilotfish bench speed` measures, and what it found: settings checked, runs by temperature, figures for JSON.

Owns which figures are formed of which runs. Formulas are in `totals.py`, `expected.py`, `oracle.py`. Knows no engine.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pilotfish.bench.expected import expected_speed
from pilotfish.bench.oracle import Hindsight, oracle_figures
from pilotfish.bench.step import StepReport
from pilotfish.bench.totals import Pair, compared
from pilotfish.errors import InvalidInputError
from pilotfish.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """How to measure.

    Attributes:
        temperatures: all questions are asked at each.
        max_tokens: of an answer.
        repeats: of everything; the same requests with the same seeds, for the spread. Each is a pass with engines of
            its own.
        seed: a request's seed is this plus the question's place in its file.
        cold: a fresh engine and drafter for every request, instead of one for all of a pass.

    Raises:
        InvalidInputError: a value is out of range.
    """

    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_tokens: int = 128
    repeats: int = 1
    seed: int = 0
    cold: bool = False

    def __post_init__(self) -> None:
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            raise InvalidInputError(f"temperatures={self.temperatures}: expected one or more, each once")
        if self.repeats < 1:
            raise InvalidInputError(f"repeats={self.repeats}: expected at least 1")
        if self.seed < 0:
            raise InvalidInputError(f"seed={self.seed}: expected at least 0")
        for temperature in self.temperatures:
            self.params(temperature, 0)

    def params(self, temperature: float, place: int) -> SamplingParams:
        """The sampling parameters of the question at `place`.

        Raises:
            SamplingParamsError: one of them is out of range.
        """
        return SamplingParams(temperature=temperature, seed=self.seed + place, max_tokens=self.max_tokens)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A turn that could not be asked: with the conversation before it, it does not fit the model's context."""

    question_id: int | str
    turn: int
    prompt_tokens: int


@dataclass(slots=True)
class SpeedResult:
    """What was measured.

    Attributes:
        exact: whether the executor promises equal ids.
        pairs, skipped: by temperature, what was asked and what was left out.
        hindsight: by temperature, category and what every drafter would have been right about in an answer.
        contexts: tokens in the middle of each answer, prompt included.
        pass_costs: the target's passes by number of rows, where they were timed too.
    """

    exact: bool
    pairs: dict[float, list[Pair]] = field(default_factory=dict)
    skipped: dict[float, list[Skipped]] = field(default_factory=dict)
    hindsight: dict[float, list[tuple[str, Hindsight]]] = field(default_factory=dict)
    contexts: list[int] = field(default_factory=list)
    pass_costs: StepReport | None = None

    @property
    def identical(self) -> bool:
        """Whether every answer had the same token ids on both sides."""
        return all(pair.identical for pairs in self.pairs.values() for pair in pairs)

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON; those at the top are of the first temperature."""
        temperatures = []
        for temperature, pairs in self.pairs.items():
            categories = list(dict.fromkeys(pair.category for pair in pairs))
            temperatures.append(
                {
                    "temperature": temperature,
                    "overall": self._figures(temperature, categories),
                    "categories": {category: self._figures(temperature, [category]) for category in categories},
                    "engines": sum(pair.speculative.earlier_requests == 0 for pair in pairs),
                    "skipped": [asdict(skipped) for skipped in self.skipped[temperature]],
                }
            )
        return {
            "overall": temperatures[0]["overall"],
            "categories": temperatures[0]["categories"],
            "temperatures": temperatures,
            "identical": self.identical,
            "exact": self.exact,
            "pass_costs": self.pass_costs and self.pass_costs.as_dict(),
        }

    def _figures(self, temperature: float, categories: Sequence[str]) -> dict[str, Any]:
        """Those of some categories: both sides, what the formula expects, and the best choice in hindsight."""
        figures = compared([pair for pair in self.pairs[temperature] if pair.category in categories])
        figures["expected"] = figures["oracle"] = None
        plain, measured = figures["plain"], figures["speedup"]
        if self.pass_costs is None or not measured or not plain["decode_tokens"]:
            return figures
        costs = self.pass_costs.as_dict()
        figures["expected"] = expected_speed(figures, costs).against(measured)
        answers = [answer for category, answer in self.hindsight.get(temperature, ()) if category in categories]
        figures["oracle"] = oracle_figures(answers, plain["decode_seconds"] / plain["decode_tokens"], costs)
        return figures
