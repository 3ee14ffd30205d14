"""Plain against speculative decoding, question by question: the measurement behind `pilotfish bench speed`.

Owns the order of things: the same request on both sides, one right after the other and by turns first, so that whatever
else the machine does meets both alike. One engine per side lives through all questions of a pass, the categories by
turns, so that what its drafters learn is kept from request to request as in use; it is asked each question once, so
that no answer can be remembered. Settings and figures are in `speed_result.py`, output in `report.py`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from pilotfish.bench.measure import Run, run_request
from pilotfish.bench.oracle import Config, Hindsight, Watch
from pilotfish.bench.partial import Key, PartialResults
from pilotfish.bench.questions import Question, by_turns_of_categories
from pilotfish.bench.speed_result import Skipped, SpeedResult, SpeedSettings
from pilotfish.bench.step import StepReport, measure_step
from pilotfish.bench.totals import Pair
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
