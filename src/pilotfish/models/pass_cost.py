"""What a forward pass costs at each number of rows: measured, on any executor.

Owns the way of measuring: row counts interleaved, medians, a time limit. The draft length policy and `pilotfish bench
step` both read these figures. Knows no model file, no command line and no reporting; `roofline.py` says what a pass
would cost at the machine's limits.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles

from pilotfish.errors import InvalidInputError
from pilotfish.models.base import Executor, PassOutput, Segment

Clock = Callable[[], float]

PREFILL_ROWS = 512


@dataclass(frozen=True, slots=True)
class PassCost:
    """Time of one pass.

    Attributes:
        rows: of the pass, all sequences together.
        seconds: the median.
        spread: the interquartile range, in seconds; 0 where there was one sample.
        repeats: how often it was timed.
    """

    rows: int
    seconds: float
    spread: float
    repeats: int


def row_cost(cost: PassCost, one_row: PassCost) -> float | None:
    """Time of one more row over the time of a one-row pass, averaged over the rows beyond the first.

    Zero where verifying is free, 1 where rows cost as much as passes of their own; `None` for a one-row pass.
    """
    assert one_row.rows == 1, "the unit is a one-row pass"
    if cost.rows == 1:
        return None
    return (cost.seconds - one_row.seconds) / (cost.rows - 1) / one_row.seconds


def measure_pass(
    executor: Executor,
    rows: Sequence[int],
    *,
    context: int,
    sequences: int = 1,
    repeats: int = 15,
    time_limit: float | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[PassCost, ...]:
    """Times passes of each number of rows, every row a node of a chain with logits; commits nothing of them.

    Each round times every row count once, upwards and downwards by turns, so that a disturbance of the machine
    meets all of them alike. The sequences opened here are closed again, whatever happens.

    Args:
        rows: rows per pass, dealt to the sequences as evenly as they go.
        context: committed tokens of each sequence before the rows.
        sequences: in the pass.
        repeats: rounds at most, after one that does not count.
        time_limit: seconds for all of it, the context's own pass included. No round is begun that would likely end
            later, but one is always timed.
        clock: seconds, monotonic.

    Returns:
        One cost per element of `rows`, in that order.

    Raises:
        InvalidInputError: a number is out of range, or context and rows exceed the model's context.
        CacheFullError: the executor's cache has no room for it.
    """
    _check(executor, rows, context, sequences, repeats, time_limit)
    started = clock()
    samples: list[list[float]] = [[] for _ in rows]
    with _sequences(executor, context, sequences, max(_deal(max(rows), sequences))) as opened:
        passes = [_pass(executor, opened, count) for count in rows]
        for segments in passes:
            _run(executor, segments)
        order = list(range(len(rows)))
        for _ in range(repeats):
            round_started = clock()
            for index in order:
                samples[index].append(_seconds(executor, passes[index], clock))
            order.reverse()
            now = clock()
            if time_limit is not None and now - started + (now - round_started) > time_limit:
                break
    return tuple(_cost(count, times) for count, times in zip(rows, samples, strict=True))


def outside_native_share(
    executor: Executor, *, context: int, repeats: int = 31, clock: Clock = time.perf_counter
) -> float | None:
    """The median share of a one-row pass spent outside native code; `None` where there is no native code.

    Raises:
        InvalidInputError, CacheFullError: as `measure_pass`.
    """
    from pilotfish.models.native_executor import NativeExecutor

    if not isinstance(executor, NativeExecutor):
        return None
    _check(executor, (1,), context, 1, repeats, None)
    shares = []
    with _sequences(executor, context, 1, 1) as opened:
        segments = _pass(executor, opened, 1)
        _run(executor, segments)
        for _ in range(repeats):
            inside_before = executor.native_seconds
            wall = _seconds(executor, segments, clock)
            shares.append(1 - (executor.native_seconds - inside_before) / wall)
    return max(0.0, median(shares))


def _check(
    executor: Executor, rows: Sequence[int], context: int, sequences: int, repeats: int, time_limit: float | None
) -> None:
    for name, value, smallest in (("context", context, 0), ("sequences", sequences, 1), ("repeats", repeats, 1)):
        if value < smallest:
            raise InvalidInputError(f"{name}={value}: expected at least {smallest}")
    if not rows:
        raise InvalidInputError("rows is empty: expected at least one number of rows")
    if min(rows) < sequences:
        raise InvalidInputError(f"rows holds {min(rows)}: expected at least one row for each of {sequences} sequences")
    if time_limit is not None and not time_limit > 0:
        raise InvalidInputError(f"time_limit={time_limit}: expected more than 0 seconds, or None")
    longest = context + max(_deal(max(rows), sequences))
    if longest > executor.config.context_length:
        raise InvalidInputError(
            f"context={context} and {max(rows)} rows need {longest} positions, the model has "
            f"{executor.config.context_length}: ask for a shorter context or fewer rows"
        )


def _deal(rows: int, sequences: int) -> list[int]:
    """Rows of each sequence, the first ones taking what is left over."""
    share, left = divmod(rows, sequences)
    return [share + (index < left) for index in range(sequences)]


@contextmanager
def _sequences(executor: Executor, context: int, count: int, room: int) -> Iterator[list[int]]:
    """Sequences with `context` committed tokens and room for as many nodes as are asked for."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(executor.open(context + room))
            for start in range(0, context, PREFILL_ROWS):
                tokens = _tokens(executor, start, min(PREFILL_ROWS, context - start))
                executor.forward([Segment(opened[-1], tokens, logits_from=len(tokens))])
                executor.keep(opened[-1], range(len(tokens)))
        yield opened
    finally:
        for sequence in opened:
            executor.close(sequence)


def _pass(executor: Executor, opened: Sequence[int], rows: int) -> list[Segment]:
    shares = _deal(rows, len(opened))
    return [
        Segment(sequence, _tokens(executor, sequence, share)) for sequence, share in zip(opened, shares, strict=True)
    ]


def _tokens(executor: Executor, start: int, count: int) -> list[int]:
    """Token ids scattered over the vocabulary, as those of a text are, so that embedding rows are not all cached."""
    return [(start + index + 1) * 7919 % executor.config.vocab_size for index in range(count)]


def _run(executor: Executor, segments: list[Segment]) -> PassOutput:
    output = executor.forward(segments)
    if output.logits.device.type != "cpu":
        output.logits[-1, -1].item()  # other devices only queue their work; a value waits for it
    return output


def _seconds(executor: Executor, segments: list[Segment], clock: Clock) -> float:
    started = clock()
    _run(executor, segments)
    return clock() - started


def _cost(rows: int, times: list[float]) -> PassCost:
    if len(times) == 1:
        return PassCost(rows, times[0], 0.0, 1)
    lower, _, upper = quantiles(times, n=4, method="inclusive")
    return PassCost(rows, median(times), upper - lower, len(times))
