"""Time of one forward pass by number of rows, beside what the machine would allow.

Owns the report of `pilotfish bench step`. The measuring itself is `models/pass_cost.py`, which knows no report.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pilotfish.errors import InvalidInputError
from pilotfish.models.base import Executor
from pilotfish.models.pass_cost import measure_pass, outside_native_share, row_cost
from pilotfish.models.roofline import MachineLimits, Roofline, executor_facts

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 256)


@dataclass(frozen=True, slots=True)
class StepPass:
    """One line of the report.

    Attributes:
        seconds: median time of a pass.
        roofline_seconds: the least the machine allows; `None` where its limits are not known.
        row_cost: time of one more row over the time of a one-row pass; `None` for one row.
    """

    rows: int
    seconds: float
    roofline_seconds: float | None
    row_cost: float | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What `pilotfish bench step --json` prints, field by field.

    Attributes:
        weights: how the matrices are stored.
        context: committed tokens before the rows.
        bandwidth_bytes_per_second, peak_flops: measured limits; `None` where they were not.
        outside_native_share: of a one-row pass; `None` on the PyTorch executor.
    """

    weights: str
    context: int
    threads: int
    bandwidth_bytes_per_second: float | None
    peak_flops: float | None
    passes: tuple[StepPass, ...]
    outside_native_share: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def measure_step(
    executor: Executor, *, context: int = 256, rows: Sequence[int] = ROWS, repeats: int = 15
) -> StepReport:
    """Measures passes of each number of rows after `context` tokens of one sequence.

    Raises:
        InvalidInputError: a number is out of range, `rows` lacks 1 (the unit of the row cost), or context and rows
            exceed the model's context.
        CacheFullError: the executor's cache has no room for it.
    """
    if 1 not in rows:
        raise InvalidInputError(f"rows={','.join(map(str, rows))}: expected 1 among them, the unit of the row cost")
    facts = executor_facts(executor)
    before = MachineLimits.measure_if_possible(facts.threads, facts.weights) if facts.on_cpu else None
    costs = measure_pass(executor, rows, context=context, repeats=repeats)
    share = outside_native_share(executor, context=context)
    limits = before and before.highest(MachineLimits.measure(facts.threads, facts.weights))
    roofline = limits and Roofline(executor.config, facts, limits)
    one_row = costs[list(rows).index(1)]
    return StepReport(
        weights=facts.weights,
        context=context,
        threads=facts.threads,
        bandwidth_bytes_per_second=limits.bandwidth_bytes_per_second if limits else None,
        peak_flops=limits.peak_flops if limits else None,
        passes=tuple(
            StepPass(
                rows=cost.rows,
                seconds=cost.seconds,
                roofline_seconds=roofline.seconds(cost.rows, context) if roofline else None,
                row_cost=row_cost(cost, one_row),
            )
            for cost in costs
        ),
        outside_native_share=share,
    )
