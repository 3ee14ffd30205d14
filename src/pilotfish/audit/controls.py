"""Known-bad controls: thirteen ways in which speculation goes wrong, each a real one, each of which must be caught.

Owns the broken parts and says which level is meant for each. They go in through `Subject`; nothing is patched. What
they imitate: methods that shipped somewhere and passed their authors' tests.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float, Float32
from torch import Tensor

from pilotfish.audit.subject import Subject
from pilotfish.audit.theory import CHAINS, TREES, Case
from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.sampling.noise import Stream, uniforms
from pilotfish.sampling.params import SamplingParams, fresh_seed
from pilotfish.sampling.penalties import OutputPenalty
from pilotfish.sampling.pipeline import Pipeline
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.sampler import Sampler
from pilotfish.sampling.step import Step
from pilotfish.sampling.truncation import Temperature, TopK
from pilotfish.terms import ROOT, Draft, Verdict
from pilotfish.verify import RULES, Rule, rejection, traversal
from pilotfish.verify.laws import Law, draft_law, excess
from pilotfish.verify.rejection import acceptance, next_law

# --- rules


def _reuses_acceptance_uniform(draft: Draft, target_probs: Tensor, accept: Tensor, resample: float) -> Verdict:
    """The number that rejected a token also inverts the residual, though it is now known to be large."""
    verdict = rejection(draft, target_probs, accept, resample)
    stopped = len(verdict.path)
    if stopped == len(draft):
        return verdict
    return Verdict(verdict.path, next_law(draft, target_probs, stopped).draw(float(accept[stopped])))


def _residual_not_renormalised(draft: Draft, target_probs: Tensor, accept: Tensor, resample: float) -> Verdict:
    """Draws from max(p - q, 0) as if it added up to 1: what is missing falls on the last token that has mass."""
    verdict = rejection(draft, target_probs, accept, resample)
    stopped = len(verdict.path)
    if stopped == len(draft):
        return verdict
    target_law = Law.of(target_probs[stopped])
    rest = excess(1.0, target_law, draft_law(draft, stopped, target_law))
    return verdict if rest is None else Verdict(verdict.path, rest.draw(min(resample / rest.total, 1 - 2.0**-53)))


def _bonus_from_wrong_row(draft: Draft, target_probs: Tensor, accept: Tensor, resample: float) -> Verdict:
    """The bonus token is drawn from the law before the last drafted token."""
    verdict = rejection(draft, target_probs, accept, resample)
    if not draft.tokens or len(verdict.path) < len(draft):
        return verdict
    return Verdict(verdict.path, Law.of(target_probs[len(draft) - 1]).draw(resample))


def _accepts_at_equality(draft: Draft, target_probs: Tensor, accept: Tensor, resample: float) -> Verdict:
    """u <= p/q instead of u < p/q, with a u that may be 0: a token of probability 0 passes."""
    accepted = 0
    for uniform, probability in zip(accept.tolist(), acceptance(draft, target_probs), strict=True):
        if not uniform <= probability:
            break
        accepted += 1
    return Verdict(tuple(range(accepted)), next_law(draft, target_probs, accepted).draw(resample))


def _children_by_probability(draft: Draft, target_probs: Tensor, accept: Tensor, resample: float) -> Verdict:
    """Traversal that visits siblings from the most probable down, not in the order in which they were drawn."""
    if draft.probs is None:
        return traversal(draft, target_probs, accept, resample)
    probs = draft.probs
    order: list[int] = []

    def visit(parent: int) -> None:
        below = [node for node, above in enumerate(draft.parents) if above == parent]
        for child in sorted(below, key=lambda node: -float(probs[below[0], draft.tokens[node]])):
            order.append(child)
            visit(child)

    visit(ROOT)
    place = {node: at for at, node in enumerate(order)} | {ROOT: ROOT}
    moved = Draft(
        tuple(draft.tokens[node] for node in order),
        tuple(place[draft.parents[node]] for node in order),
        probs[order],
    )
    verdict = traversal(moved, target_probs[[0, *(node + 1 for node in order)]], accept, resample)
    return Verdict(tuple(order[node] for node in verdict.path), verdict.next_token)


def _with_rule(name: str, verify: Callable[[Draft, Tensor, Tensor, float], Verdict]) -> Subject:
    good = RULES[name]
    return Subject(rules={**RULES, name: Rule(good.name, good.trees, verify)})


# --- samplers


class _SharedNoise(Sampler):
    """The residual token is drawn with the number that drew the first drafted token."""

    def resample_uniform(self, position: int, start: int) -> float:
        return float(uniforms(self.seed, Stream.DRAFT, [0], [start], start)[0])


class _ReportsAnotherLaw(Sampler, ABC):
    """A drafter's sampler: draws from the right law and reports another."""

    _drawn: Float32[Tensor, "vocab"]

    def laws(
        self, logits: Float[Tensor, "row padded_vocab"], prefixes: Sequence[Prefix]
    ) -> Float32[Tensor, "row vocab"]:
        right = super().laws(logits, prefixes)
        self._drawn = right[0]
        return self.reported(logits, prefixes, right)

    @abstractmethod
    def reported(self, logits: Tensor, prefixes: Sequence[Prefix], right: Tensor) -> Tensor:
        """What the drafter says it drew from."""

    def draw(self, law: Float[Tensor, "vocab"], position: int, start: int, node: int = 0) -> int:
        return super().draw(self._drawn, position, start, node)


class _WithoutTopK(_ReportsAnotherLaw):
    """q lacks the top-k that the draft was drawn with."""

    def reported(self, logits: Tensor, prefixes: Sequence[Prefix], right: Tensor) -> Tensor:
        steps = tuple(step for step in self.pipeline.steps if not isinstance(step, TopK))
        return Pipeline(steps).laws(logits, prefixes)


class _WithoutTemperature(_ReportsAnotherLaw):
    """p is at the temperature asked for, q in the ratio at 1, though the draft was drawn at the temperature."""

    def reported(self, logits: Tensor, prefixes: Sequence[Prefix], right: Tensor) -> Tensor:
        steps = tuple(step for step in self.pipeline.steps if not isinstance(step, Temperature))
        return Pipeline(steps).laws(logits, prefixes)


class _InBfloat16(_ReportsAnotherLaw):
    """q is rounded to bfloat16 on its way to the ratio."""

    def reported(self, logits: Tensor, prefixes: Sequence[Prefix], right: Tensor) -> Tensor:
        return right.bfloat16().float()


class _Argmax(Sampler):
    """Drafts the most probable token and reports the softmax, as if it had been drawn."""

    def draw(self, law: Float[Tensor, "vocab"], position: int, start: int, node: int = 0) -> int:
        return int(law.argmax())


class _HalfSeeded(Sampler):
    """The request's seed covers acceptance and resampling; drafts are drawn with entropy of their own."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        super().__init__(params, vocab_size)
        self._own = Sampler(params.with_seed(fresh_seed()), vocab_size)

    def draw(self, law: Float[Tensor, "vocab"], position: int, start: int, node: int = 0) -> int:
        return self._own.draw(law, position, start, node)


# --- drafters


class _Wrapped(Drafter):
    """Passes everything on to another drafter."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.nodes_per_depth = inner.nodes_per_depth
        self.hidden_boundaries = inner.hidden_boundaries
        self.top_successors = inner.top_successors

    def begin(self, request: int, capacity: int) -> None:
        self._inner.begin(request, capacity)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return self._inner.propose(jobs)

    def observe(self, observation: Observation) -> None:
        self._inner.observe(observation)

    def end(self, request: int) -> None:
        self._inner.end(request)


class _CutsAfterLooking(_Wrapped):
    """Drops drafted tokens from the first one on that had less than this probability."""

    CONFIDENCE = 0.4

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._cut(draft) for draft in super().propose(jobs)]

    def _cut(self, draft: Draft) -> Draft:
        if draft.probs is None:
            return draft
        kept = 0
        while kept < len(draft) and float(draft.probs[kept, draft.tokens[kept]]) >= self.CONFIDENCE:
            kept += 1
        return Draft(draft.tokens[:kept], draft.parents[:kept], draft.probs[:kept] if kept else None)


class _Reports(_Wrapped):
    """Gives the drafter a sampler that reports another law than it draws from."""

    reporter: type[Sampler]

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return super().propose([replace(job, sampler=self._own(job.sampler)) for job in jobs])

    def _own(self, sampler: Sampler) -> Sampler:
        own = self.reporter(sampler.params, sampler.vocab_size)
        own.pipeline = sampler.pipeline
        return own


class _ReportsWithoutTopK(_Reports):
    reporter = _WithoutTopK


class _ReportsWithoutTemperature(_Reports):
    reporter = _WithoutTemperature


class _ReportsInBfloat16(_Reports):
    reporter = _InBfloat16


class _ReportsSoftmaxOfArgmax(_Reports):
    reporter = _Argmax


# --- options


class _SeesRejected(Step):
    """A penalty with a memory of its own: what was drafted once is penalised for ever, rejected or not."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty
        self._seen: set[int] = set()

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        lowered = logits.clone()
        for row, prefix in enumerate(prefixes):
            self._seen.update(prefix.committed[prefix.prompt_length :], prefix.path)
            lowered[row, list(self._seen)] -= self._penalty
        return lowered


class _Penalising(Sampler):
    """The presence penalty taken over by a step that remembers too much."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        super().__init__(params, vocab_size)
        steps = (step for step in self.pipeline.steps if not isinstance(step, OutputPenalty))
        self.pipeline = Pipeline((_SeesRejected(params.presence_penalty), *steps))


@dataclass(frozen=True, slots=True)
class Control:
    """A broken decoder and how it is to be caught.

    Attributes:
        level: the one meant for it.
        rule, drafter, option: the plan of the law level that meets the defect.
        cases: those of the theory level that show it.
    """

    name: str
    subject: Subject
    level: str
    rule: str = "rejection"
    drafter: str = "draft_model"
    option: str = "no option"
    cases: tuple[Case, ...] = tuple(
        Case("rejection", pair, CHAINS[1], 5) for pair in ("random", "peaked", "p = 0 where q > 0")
    )


CONTROLS = (
    Control("resample noise shared with draft noise", Subject(sampler=_SharedNoise), "noise"),
    Control("one uniform used twice", _with_rule("rejection", _reuses_acceptance_uniform), "theory"),
    Control(
        "q passed without the top-k the draft was drawn with",
        Subject(drafter=_ReportsWithoutTopK),
        "law",
        option="top_k 3",
    ),
    Control("softmax q for an argmax draft", Subject(drafter=_ReportsSoftmaxOfArgmax), "law"),
    Control("q computed in bfloat16", Subject(drafter=_ReportsInBfloat16), "law"),
    Control("a draft cut after looking at the drawn token", Subject(drafter=_CutsAfterLooking), "law", drafter="chain"),
    Control("residual not renormalised", _with_rule("rejection", _residual_not_renormalised), "theory"),
    Control("bonus drawn from the wrong row", _with_rule("rejection", _bonus_from_wrong_row), "theory"),
    Control("penalties that see rejected tokens", Subject(sampler=_Penalising), "law", option="presence_penalty 1.5"),
    Control(
        "temperature applied to p only", Subject(drafter=_ReportsWithoutTemperature), "law", option="temperature 0.6"
    ),
    Control(
        "tree children visited in probability order",
        _with_rule("traversal", _children_by_probability),
        "theory",
        cases=tuple(Case("traversal", pair, TREES["2x1"], 2) for pair in ("random", "peaked")),
    ),
    Control(
        "u <= p accepting probability zero",
        _with_rule("rejection", _accepts_at_equality),
        "theory",
    ),
    Control("a seed that covers only half of the draws", Subject(sampler=_HalfSeeded), "identity"),
)
