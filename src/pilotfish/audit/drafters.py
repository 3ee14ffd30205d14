"""Drafters of the audit: sampled trees from a table, and a watcher that checks a drafter's word.

The engine's own drafters are audited as they are; these fill the place of tree drafters whose children are honestly
drawn, which `traversal` is made for.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pilotfish.audit import oracle
from pilotfish.audit.options import Setting
from pilotfish.audit.table_model import Table
from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.sampling.prefix import Prefix
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft

LAW_TOLERANCE = 1e-5
"""float32 softmax against float64: a reported law may differ from the oracle's by this; bfloat16 differs by 2e-3."""


class TreeDrafter(Drafter):
    """Draws a tree of fixed shape from a table: `width` children at the root, then chains below each.

    Under ratio rules every child is drawn from the law at its parent with its own number of the `DRAFT` stream, and
    carries that law; without replacement the law of a child has the tokens of its earlier siblings removed. Under
    `match` the first chain follows the noise and the others start with the tokens that are most probable besides.
    """

    def __init__(self, table: Table, *, width: int = 2, replacement: bool = False) -> None:
        self._table = table
        self._width = width
        self._replacement = replacement
        self._logits = torch.from_numpy(table.logits)
        self.nodes_per_depth = width

    def begin(self, request: int, capacity: int) -> None:
        """Nothing to prepare: a draft depends on the committed tokens alone."""

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._coupled(job) if job.coupled else self._sampled(job) for job in jobs]

    def observe(self, observation: Observation) -> None:
        """Nothing to remember."""

    def end(self, request: int) -> None:
        """Nothing to drop."""

    def _sampled(self, job: DraftJob) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Tensor] = []
        above: list[tuple[tuple[int, ...], int]] = [((), ROOT)] * self._width
        for depth in range(job.draft_len):
            nodes: list[tuple[tuple[int, ...], int]] = []
            for path, parent in above:
                prefix, row = self._row(job, path)
                law = job.sampler.laws(row, [prefix])[0].clone()
                if not self._replacement and depth == 0:
                    law[tokens] = 0.0
                if not law.sum() > 0:
                    continue
                token = job.sampler.draw(law, prefix.position, start=len(job.tokens), node=len(tokens))
                nodes.append(((*path, token), len(tokens)))
                tokens.append(token)
                parents.append(parent)
                laws.append(law)
            above = nodes
        return Draft(tuple(tokens), tuple(parents), torch.stack(laws)) if tokens else EMPTY_DRAFT

    def _coupled(self, job: DraftJob) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        prefix, row = self._row(job, ())
        first = job.sampler.choices(row, [prefix])[0]
        ranked = [token for token in row[0].argsort(descending=True).tolist() if token != first]
        for start in [first, *ranked[: self._width - 1]]:
            path: tuple[int, ...] = ()
            for depth in range(job.draft_len):
                prefix, row = self._row(job, path)
                token = start if depth == 0 else job.sampler.choices(row, [prefix])[0]
                parents.append(len(tokens) - 1 if depth else ROOT)
                tokens.append(token)
                path = (*path, token)
        return Draft(tuple(tokens), tuple(parents))

    def _row(self, job: DraftJob, path: tuple[int, ...]) -> tuple[Prefix, Tensor]:
        prefix = Prefix(job.tokens, job.prompt_length, path)
        context = [*job.tokens[-self._table.order :], *path]
        number = self._table.row(context)
        return prefix, self._logits[number : number + 1]


class Witness(Drafter):
    """Passes drafts through and checks that each token was drawn from exactly the law that is reported.

    Two checks without chance: the reported law is the oracle's, and the token is where the documented number of the
    `DRAFT` stream falls in the cumulative reported law. Looks at the first `drafts` of them.
    """

    def __init__(
        self, inner: Drafter, table: Table, setting: Setting, drafts: int, *, replacement: bool = True
    ) -> None:
        self._inner = inner
        self._table = table
        self._setting = setting
        self._left = drafts
        self._replacement = replacement
        self.nodes_per_depth = inner.nodes_per_depth
        self.hidden_boundaries = inner.hidden_boundaries
        self.checked = 0
        self.lies: list[str] = []

    def begin(self, request: int, capacity: int) -> None:
        self._inner.begin(request, capacity)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        drafts = self._inner.propose(jobs)
        for job, draft in zip(jobs, drafts, strict=True):
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
            context = [*job.tokens[-self._table.order :], *path]
            history = self._setting.history(job.tokens[: job.prompt_length], [*job.tokens[job.prompt_length :], *path])
            law = self._setting.law(self._table.logits[self._table.row(context)].astype(np.float64), history)
            if not self._replacement:
                law[[draft.tokens[other] for other in range(node) if draft.parents[other] == parent]] = 0.0
            row = reported[node] / reported[node].sum()
            self.checked += 1
            difference = float(np.abs(row - law / law.sum()).max())
            if difference > LAW_TOLERANCE:
                self.lies.append(f"a reported draft law differs from the law of the draft by {difference:.2g}")
            position = start + len(path)
            cumulative = np.cumsum(row)
            low, high = (cumulative[token - 1] if token else 0.0) - 1e-9, cumulative[token] + 1e-9
            # A chain's tokens differ in position, so a drafter of chains may leave the node's number at 0.
            numbers = (oracle.uniform(job.sampler.seed, oracle.DRAFT, own, position, start) for own in (node, 0))
            if not any(low <= number <= high for number in numbers):
                self.lies.append(f"token {token} was not drawn from the reported law with the request's own number")
