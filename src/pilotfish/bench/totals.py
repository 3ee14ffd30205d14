"""Figures of many runs: totals first, ratios last.

Owns every formula of the reports. A speed is all tokens over all seconds, never a mean of speeds, and a speedup is a
ratio of two such speeds over the same requests. Knows no model and no output format.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.bench.measure import Run


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over runs of one side.

    Attributes:
        runs: how many.
        tokens: delivered.
        seconds: end to end.
        decode_tokens, decode_seconds: after each run's first delivery.
        first_seconds: sum of the times to the first delivery.
        rounds: target forwards that delivered tokens; `decode_rounds` those after each run's first.
        draft_seconds, verify_seconds: parts of `decode_seconds`; `policy_seconds` is a part of the former.
        draft_sizes: for each number of drafted tokens, the decode rounds that verified so many.
    """

    runs: int
    tokens: int
    seconds: float
    decode_tokens: int
    decode_seconds: float
    first_seconds: float
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    drafted_per_position: tuple[int, ...]
    draft_sizes: dict[int, int]
    draft_seconds: float
    verify_seconds: float
    policy_seconds: float

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Totals":
        sizes: Counter[int] = Counter()
        for run in runs:
            sizes.update(run.draft_sizes)
        return cls(
            runs=len(runs),
            tokens=sum(len(run.token_ids) for run in runs),
            seconds=sum(run.seconds for run in runs),
            decode_tokens=sum(len(run.token_ids) - run.first_tokens for run in runs),
            decode_seconds=sum(run.seconds - run.first_seconds for run in runs),
            first_seconds=sum(run.first_seconds for run in runs),
            rounds=sum(run.rounds for run in runs),
            drafted_tokens=sum(run.drafted_tokens for run in runs),
            accepted_tokens=sum(run.accepted_tokens for run in runs),
            accepted_per_position=_columns(run.accepted_per_position for run in runs),
            drafted_per_position=_columns(run.drafted_per_position for run in runs),
            draft_sizes={size: sizes[size] for size in sorted(sizes) if sizes[size]},
            draft_seconds=sum(run.draft_seconds for run in runs),
            verify_seconds=sum(run.verify_seconds for run in runs),
            policy_seconds=sum(run.policy_seconds for run in runs),
        )

    @property
    def decode_rounds(self) -> int:
        return self.rounds - self.runs

    @property
    def tokens_per_second(self) -> float | None:
        """Decode only: tokens after the first delivery over the seconds after it; `None` when there were none."""
        return _ratio(self.decode_tokens, self.decode_seconds)

    @property
    def end_to_end_tokens_per_second(self) -> float | None:
        """All tokens over all seconds, reading the prompt included."""
        return _ratio(self.tokens, self.seconds)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds to the first delivery, the mean over runs."""
        return _ratio(self.first_seconds, self.runs)

    @property
    def tokens_per_round(self) -> float | None:
        """Delivered over rounds, the target's own token included ("mean acceptance length")."""
        return _ratio(self.tokens, self.rounds)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """By depth: drafted tokens delivered over rounds whose draft reached that depth."""
        missing = len(self.drafted_per_position) - len(self.accepted_per_position)
        accepted = (*self.accepted_per_position, *(0,) * missing)
        return tuple(a / d for a, d in zip(accepted, self.drafted_per_position, strict=True))

    @property
    def rest_seconds(self) -> float:
        """Neither drafter nor target: choices, verdicts, end conditions, text."""
        return max(0.0, self.decode_seconds - self.draft_seconds - self.verify_seconds)

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON."""
        return {
            "requests": self.runs,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "decode_tokens": self.decode_tokens,
            "decode_seconds": self.decode_seconds,
            "tokens_per_second": self.tokens_per_second,
            "end_to_end_tokens_per_second": self.end_to_end_tokens_per_second,
            "time_to_first_token": self.time_to_first_token,
            "rounds": self.rounds,
            "decode_rounds": self.decode_rounds,
            "tokens_per_round": self.tokens_per_round,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "accepted_per_position": list(self.accepted_per_position),
            "drafted_per_position": list(self.drafted_per_position),
            "acceptance_by_position": list(self.acceptance_by_position),
            "draft_sizes": {str(size): count for size, count in self.draft_sizes.items()},
            "draft_seconds": self.draft_seconds,
            "policy_seconds": self.policy_seconds,
            "verify_seconds": self.verify_seconds,
            "rest_seconds": self.rest_seconds,
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """The same request run plainly and speculatively.

    Attributes:
        question_id, turn: which request; turns from 0.
        repeat: which of its repetitions, from 0.
    """

    category: str
    question_id: int | str
    turn: int
    repeat: int
    plain: Run
    speculative: Run

    @property
    def identical(self) -> bool:
        """Whether every token id agrees, and their number."""
        return self.plain.token_ids == self.speculative.token_ids


def compared(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The figures of some pairs: both sides, and one against the other."""
    plain = Totals.of([pair.plain for pair in pairs])
    speculative = Totals.of([pair.speculative for pair in pairs])
    different = sorted({(str(pair.question_id), pair.turn) for pair in pairs if not pair.identical})
    by_repeat = []
    for repeat in sorted({pair.repeat for pair in pairs}):
        own = [pair for pair in pairs if pair.repeat == repeat]
        by_repeat.append(
            speedup(Totals.of([pair.speculative for pair in own]), Totals.of([pair.plain for pair in own]))
        )
    return {
        "plain_tokens_per_second": plain.tokens_per_second,
        "speculative_tokens_per_second": speculative.tokens_per_second,
        "speedup": speedup(speculative, plain),
        "speedup_by_repeat": by_repeat,
        "end_to_end_speedup": _ratio(
            speculative.end_to_end_tokens_per_second or 0.0, plain.end_to_end_tokens_per_second or 0.0
        ),
        "tokens_per_round": speculative.tokens_per_round,
        "accepted_per_position": list(speculative.accepted_per_position),
        "acceptance_by_position": list(speculative.acceptance_by_position),
        "identical": not different,
        "different": [{"question_id": question, "turn": turn} for question, turn in different],
        "plain": plain.as_dict(),
        "speculative": speculative.as_dict(),
    }


def speedup(speculative: Totals, plain: Totals) -> float | None:
    """Ratio of the decode speeds; `None` where one of them was not seen."""
    return _ratio(speculative.tokens_per_second or 0.0, plain.tokens_per_second or 0.0)


def _ratio(value: float | int, unit: float | int) -> float | None:
    return value / unit if unit > 0 else None


def _columns(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    totals: list[int] = []
    for row in rows:
        totals.extend([0] * (len(row) - len(totals)))
        for place, count in enumerate(row):
            totals[place] += count
    return tuple(totals)
