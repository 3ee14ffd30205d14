"""The formula of expected speed, from measured costs: what a drafter and a draft length should bring.

S = E / (1 + c k + v k + o), after Leviathan et al. (2023), https://arxiv.org/abs/2211.17192, with the cost of verified
rows added: E are tokens per round, c k is the drafting time of a round, v k the time its k drafted rows add to the
pass, and o what the engine does around a round beyond what it does around a plain step, all in units of a plain step.
The inputs are measured apart from the speed that is predicted: passes by `measure_pass`, the unit by the plain side, E
and the drafts by counting.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pilotfish.errors import InvalidInputError

TOLERANCE = 0.1
"""How far a prediction may be off the measured speed."""


@dataclass(frozen=True, slots=True)
class ExpectedSpeed:
    """The formula's terms, in units of a plain step where they are times.

    Attributes:
        tokens_per_round: E, delivered per decode round.
        drafted_per_round: k, the mean of the drafts that were verified, empty ones included.
        draft_cost: c k.
        row_cost: v k.
        overhead: o; below 0 where a round takes less around its pass than a plain step.
        speedup: S.
    """

    tokens_per_round: float
    drafted_per_round: float
    draft_cost: float
    row_cost: float
    overhead: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_round / (1 + self.draft_cost + self.row_cost + self.overhead)

    def against(self, measured: float) -> dict[str, float]:
        """The terms, and how far the prediction is off what was measured, for JSON."""
        return {**asdict(self), "speedup": self.speedup, "error": self.speedup / measured - 1}


def expected_speed(figures: Mapping[str, Any], pass_costs: Mapping[str, Any]) -> ExpectedSpeed:
    """The formula on the figures of one line of a report.

    Args:
        figures: "overall" or one of "categories" of `pilotfish bench speed --json`.
        pass_costs: its "pass_costs", or what `pilotfish bench step --json` prints.

    Raises:
        InvalidInputError: nothing was decoded after the first tokens, so there is nothing to predict.
    """
    plain, speculative = figures["plain"], figures["speculative"]
    rounds = speculative["decode_rounds"]
    if not rounds or not plain["decode_tokens"]:
        raise InvalidInputError("no round after the first tokens: nothing to predict; ask for more tokens")
    step = plain["decode_seconds"] / plain["decode_tokens"]
    seconds = {each["rows"]: each["seconds"] for each in pass_costs["passes"]}
    sizes = {int(size): count for size, count in speculative["draft_sizes"].items()}
    added = sum(count * (pass_seconds(seconds, 1 + size) - seconds[1]) for size, count in sizes.items())
    return ExpectedSpeed(
        tokens_per_round=speculative["decode_tokens"] / rounds,
        drafted_per_round=sum(size * count for size, count in sizes.items()) / rounds,
        draft_cost=speculative["draft_seconds"] / rounds / step,
        row_cost=added / rounds / step,
        overhead=(speculative["rest_seconds"] / rounds - plain["rest_seconds"] / plain["decode_rounds"]) / step,
    )


def pass_seconds(measured: Mapping[int, float], rows: int) -> float:
    """Seconds of a pass of `rows` rows: straight lines between the measured ones and beyond the last."""
    places = sorted(measured)
    if rows in measured or len(places) == 1:
        return measured.get(rows, measured[places[0]])
    right = next((place for place, count in enumerate(places) if count > rows), len(places) - 1)
    lower, upper = places[max(right - 1, 0)], places[max(right, 1)]
    share = (rows - lower) / (upper - lower)
    return measured[lower] + share * (measured[upper] - measured[lower])
