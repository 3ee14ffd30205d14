"""What rounds take on this machine, measured through the engine itself, and what a finished drafter gives.

Owns the two measurements. The time of a draft depends on its shape and not on what it has learned, so a drafter that
has learned nothing yet is good enough to know the costs of the one to come. Knows no training.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.engine.calibration import ROWS, pass_time
from pilotfish.engine.llm import LLM
from pilotfish.errors import TrainingError
from pilotfish.sampling.params import SamplingParams
from pilotfish.train.projection import RoundCosts

SHORT, LONG = 2, 6
"""Draft lengths at which rounds are timed: their difference is what a drafted token takes."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of several answers, after their first tokens.

    Attributes:
        tokens: delivered.
        rounds: that delivered them.
        seconds: all together.
    """

    tokens: int
    rounds: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds


def decode_speed(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    ignore_eos: bool = False,
) -> tuple[Speed, list[tuple[int, ...]]]:
    """Answers the prompts one after the other.

    Raises:
        TrainingError: no answer was longer than its first round.

    Returns:
        the speed, and the token ids of the answers.
    """
    params = SamplingParams(temperature=temperature, seed=0, max_tokens=max_tokens, ignore_eos=ignore_eos)
    tokens = rounds = 0
    seconds = 0.0
    answers = []
    for prompt in prompts:
        answer: list[int] = []
        first = last = 0.0
        for delta in llm.stream(list(prompt), params):
            last = time.perf_counter()
            if answer:
                tokens += len(delta.token_ids)
                rounds += 1
            else:
                first = last
            answer.extend(delta.token_ids)
        seconds += last - first
        answers.append(tuple(answer))
    if not seconds or not rounds:
        raise TrainingError("no answer was longer than a round, so no speed was measured: allow more tokens")
    return Speed(tokens, rounds, seconds), answers


def measure_costs(
    llm: LLM,
    fingerprint: str,
    config: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int = 33,
) -> RoundCosts:
    """The costs of rounds with a drafter.

    Args:
        llm: the target without a drafter.
        fingerprint: of the target's weights.
        config: of the drafter, without a draft length.
        prompts: some of the text it will be used for.
        max_tokens: per prompt and measurement.
    """
    target = llm.engine.target
    times = pass_time(target, fingerprint)
    passes = {rows: times(rows) for rows in ROWS if rows <= target.config.context_length // 2}
    plain, _ = decode_speed(llm, prompts, max_tokens=max_tokens, ignore_eos=True)
    seconds = {}
    for draft_len in (SHORT, LONG):
        drafting = llm.with_speculation({**config, "num_speculative_tokens": draft_len})
        speed, _ = decode_speed(drafting, prompts, max_tokens=max_tokens, ignore_eos=True)
        seconds[draft_len] = speed.seconds / speed.rounds
    costs = RoundCosts(plain.seconds / plain.tokens, passes, 0.0, 0.0)
    beyond = {draft_len: taken - costs.round_seconds(draft_len) for draft_len, taken in seconds.items()}
    draft = max(0.0, (beyond[LONG] - beyond[SHORT]) / (LONG - SHORT))
    return RoundCosts(costs.plain, passes, draft, beyond[SHORT] - SHORT * draft)
