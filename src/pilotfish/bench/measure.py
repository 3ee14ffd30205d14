"""One request, timed: its tokens, its clock readings, and where the time went.

Owns the counting, which is the same for plain and for speculative decoding: delivered token ids and one clock, never
text that is tokenised again. The target and the drafter are timed from outside, so that the engine carries no clocks of
ours. Knows no questions and no report.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from pilotfish.engine.draft_policy import DraftPolicy
from pilotfish.engine.engine import Engine
from pilotfish.engine.llm import LLM
from pilotfish.models.base import PagedExecutor
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import ROOT, Draft

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Run:
    """What one request delivered and took.

    Attributes:
        token_ids: delivered, an EOS included.
        text: the same as text.
        seconds: from handing in the request to its last delivery.
        first_seconds: from handing in the request to its first delivery.
        first_tokens: how many tokens came with that.
        rounds: target forwards that delivered tokens.
        drafted_tokens, accepted_tokens: proposed, and of these delivered.
        accepted_per_position: delivered drafted tokens by depth in the draft.
        drafted_per_position: rounds whose draft reached that depth.
        draft_sizes: for each number of drafted tokens the rounds after the first delivery that verified so many.
        draft_seconds: in the drafter, after the first delivery.
        policy_seconds: of these in the length policy itself, not in the drafters it chooses from.
        verify_seconds: in the target's forward passes, after the first delivery. A device that only queues its work
            lets us wait for it elsewhere; there this is the time to queue it.
        earlier_requests: how many the same engine had answered before; 0 where nothing was learned yet.
    """

    token_ids: tuple[int, ...]
    text: str
    seconds: float
    first_seconds: float
    first_tokens: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    drafted_per_position: tuple[int, ...]
    draft_sizes: dict[int, int]
    draft_seconds: float
    verify_seconds: float
    policy_seconds: float = 0.0
    earlier_requests: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them."""
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Run":
        """A run from what `as_dict` gave, after a way through JSON.

        Raises:
            KeyError, TypeError, ValueError: it is not such a record.
        """
        values = {each.name: record[each.name] for each in fields(cls)}
        for name in ("token_ids", "accepted_per_position", "drafted_per_position"):
            values[name] = tuple(map(int, values[name]))
        values["draft_sizes"] = {int(size): int(count) for size, count in values["draft_sizes"].items()}
        return cls(**values)


def run_request(llm: LLM, prompt: Sequence[int], params: SamplingParams, *, clock: Clock = time.perf_counter) -> Run:
    """Runs one request alone, and times it.

    It reads its prompt from the beginning: what the target remembers of earlier texts is forgotten first, or whoever is
    asked second would find what the first has read.

    Raises:
        PromptError, SamplingParamsError: as `LLM.stream`.
    """
    if isinstance(llm.engine.target, PagedExecutor):
        llm.engine.target.prefix_cache.clear()
    watch = _Stopwatch(clock)
    first_seconds, first_tokens = 0.0, 0
    output = None
    with watch.on(llm.engine):
        started = clock()
        for delta in llm.stream(prompt, params):
            if not first_tokens:
                first_seconds, first_tokens = clock() - started, len(delta.token_ids)
                watch.reset()
            output = delta.output
        seconds = clock() - started
    assert output is not None, "the last delta carries the output"
    (completion,) = output.outputs
    metrics = completion.metrics
    decode_rounds = metrics.rounds - 1
    sizes = dict(sorted(watch.sizes.items()))
    # A round in which the drafter was not asked verified nothing either.
    sizes[0] = decode_rounds - sum(count for size, count in sizes.items() if size)
    return Run(
        token_ids=completion.token_ids,
        text=completion.text,
        seconds=seconds,
        first_seconds=first_seconds,
        first_tokens=first_tokens,
        rounds=metrics.rounds,
        drafted_tokens=metrics.drafted_tokens,
        accepted_tokens=metrics.accepted_tokens,
        accepted_per_position=metrics.accepted_per_position,
        drafted_per_position=tuple(watch.depths),
        draft_sizes=sizes,
        draft_seconds=watch.draft_seconds,
        verify_seconds=watch.verify_seconds,
        policy_seconds=watch.policy_seconds,
    )


@dataclass(slots=True)
class _Stopwatch:
    """Times the methods of one engine's target and drafter while it is on, and looks at the drafts that go by.

    Methods are replaced on the instances, not by wrapping objects: a drafter may need to know what kind of executor the
    target is, and may run its layers. Passes of the target within the drafter count as drafting.
    """

    clock: Clock
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    member_seconds: float | None = None
    sizes: Counter[int] = field(default_factory=Counter)
    depths: list[int] = field(default_factory=list)
    _drafting: bool = False

    @contextmanager
    def on(self, engine: Engine) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_replaced(engine.target, "forward", self._verifying))
            if engine.drafter is not None:
                stack.enter_context(_replaced(engine.drafter, "propose", self._proposing))
                stack.enter_context(_replaced(engine.drafter, "observe", self._drafting_in))
            if isinstance(engine.drafter, DraftPolicy):
                self.member_seconds = 0.0
                for member in engine.drafter.drafters:
                    stack.enter_context(_replaced(member, "propose", self._within))
                    stack.enter_context(_replaced(member, "observe", self._within))
            yield

    @property
    def policy_seconds(self) -> float:
        """In the drafter, if that is a policy, and not in the drafters it chooses from."""
        return 0.0 if self.member_seconds is None else self.draft_seconds - self.member_seconds

    def reset(self) -> None:
        """Forgets times and sizes; depths are of the whole request, as the engine's own counts are."""
        self.draft_seconds = self.verify_seconds = 0.0
        self.member_seconds = None if self.member_seconds is None else 0.0
        self.sizes.clear()

    def _verifying(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            if self._drafting:
                return method(*args, **options)
            started = self.clock()
            output = method(*args, **options)
            self.verify_seconds += self.clock() - started
            return output

        return forward

    def _drafting_in(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            self._drafting = True
            started = self.clock()
            try:
                return method(*args, **options)
            finally:
                self.draft_seconds += self.clock() - started
                self._drafting = False

        return timed

    def _within(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            started = self.clock()
            try:
                return method(*args, **options)
            finally:
                assert self.member_seconds is not None, "only a policy's members are timed so"
                self.member_seconds += self.clock() - started

        return timed

    def _proposing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        timed = self._drafting_in(method)

        def propose(*args: Any, **options: Any) -> Any:
            drafts = timed(*args, **options)
            for draft in drafts:
                self._look_at(draft)
            return drafts

        return propose

    def _look_at(self, draft: Draft) -> None:
        self.sizes[len(draft)] += 1
        depth_of: list[int] = []
        for parent in draft.parents:
            depth_of.append(0 if parent == ROOT else depth_of[parent] + 1)
        reached = max(depth_of, default=-1) + 1
        self.depths.extend([0] * (reached - len(self.depths)))
        for depth in range(reached):
            self.depths[depth] += 1


@contextmanager
def _replaced(owner: object, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """A method of one instance, wrapped for a while."""
    own = vars(owner).get(name)
    setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
