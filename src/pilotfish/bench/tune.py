"""Which drafter and which draft length are fastest on some prompts: the measurement behind `pilotfish tune`.

Owns the search. Candidates are compared on the same prompts, all of them on one prompt before the next, and the slower
half is dropped again and again (successive halving, https://arxiv.org/abs/1502.07943), so that most of the time goes
into telling the best ones apart. Plain decoding is measured all along and may win. Knows no output format.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.bench.measure import Clock, Run, run_request
from pilotfish.bench.questions import built_in, by_turns_of_categories, parse_object, read_lines
from pilotfish.bench.speed import require_forgetful
from pilotfish.bench.totals import Totals, speedup
from pilotfish.engine.config import METHODS, SpeculativeConfig
from pilotfish.engine.llm import LLM
from pilotfish.errors import InvalidInputError, SpeculativeConfigError
from pilotfish.sampling.params import SamplingParams

LENGTHS: tuple[int | str, ...] = (1, 2, 4, 8, "auto")
FIRST_PROMPTS = 8
"""Prompts before the first halving; twice as many before each further one."""

PLAIN: dict[str, Any] = {"method": "off"}
"""What the command line takes for plain decoding, in a configuration file too."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration to measure; `None` is plain decoding."""

    config: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        if self.config is None:
            return "plain"
        rest = {key: value for key, value in self.config.items() if key not in ("method", "num_speculative_tokens")}
        parts = [str(self.config.get("method", "draft_model")), *(f"{key}={value}" for key, value in rest.items())]
        if "num_speculative_tokens" in self.config:
            parts.append(f"k={self.config['num_speculative_tokens']}")
        return " ".join(parts)


@dataclass(slots=True)
class Trial:
    """A candidate, its runs, one per prompt from the first on, and the engine that lives through them."""

    candidate: Candidate
    runs: list[Run] = field(default_factory=list)
    llm: LLM | None = None

    @property
    def totals(self) -> Totals:
        return Totals.of(self.runs)


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What was measured.

    Attributes:
        plain: plain decoding, on every prompt that was measured.
        trials: the others, the best first; a dropped one has fewer runs.
        best: the fastest of those that were never dropped, plain decoding among them.
        exact: whether the executor promises equal ids.
    """

    plain: Trial
    trials: tuple[Trial, ...]
    best: Candidate
    exact: bool

    def speedup_of(self, trial: Trial) -> float | None:
        """Over plain decoding on the same prompts."""
        return speedup(trial.totals, Totals.of(self.plain.runs[: len(trial.runs)]))

    def same_ids(self, trial: Trial) -> bool:
        """Whether a candidate's tokens are those of plain decoding."""
        pairs = zip(trial.runs, self.plain.runs, strict=False)
        return all(own.token_ids == plain.token_ids for own, plain in pairs)

    @property
    def identical(self) -> bool:
        return all(self.same_ids(trial) for trial in self.trials)

    @property
    def config(self) -> dict[str, Any]:
        """The best configuration, as `--speculative-config @file.json` takes it."""
        return dict(self.best.config) if self.best.config is not None else dict(PLAIN)

    @property
    def recommendation(self) -> str:
        """One sentence."""
        prompts = len(self.plain.runs)
        plain = self.plain.totals.tokens_per_second or 0.0
        if self.best.config is None:
            nearest = max(self.trials, key=lambda trial: self.speedup_of(trial) or 0.0)
            return (
                f"Leave speculation off: on these {prompts} prompts plain decoding makes {plain:.1f} tokens/s and the "
                f"best drafter, {nearest.candidate.name}, is {self.speedup_of(nearest) or 0.0:.2f} times as fast."
            )
        trial = next(trial for trial in self.trials if trial.candidate is self.best)
        return (
            f"Use {trial.candidate.name}: on these {prompts} prompts it makes "
            f"{trial.totals.tokens_per_second or 0.0:.1f} tokens/s, {self.speedup_of(trial) or 0.0:.2f} times plain "
            "decoding."
        )

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON."""
        return {
            "recommendation": self.recommendation,
            "speculative_config": self.config,
            "identical": self.identical,
            "exact": self.exact,
            "candidates": [
                {
                    "name": trial.candidate.name,
                    "speculative_config": dict(trial.candidate.config or PLAIN),
                    "speedup": self.speedup_of(trial),
                    "identical": self.same_ids(trial),
                    **trial.totals.as_dict(),
                }
                for trial in (self.plain, *self.trials)
            ],
        }


def load_prompts(path: str | Path | None) -> list[str]:
    """Prompts of a file, or those of the built-in questions, mixed.

    A file ending in ".jsonl" has one object per line with `prompt`, or with `turns` as Spec-Bench has it, of which the
    first is taken; any other file is text with one prompt per line.

    Raises:
        InvalidInputError: it cannot be read, is empty, or a line has no prompt; names file and line.
    """
    if path is None:
        return [question.turns[0] for question in by_turns_of_categories(built_in())]
    prompts = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            prompts.append(_prompt(line, f"{path}:{number}") if str(path).endswith(".jsonl") else line.strip())
    if not prompts:
        raise InvalidInputError(f"{path} has no prompts: expected one per line")
    return prompts


def candidates(drafters: Sequence[Mapping[str, Any]] | None, lengths: Sequence[int | str] | None) -> list[Candidate]:
    """Each drafter at each length.

    Args:
        drafters: configurations; one that has `num_speculative_tokens` already is taken as it is. By default every
            method that needs no model.
        lengths: values of `num_speculative_tokens`; by default `LENGTHS`, as far as a drafter takes them.

    Raises:
        SpeculativeConfigError: a configuration that was asked for cannot be, or keeps answers.
    """
    given = [{"method": method} for method in METHODS] if drafters is None else list(drafters)
    found: list[Candidate] = []
    for drafter in given:
        fixed = "num_speculative_tokens" in drafter
        # "auto" decides the length itself; a number is only its most.
        own_lengths = lengths or (LENGTHS[-1:] if drafter.get("method") == "auto" else LENGTHS)
        own = [drafter] if fixed else [{**drafter, "num_speculative_tokens": k} for k in own_lengths]
        for config in own:
            try:
                SpeculativeConfig.from_mapping(config)
            except SpeculativeConfigError:
                asked_for = fixed or (drafters is not None and (lengths is not None or config is own[0]))
                if asked_for:
                    raise
                continue
            require_forgetful(config)
            found.append(Candidate(config))
    if not found:
        raise InvalidInputError("no drafter to measure: name one that takes these lengths")
    return found


def tune(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    to_measure: Sequence[Candidate],
    params: SamplingParams,
    *,
    seconds: float,
    progress: Callable[[float, float], None] = lambda done, of: None,
    clock: Clock = time.perf_counter,
    run: Callable[[LLM, Sequence[int], SamplingParams], Run] = run_request,
) -> TuneResult:
    """Measures the candidates and plain decoding until one candidate is left, prompts run out or the time is up.

    Every candidate is measured on the first prompt, whatever that takes. Each has one engine for all prompts, so that
    its drafters learn from one to the next as they do in use.

    Args:
        llm: the loaded target; its own drafter is not used.
        prompts: token ids.
        params: of every request, with a seed.
        seconds: time for all of it, dealt evenly to the rounds between halvings.
        progress: told how many seconds of how many are spent.
        run: makes and times one request; for tests.

    Raises:
        InvalidInputError: there is nothing to measure.
        PromptError: a prompt does not fit the model's context.
    """
    if not prompts or not to_measure:
        raise InvalidInputError("nothing to measure: expected prompts and candidates")
    if not seconds > 0:
        raise InvalidInputError(f"seconds={seconds}: expected more than 0")
    assert params.seed is not None, "without a seed the candidates would not answer the same"
    plain, trials = Trial(Candidate(None)), [Trial(candidate) for candidate in to_measure]
    _warm_up(llm, prompts[0], [plain, *trials])
    started = clock()
    alive, quota = list(trials), 0
    halvings = max(len(trials) - 1, 1).bit_length()
    for halving in range(halvings):
        quota += FIRST_PROMPTS * 2**halving
        deadline = started + seconds * (halving + 1) / halvings
        while len(plain.runs) < min(quota, len(prompts)) and (not plain.runs or clock() < deadline):
            _measure_prompt(prompts[len(plain.runs)], params, [plain, *alive], run)
            progress(min(clock() - started, seconds), seconds)
        alive.sort(key=_speed, reverse=True)
        if len(alive) <= 2 or len(plain.runs) == len(prompts):
            break
        alive = alive[: max(2, (len(alive) + 1) // 2)]
    best = max([plain, *alive], key=_speed)
    ranked = sorted(trials, key=lambda trial: (len(trial.runs), _speed(trial)), reverse=True)
    return TuneResult(plain, tuple(ranked), best.candidate, llm.engine.target.exact)


def _measure_prompt(
    prompt: Sequence[int],
    params: SamplingParams,
    trials: Sequence[Trial],
    run: Callable[[LLM, Sequence[int], SamplingParams], Run],
) -> None:
    """One prompt on all of them; who comes first changes from prompt to prompt."""
    first = len(trials[0].runs) % len(trials)
    for trial in (*trials[first:], *trials[:first]):
        assert trial.llm is not None, "warmed up"
        trial.runs.append(run(trial.llm, prompt, params))


def _warm_up(llm: LLM, prompt: Sequence[int], trials: Sequence[Trial]) -> None:
    """Every candidate once, not counted: what cannot be used is refused here, and models are read.

    That engine is dropped, as it has seen a prompt that comes again.
    """
    for trial in trials:
        own = llm.with_speculation(trial.candidate.config)
        run_request(own, prompt, SamplingParams(temperature=0.0, max_tokens=4))
        trial.llm = llm.with_speculation(trial.candidate.config)


def _speed(trial: Trial) -> float:
    return trial.totals.tokens_per_second or 0.0


def _prompt(line: str, where: str) -> str:
    record = parse_object(line, where)
    turns = record.get("turns")
    prompt = record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidInputError(f"{where}: got {json.dumps(record)[:60]}, expected 'prompt' or 'turns' with text")
    return prompt
