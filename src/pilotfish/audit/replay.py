"""Rounds lived through again: what the documented random numbers must lead to, beside what came out.

Owns the second life of a round in float64, with the oracle's laws, rules and noise. The rule of the replay keeps the
law exactly, and its numbers are uniform; so, by the coupling inequality, a decoder whose tokens have another law, by a
total variation of t, must differ from its replay in at least a share t of the rounds. One that differs in none of n
rounds is off by less than 4.6 / n, at a confidence of 0.99 and without any false alarm.

Takes each draft as it was proposed. That its tokens were drawn from the reported law is the witness's to say; that its
length did not depend on them is seen by the tests of counts alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pilotfish.audit import oracle
from pilotfish.audit.oracle import Floats, ToyDraft
from pilotfish.audit.subject import Generated, Job
from pilotfish.audit.windows import Context, Contexts
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft

NEAR = 3e-6
"""A number so near to a place where the outcome changes that float32 laws may decide otherwise is not judged."""
NEAR_SCORE = 1e-4


@dataclass(slots=True)
class Replay:
    """Replays the first rounds of a plan.

    Attributes:
        left: rounds still to replay.
        rounds: that were replayed and judged.
        undecided: that hung on a number too near to a limit.
        differences: what came out otherwise, in words.
    """

    rule: str
    contexts: Contexts
    left: int
    rounds: int = 0
    undecided: int = 0
    differences: list[str] = field(default_factory=list)

    def check(
        self, job: Job, made: Generated, walked: Sequence[Context], drafts: Mapping[tuple[int, int], Draft]
    ) -> None:
        """One request's rounds.

        Args:
            walked: the context before each token of the output.
            drafts: what was proposed, by request and committed length.
        """
        ends = [*made.starts[1:], len(made.output)]
        for start, end in zip(made.starts, ends, strict=True):
            if self.left <= 0 or end > len(walked):
                return
            if self.rule == "match":
                tokens: list[int | None] = [self._choice(job, walked, place) for place in range(start, end)]
            else:
                found = drafts.get((made.request.key, len(job.prompt) + start))
                if job.setting.spelled and (found is None or found.probs is None):
                    continue  # such a draft was cut and continued by the grammar, and is not what was verified
                tokens = list(self._round(job, walked[start], start, found or EMPTY_DRAFT))
            self.left -= 1
            if not tokens or None in tokens:
                self.undecided += 1
                continue
            self.rounds += 1
            ended = end == len(made.output)
            delivered = list(made.output[start:end])
            if tokens[: len(delivered)] != delivered or (len(tokens) > len(delivered) and not ended):
                self.differences.append(
                    f"with the request's own numbers a round gives {tokens}, and {delivered} came out"
                )

    @staticmethod
    def _choice(job: Job, walked: Sequence[Context], place: int) -> int | None:
        """The target's own choice at a place of the output; `None` where two are too near."""
        law = walked[place].law
        possible = np.flatnonzero(law > 0).tolist()
        position = len(job.prompt) + place
        scores = sorted(
            ((float(np.log(law[token])) + oracle.gumbel(job.seed, position, token), token) for token in possible),
            reverse=True,
        )
        if len(scores) > 1 and scores[0][0] - scores[1][0] < NEAR_SCORE:
            return None
        return scores[0][1]

    def _round(self, job: Job, context: Context, start: int, draft: Draft) -> list[int]:
        """What a ratio rule delivers before any cut; nothing where a number is too near to a limit."""
        at = [context]
        depths: list[int] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            at.append(self.contexts.after(at[parent + 1], token))
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        target = np.stack([one.law for one in at])
        if not np.isfinite(target).all():
            return []  # a draft that led where nothing is possible
        committed = len(job.prompt) + start
        numbers = [
            oracle.uniform(job.seed, oracle.ACCEPT, node, committed + depth, committed)
            for node, depth in enumerate(depths)
        ]
        resample = oracle.uniform(job.seed, oracle.RESAMPLE, 0, committed, committed)
        toy = ToyDraft(draft.tokens, draft.parents, target, _draft_laws(draft, target))
        with np.errstate(divide="ignore", invalid="ignore"):
            path, law = _verdict(self.rule, toy, numbers)
        if law is None:
            return []
        cumulative = np.cumsum(law / law.sum())
        if np.abs(cumulative[:-1] - resample).min(initial=1.0) < NEAR:
            return []
        last = int(np.searchsorted(cumulative, resample, side="right"))
        return [*(draft.tokens[node] for node in path), last]


def _draft_laws(draft: Draft, target: Floats) -> Floats:
    if draft.probs is not None:
        reported = draft.probs.double().numpy()
        return np.asarray(reported / reported.sum(axis=1, keepdims=True))
    certain = np.zeros((len(draft), target.shape[1]))
    certain[np.arange(len(draft)), list(draft.tokens)] = 1.0
    return certain


def _verdict(rule: str, toy: ToyDraft, numbers: Sequence[float]) -> tuple[tuple[int, ...], Floats | None]:
    """The accepted path and the law of the next token; no law where a number is too near to its limit."""
    left = 1.0
    for place, outcome in enumerate(oracle.RULES[rule](toy)):
        share = min(1.0, outcome.probability / left) if left > 0 else 1.0
        left -= outcome.probability
        if rule == "rejection":
            # Shortest first: this outcome is the failure of the next test.
            if place == len(toy.tokens):
                return outcome.path, outcome.next_law
            number, limit, fails = numbers[place], 1 - share, True
        else:
            # One stop after another: this outcome is the success of the last node's test.
            if not outcome.path:
                return outcome.path, outcome.next_law
            number, limit, fails = numbers[outcome.path[-1]], share, False
        if abs(number - limit) < NEAR and 0 < limit < 1:
            return outcome.path, None
        if (number >= limit) if fails else (number < limit):
            return outcome.path, outcome.next_law
    raise AssertionError("one of the outcomes comes about")
