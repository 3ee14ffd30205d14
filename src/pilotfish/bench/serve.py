"""The measurement behind `pilotfish bench serve`: the same requests on several sides, over a sweep of loads.

Owns the order of things: at each load all sides get the same jobs one right after the other and by turns first, so that
whatever else the machine does meets all alike. Jobs of one question have one key wherever they are sent, so the answers
of an engine are compared over sides, loads and repetitions at once: none of these may change a text.

A server may keep prompts it has read (a prefix cache). Either all sides meet it alike, as every prompt has been read
once before anything is timed, or with `fresh_prompts` none does, as no two requests begin alike.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pilotfish.bench.http_client import ChatServer
from pilotfish.bench.load import Ask, Clock, Closed, Job, Level, Open
from pilotfish.bench.questions import Question
from pilotfish.bench.serve_totals import Run, ServeTotals, different_texts, ratio
from pilotfish.errors import InvalidInputError
from pilotfish.sampling.params import SamplingParams

MOST_REQUESTS = 100_000
"""Per load, side and repetition: every answer is kept until all are compared."""

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How to measure.

    Attributes:
        requests: per load, side and repetition; by default 8 at least, and enough for two waves and a bit.
        max_tokens: of an answer.
        temperature: of all requests.
        repeats: of the whole sweep.
        fresh_prompts: every request begins with a system message of its own. Then no text can be compared.
        seed: a request's seed is this plus the question's place in its file.

    Raises:
        InvalidInputError: a value is out of range.
    """

    requests: int | None = None
    max_tokens: int = 64
    temperature: float = 0.0
    repeats: int = 2
    seed: int = 0
    fresh_prompts: bool = False

    def __post_init__(self) -> None:
        if self.requests is not None and self.requests > MOST_REQUESTS:
            raise InvalidInputError(f"requests={self.requests}: expected at most {MOST_REQUESTS}")
        for name, least in (("requests", 1), ("repeats", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidInputError(f"{name}={value}: expected at least {least}")
        SamplingParams(temperature=self.temperature, max_tokens=self.max_tokens)

    def count(self, level: Level) -> int:
        """Requests at a load.

        Raises:
            InvalidInputError: ten seconds of it are more than can be kept.
        """
        if self.requests is not None:
            return self.requests
        if isinstance(level, Closed):
            return max(8, 2 * level.concurrency + 4)
        if 10 * level.rate > MOST_REQUESTS:
            raise InvalidInputError(f"{level.name} for ten seconds: expected at most {MOST_REQUESTS} requests")
        return max(8, round(10 * level.rate))

    def jobs(self, questions: Sequence[Question], level: Level, run: int) -> list[Job]:
        """What is sent in a run: the questions' first turns, over and over if need be.

        Args:
            run: its number, from 0; with `fresh_prompts` no two runs have a job in common.
        """
        jobs = [self.job(questions[number % len(questions)]) for number in range(self.count(level))]
        if not self.fresh_prompts:
            return jobs
        return [_opened(job, f"Conversation {run}.{number}.") for number, job in enumerate(jobs)]

    def job(self, question: Question) -> Job:
        """A question's first turn, as it is sent at every load."""
        options = {"temperature": self.temperature, "seed": self.seed + question.place, "max_tokens": self.max_tokens}
        return Job(question.question_id, ({"role": "user", "content": question.turns[0]},), options)


@dataclass(frozen=True, slots=True)
class Side:
    """One of those that are compared.

    Attributes:
        engine: sides of one engine must answer alike.
        ask: sends a job.
    """

    name: str
    engine: str
    ask: Ask


def side_of(server: ChatServer, name: str, *, engine: str = "server", fields: Mapping[str, Any] | None = None) -> Side:
    """A side that asks a server, with further fields in every request."""
    own = dict(fields or {})
    return Side(name, engine, lambda job: server.stream(job.messages, {**job.options, **own}))


def speculation_fields(plain: bool) -> dict[str, Any]:
    """What a request to a Pilotfish server carries: a report, and no draft where it is to be decoded plainly."""
    return {"speculative": {"report": True, **({"num_speculative_tokens": 0} if plain else {})}}


@dataclass(slots=True)
class ServeResult:
    """What was measured: runs by load and side, repetition by repetition."""

    sides: Sequence[Side]
    runs: dict[Level, dict[str, list[Run]]] = field(default_factory=dict)

    def different(self) -> dict[str, list[str]]:
        """For each engine the questions whose answers were not the same everywhere."""
        found = {}
        for engine in dict.fromkeys(side.engine for side in self.sides):
            names = [side.name for side in self.sides if side.engine == engine]
            own = [
                one for by_side in self.runs.values() for name in names for run in by_side[name] for one in run.served
            ]
            found[engine] = different_texts(own)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON; a speedup is over the first side, at the same load and in the same repetition."""
        different = self.different()
        return {
            "sides": [side.name for side in self.sides],
            "identical": not any(different.values()),
            "different": different,
            "levels": [self._level(level, by_side) for level, by_side in self.runs.items()],
        }

    def _level(self, level: Level, by_side: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
        first = self.sides[0].name
        totals = {name: ServeTotals.of(runs) for name, runs in by_side.items()}
        sides = {}
        for name, own in totals.items():
            pairs = zip(by_side[name], by_side[first], strict=True)
            sides[name] = {
                **own.as_dict(),
                "speedup": _faster(own, totals[first]),
                "speedup_by_repeat": [_faster(ServeTotals.of([run]), ServeTotals.of([base])) for run, base in pairs],
                "tokens_per_second_by_repeat": [ServeTotals.of([run]).tokens_per_second for run in by_side[name]],
            }
        kind = "closed" if isinstance(level, Closed) else "open"
        return {"name": level.name, "kind": kind, "load": level.across, "sides": sides}


def measure_serving(
    sides: Sequence[Side],
    levels: Sequence[Level],
    questions: Sequence[Question],
    settings: ServeSettings,
    *,
    progress: Callable[[float, float], None] = lambda done, of: None,
    clock: Clock = time.perf_counter,
    client_clock: Clock = time.process_time,
) -> ServeResult:
    """Measures all sides at all loads, after some requests to each that do not count.

    Raises:
        InvalidInputError: there is nothing to measure.
        RemoteServerError: a side does not answer at all.
    """
    if not sides or not levels or not questions or len(set(levels)) < len(levels):
        raise InvalidInputError("nothing to measure: expected sides, questions, and loads that differ")
    _warm_up(sides, levels, questions, settings)
    result = ServeResult(sides, {level: {side.name: [] for side in sides} for level in levels})
    done, of = 0, settings.repeats * len(levels) * len(sides)
    for repeat in range(settings.repeats):
        for place, level in enumerate(levels):
            first = (repeat + place) % len(sides)
            for side in (*sides[first:], *sides[:first]):
                jobs = settings.jobs(questions, level, run=done)
                used = client_clock()
                served = level.run(jobs, side.ask, clock=clock)
                result.runs[level][side.name].append(Run(tuple(served), client_clock() - used))
                done += 1
                progress(done, of)
    return result


def header(
    servers: Mapping[str, ChatServer], levels: Sequence[Level], questions: Sequence[Question], settings: ServeSettings
) -> dict[str, Any]:
    """What the figures depend on, for the report."""
    return {
        "servers": {name: server.url for name, server in servers.items()},
        "models": {name: server.model for name, server in servers.items()},
        "loads": [level.name for level in levels],
        "open_loop_seeds": [level.seed for level in levels if isinstance(level, Open)],
        "questions": len(questions),
        "requests": [settings.count(level) for level in levels],
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "repeats": settings.repeats,
        "fresh_prompts": settings.fresh_prompts,
    }


def _warm_up(
    sides: Sequence[Side], levels: Sequence[Level], questions: Sequence[Question], settings: ServeSettings
) -> None:
    """Has every side decode a little, and read every prompt that will come again."""
    used = questions[: max(settings.count(level) for level in levels)]
    lengths = [min(WARM_UP_TOKENS, settings.max_tokens), *(() if settings.fresh_prompts else (1 for _ in used[1:]))]
    for side in sides:
        for question, length in zip(used, lengths, strict=False):
            job = settings.job(question)
            for _ in side.ask(replace(job, options={**job.options, "max_tokens": length})):
                pass


def _opened(job: Job, opening: str) -> Job:
    """The same job after a system message; another one, then, whose answer may be another."""
    messages = ({"role": "system", "content": opening}, *job.messages)
    return replace(job, key=(job.key, opening), messages=messages)


def _faster(own: ServeTotals, base: ServeTotals) -> float | None:
    return ratio(own.tokens_per_second or 0.0, base.tokens_per_second or 0.0)
