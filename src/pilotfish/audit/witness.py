"""A watcher that checks a drafter's word. Owns the two checks that need no chance, and keeps the drafts it saw."""

from collections.abc import Sequence

import numpy as np

from pilotfish.audit import oracle
from pilotfish.audit.options import Setting
from pilotfish.audit.worlds import World
from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.terms import ROOT, Draft

LAW_TOLERANCE = 1e-5
"""float32 softmax against float64: a reported law may differ from the oracle's by this; bfloat16 differs by 2e-3."""


class Witness(Drafter):
    """Passes drafts through and checks that each token was drawn from exactly the law that is reported.

    The reported law must be the oracle's, where the drafter's logits are known, and the token must be where the
    documented number of the `DRAFT` stream falls in the cumulative reported law. Looks at the first `drafts` of them.

    Attributes:
        seen: the drafts of the batch that runs, by request and committed length.
        checked: how many draws were repeated.
        lies: what was wrong, in words.
    """

    def __init__(
        self, inner: Drafter, world: World, setting: Setting, drafts: int, *, replacement: bool = True
    ) -> None:
        self._inner = inner
        self._world = world
        self._setting = setting
        self._left = drafts
        self._replacement = replacement
        self.nodes_per_depth = inner.nodes_per_depth
        self.hidden_boundaries = inner.hidden_boundaries
        self.top_successors = inner.top_successors
        self.seen: dict[tuple[int, int], Draft] = {}
        self.checked = 0
        self.lies: list[str] = []

    def begin(self, request: int, capacity: int) -> None:
        self._inner.begin(request, capacity)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        drafts = self._inner.propose(jobs)
        for job, draft in zip(jobs, drafts, strict=True):
            self.seen[job.request, len(job.tokens)] = draft
            if draft.probs is not None and self._left > 0:
                self._left -= 1
                self._check(job, draft, draft.probs.double().numpy())
        return drafts

    def observe(self, observation: Observation) -> None:
        self._inner.observe(observation)

    def end(self, request: int) -> None:
        self._inner.end(request)

    def _check(self, job: DraftJob, draft: Draft, reported: np.ndarray) -> None:
        paths: list[tuple[int, ...]] = []
        start = len(job.tokens)
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            path = () if parent == ROOT else paths[parent]
            paths.append((*path, token))
            row = reported[node] / reported[node].sum()
            self.checked += 1
            siblings = [draft.tokens[other] for other in range(node) if draft.parents[other] == parent]
            self._compare(job, path, row, siblings)
            cumulative = np.cumsum(row)
            low, high = (cumulative[token - 1] if token else 0.0) - 1e-9, cumulative[token] + 1e-9
            # A chain's tokens differ in position, so a drafter of chains may leave the node's number at 0.
            position = start + len(path)
            numbers = (oracle.uniform(job.sampler.seed, oracle.DRAFT, own, position, start) for own in (node, 0))
            if not any(low <= number <= high for number in numbers):
                self.lies.append(f"token {token} was not drawn from the reported law with the request's own number")

    def _compare(self, job: DraftJob, path: tuple[int, ...], row: np.ndarray, siblings: Sequence[int]) -> None:
        """The reported law of a node beside the oracle's."""
        logits = self._world.draft_logits([*job.tokens, *path])
        if logits is None:
            return
        history = self._setting.history(job.tokens[: job.prompt_length], [*job.tokens[job.prompt_length :], *path])
        law = self._setting.law(logits, history)
        if not self._replacement:
            law[list(siblings)] = 0.0
        difference = float(np.abs(row - law / law.sum()).max())
        if difference > LAW_TOLERANCE:
            self.lies.append(f"a reported draft law differs from the law of the draft by {difference:.2g}")
