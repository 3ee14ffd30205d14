"""Plain against speculative decoding, question by question: the measurement behind `pilotfish bench speed`.

Owns the order of things: the same request on both sides, one right after the other and by turns first, so that whatever
else the machine does meets both alike. One engine per side lives through all questions of a pass, the categories by
turns, so that what its drafters learn is kept from request to request as in use; it is asked each question once, so
that no answer can be remembered. Formulas are in `totals.py`, output in `report.py`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from pilotfish.bench.expected import expected_speed
from pilotfish.bench.measure import Run, run_request
from pilotfish.bench.oracle import Config, Hindsight, Watch, oracle_figures
from pilotfish.bench.partial import Key, PartialResults
from pilotfish.bench.questions import Question, by_turns_of_categories
from pilotfish.bench.step import StepReport, measure_step
from pilotfish.bench.totals import Pair, compared
from pilotfish.engine.config import SpeculativeConfig
from pilotfish.engine.llm import LLM
from pilotfish.errors import InvalidInputError, SpeculativeConfigError
from pilotfish.models.tokenizer import Tokenizer
from pilotfish.sampling.params import SamplingParams

Side: TypeAlias = Literal["plain", "speculative"]
SIDES: tuple[Side, Side] = ("plain", "speculative")
HINDSIGHT = "hindsight"

WARM_UP_TOKENS = 8
PASS_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 17)
PASS_REPEATS = 9


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


def measure_speed(
    llm: LLM,
    config: Config,
    questions: Sequence[Question],
    settings: SpeedSettings,
    results: PartialResults,
    *,
    oracle: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
    run: Callable[[LLM, Sequence[int], SamplingParams], Run] = run_request,
) -> SpeedResult:
    """Asks all questions on both sides at every temperature.

    Args:
        llm: the loaded target; its own drafter is not used.
        config: of the speculative side.
        results: runs that are known already are not made again; new ones are added. Engines start anew where a
            measurement goes on.
        oracle: watch the drafters on every answer as well, for the best choice in hindsight; takes as long as the plain
            side.
        progress: told how many requests of how many are done.
        run: makes and times one request; for tests.

    Raises:
        SpeculativeConfigError, ModelError, TokenizerMismatchError: the configuration cannot be used with this target,
            or keeps answers.
    """
    require_forgetful(config)
    result = SpeedResult(exact=llm.engine.target.exact)
    session = _Session(llm, config, settings, results, run, result, oracle)
    turns = sum(len(question.turns) for question in questions)
    total, done = 2 * turns * settings.repeats * len(settings.temperatures), 0
    session.warm_up(questions[0])
    for temperature in settings.temperatures:
        pairs: list[Pair] = []
        skipped: list[Skipped] = []
        for repeat in range(settings.repeats):
            session.start_pass()
            for question in by_turns_of_categories(questions):
                asked, left_out = session.ask(question, temperature, repeat)
                pairs.extend(asked)
                skipped.extend(left_out if repeat == 0 else ())
                done += 2 * len(question.turns)
                progress(done, total)
        if not pairs:
            raise InvalidInputError("no question fits the model's context: ask shorter ones")
        result.pairs[temperature], result.skipped[temperature] = pairs, skipped
    return result


def require_forgetful(config: Config) -> None:
    """Refuses a drafter that remembers answers: it would be measured on what it was told before.

    Raises:
        SpeculativeConfigError: it names a pool, or is no configuration at all.
    """
    parsed = SpeculativeConfig.parse(config)
    for member in (parsed, *(parsed.drafters or ())) if parsed is not None else ():
        if member.suffix_pool is not None:
            raise SpeculativeConfigError(
                f"suffix_pool={member.suffix_pool!r} keeps answers, which a measurement must not know: leave it out"
            )


def measure_passes(llm: LLM, contexts: Sequence[int]) -> StepReport:
    """The target's passes by number of rows, after a context as long as the middle one of those given."""
    config = llm.engine.target.config
    rows = [count for count in PASS_ROWS if count <= config.context_length // 2]
    context = min(sorted(contexts)[len(contexts) // 2], config.context_length - max(rows))
    return measure_step(llm.engine.target, context=context, rows=rows, repeats=PASS_REPEATS)


def header(
    model: str, config: Config, questions: Sequence[Question], settings: SpeedSettings, **machine: Any
) -> dict[str, Any]:
    """What the figures depend on, for partial results and reports; plain values, as JSON gives them back."""
    asked = json.dumps([asdict(question) for question in questions], ensure_ascii=False)
    facts = {
        "model": model,
        "speculative_config": asdict(config) if isinstance(config, SpeculativeConfig) else config,
        "questions": {"count": len(questions), "sha256": hashlib.sha256(asked.encode()).hexdigest()},
        **asdict(settings),
        **machine,
    }
    return dict(json.loads(json.dumps(facts)))


def prompt_of(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a conversation: by the chat template, or, where the model has none, its texts line by line."""
    if tokenizer.has_chat_template:
        return tokenizer.chat(messages)
    return tokenizer.encode("".join(f"{message['content']}\n" for message in messages))


@dataclass(slots=True)
class _Session:
    """Both sides of one measurement over one loaded target."""

    llm: LLM
    config: Config
    settings: SpeedSettings
    results: PartialResults
    run: Callable[[LLM, Sequence[int], SamplingParams], Run]
    result: SpeedResult
    oracle: bool
    _asked: int = 0
    _living: dict[Side, LLM] = field(default_factory=dict)
    _answered: dict[Side, int] = field(default_factory=dict)
    _watch: Watch | None = None

    def warm_up(self, question: Question) -> None:
        """Both sides once, not counted: threads start, pages are touched, files are read. Their engines are dropped."""
        prompt = prompt_of(self.llm.tokenizer, [{"role": "user", "content": question.turns[0]}])
        prompt = prompt[: self.llm.engine.target.config.context_length // 2]
        for side in SIDES:
            run_request(self._fresh(side), prompt, SamplingParams(temperature=0.0, max_tokens=WARM_UP_TOKENS))

    def start_pass(self) -> None:
        """Forgets the engines: the questions come again, and nobody may know their answers."""
        self._living.clear()
        self._answered = dict.fromkeys(SIDES, 0)
        self._watch = None

    def ask(self, question: Question, temperature: float, repeat: int) -> tuple[list[Pair], list[Skipped]]:
        """All turns of a question on both sides; the plain side's answers go into the conversation of both."""
        params = self.settings.params(temperature, question.place)
        messages: list[dict[str, str]] = []
        pairs: list[Pair] = []
        for turn, text in enumerate(question.turns):
            messages.append({"role": "user", "content": text})
            prompt = prompt_of(self.llm.tokenizer, messages)
            if len(prompt) >= self.llm.engine.target.config.context_length:
                return pairs, [Skipped(question.question_id, turn, len(prompt))]
            runs: dict[Side, Run] = {}
            for side in SIDES if self._asked % 2 == 0 else reversed(SIDES):
                runs[side] = self._run(side, Key(temperature, repeat, question.question_id, turn, side), prompt, params)
            self._asked += 1
            plain = runs["plain"]
            if self.oracle and repeat == 0:
                key = Key(temperature, repeat, question.question_id, turn, HINDSIGHT)
                answer = self._hindsight(key, prompt, params, len(plain.token_ids))
                self.result.hindsight.setdefault(temperature, []).append((question.category, answer))
            self.result.contexts.append(len(prompt) + len(plain.token_ids) // 2)
            pairs.append(Pair(question.category, question.question_id, turn, repeat, plain, runs["speculative"]))
            messages.append({"role": "assistant", "content": plain.text})
        return pairs, []

    def _run(self, side: Side, key: Key, prompt: Sequence[int], params: SamplingParams) -> Run:
        known = self.results.get(key)
        if not isinstance(known, Run):
            made = self.run(self._engine(side), prompt, params)
            known = replace(made, earlier_requests=self._answered[side])
            self._answered[side] += not self.settings.cold
            self.results.add(key, known)
        return known

    def _hindsight(self, key: Key, prompt: Sequence[int], params: SamplingParams, length: int) -> Hindsight:
        known = self.results.get(key)
        if not isinstance(known, Hindsight):
            if self._watch is None or self.settings.cold:
                self._watch = Watch(self.llm, self.config)
            known = self._watch.answer(prompt, params, length)
            self.results.add(key, known)
        return known

    def _engine(self, side: Side) -> LLM:
        if self.settings.cold:
            return self._fresh(side)
        if side not in self._living:
            self._living[side] = self._fresh(side)
        return self._living[side]

    def _fresh(self, side: Side) -> LLM:
        return self.llm.with_speculation(self.config if side == "speculative" else None)
