"""The best choice in hindsight: what speculation could bring with these drafters, if one knew the answer.

Owns the watching (every drafter is asked at every place of a plainly decoded answer) and the choice: for each round the
drafter and the length, plain steps included, that end the answer soonest. It is a bound for any policy over the same
drafters, not a drafter: a policy does not know which draft will agree. Knows no report.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pilotfish.bench.expected import pass_seconds
from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.engine.config import SpeculativeConfig
from pilotfish.engine.draft_policy import LONGEST, DraftPolicy
from pilotfish.engine.engine import Engine
from pilotfish.engine.llm import LLM
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft

Clock = Callable[[], float]
Config: TypeAlias = SpeculativeConfig | Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What each drafter would have been right about, at every place of one answer.

    Attributes:
        reach: by drafter, for each token of the answer how many tokens drafted in its place agree with the answer.
        draft_seconds: by drafter, time per token asked for.
    """

    reach: dict[str, tuple[int, ...]]
    draft_seconds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them."""
        return {"reach": {name: list(each) for name, each in self.reach.items()}, "draft_seconds": self.draft_seconds}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Hindsight":
        """From what `as_dict` gave, after a way through JSON.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is not such a record.
        """
        reach = {name: tuple(map(int, each)) for name, each in record["reach"].items()}
        return cls(reach, {name: float(seconds) for name, seconds in record["draft_seconds"].items()})


class Watch:
    """Decodes plainly and asks all drafters of a configuration at every place, without ever taking a draft.

    Lives through as many answers as it is given; what drafters learn from the rows that are verified, they learn here
    from the delivered tokens' rows alone.

    Args:
        llm: the loaded target.
        config: whose drafters to ask, at any length.
    """

    def __init__(self, llm: LLM, config: Config, clock: Clock = time.perf_counter) -> None:
        drafter = llm.with_speculation(config).engine.drafter
        assert drafter is not None, "there is something to watch"
        members: dict[str, Drafter] = {}
        for member in drafter.drafters if isinstance(drafter, DraftPolicy) else (drafter,):
            name = type(member).__name__.removesuffix("Drafter").lower()
            members[name if name not in members else f"{name} {len(members)}"] = member
        self._watcher = _Watcher(members, clock)
        # Without end-of-sequence ids: the answer's length is given, its last token may be one of them.
        self._engine = Engine(
            llm.engine.target, llm.tokenizer.decode, llm.tokenizer.vocab_size, drafter=self._watcher, draft_len=LONGEST
        )

    def answer(self, prompt: Sequence[int], params: SamplingParams, length: int) -> Hindsight:
        """Watches one answer of `length` tokens.

        Raises:
            PromptError, SamplingParamsError: as `Engine.run`.
        """
        self._watcher.start()
        tokens: list[int] = []
        for (request,) in self._engine.run([prompt], [replace(params, max_tokens=length)]):
            tokens = list(request.output)
        return self._watcher.judge(tokens, len(prompt))


class _Watcher(Drafter):
    """Notes what each member proposes, and proposes nothing."""

    def __init__(self, members: Mapping[str, Drafter], clock: Clock) -> None:
        self._members = members
        self._clock = clock
        self._drafts: dict[str, dict[int, Draft]] = {}
        self._seconds: dict[str, float] = {}
        self._asked: Counter[str] = Counter()
        self.hidden_boundaries = tuple(sorted({b for each in members.values() for b in each.hidden_boundaries}))
        self.top_successors = max(each.top_successors for each in members.values())
        self.nodes_per_depth = max(each.nodes_per_depth for each in members.values())

    def start(self) -> None:
        self._drafts = {name: {} for name in self._members}
        self._seconds = dict.fromkeys(self._members, 0.0)
        self._asked.clear()

    def begin(self, request: int, capacity: int) -> None:
        with ExitStack() as begun:
            for member in self._members.values():
                member.begin(request, capacity)
                begun.callback(member.end, request)
            begun.pop_all()

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        (job,) = jobs
        order = replace(job, max_nodes=LONGEST)
        for name, member in self._members.items():
            started = self._clock()
            (draft,) = member.propose([order])
            self._seconds[name] += self._clock() - started
            self._asked[name] += order.draft_len
            self._drafts[name][len(job.tokens)] = draft
        return [EMPTY_DRAFT]

    def observe(self, observation: Observation) -> None:
        for member in self._members.values():
            member.observe(observation)

    def end(self, request: int) -> None:
        with ExitStack() as ends:
            for member in self._members.values():
                ends.callback(member.end, request)

    def judge(self, answer: Sequence[int], prompt_length: int) -> Hindsight:
        reach = {
            name: tuple(
                agreeing(drafts.get(prompt_length + place, EMPTY_DRAFT), answer[place:]) for place in range(len(answer))
            )
            for name, drafts in self._drafts.items()
        }
        return Hindsight(reach, {name: self._seconds[name] / max(self._asked[name], 1) for name in self._members})


def agreeing(draft: Draft, answer: Sequence[int]) -> int:
    """How many tokens of an answer a draft has along its best path."""
    parent = ROOT
    for reached, token in enumerate(answer):
        found = next((n for n, above in enumerate(draft.parents) if above == parent and draft.tokens[n] == token), None)
        if found is None:
            return reached
        parent = found
    return len(answer)


def oracle_figures(
    answers: Iterable[Hindsight], step_seconds: float, pass_costs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The rounds that end each answer soonest, after its first token; `None` where there is no token after the first.

    A round takes a plain step, what its drafted rows add to the pass, and the chosen drafter's time for as many tokens
    as are taken. Drafters that are not chosen take no time: who knows the answer asks only the right one.

    Args:
        step_seconds: of a plain step, everything around the pass included.
        pass_costs: passes by number of rows, as `StepReport.as_dict` gives them.
    """
    seconds = {each["rows"]: each["seconds"] for each in pass_costs["passes"]}
    added = [pass_seconds(seconds, 1 + taken) - seconds[1] for taken in range(LONGEST + 1)]
    whole, tokens = 0.0, 0
    sizes: Counter[int] = Counter()
    chosen: Counter[str] = Counter()
    for answer in answers:
        spent, rounds = _soonest(answer, step_seconds, added)
        whole += spent
        tokens += sum(1 + taken for _, taken in rounds)
        sizes.update(taken for _, taken in rounds)
        chosen.update(name for name, _ in rounds)
    if not tokens:
        return None
    return {
        "tokens_per_second": tokens / whole,
        "speedup": tokens * step_seconds / whole,
        "tokens_per_round": tokens / sizes.total(),
        "draft_sizes": {str(size): sizes[size] for size in sorted(sizes)},
        "rounds_by_drafter": dict(sorted(chosen.items())),
    }


PLAIN = "plain"


def _soonest(answer: Hindsight, step: float, added: Sequence[float]) -> tuple[float, list[tuple[str, int]]]:
    """Seconds, and each round's drafter and accepted tokens, of the fastest way from the second token to the end."""
    length = len(next(iter(answer.reach.values())))
    remaining = [0.0] * (length + 1)
    choice: list[tuple[str, int]] = [(PLAIN, 0)] * length
    for place in range(length - 1, 0, -1):
        remaining[place], choice[place] = step + remaining[place + 1], (PLAIN, 0)
        for name, reach in answer.reach.items():
            rate = answer.draft_seconds[name]
            for taken in range(1, min(reach[place], length - place - 1) + 1):
                spent = step + added[taken] + rate * taken + remaining[place + taken + 1]
                if spent < remaining[place]:
                    remaining[place], choice[place] = spent, (name, taken)
    rounds = []
    place = 1
    while place < length:
        rounds.append(choice[place])
        place += 1 + choice[place][1]
    return (remaining[1] if length > 1 else 0.0), rounds
