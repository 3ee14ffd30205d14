"""A drafter of the audit: sampled trees from a table.

The engine's own drafters are audited as they are; these fill the place of tree drafters whose children are honestly
drawn, which `traversal` is made for.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pilotfish.audit.table_model import Table
from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.sampling.prefix import Prefix
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft


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
        start = len(job.tokens)

        def draw(law: Tensor, parent: int, depth: int) -> None:
            token = job.sampler.draw(law, start + depth, start=start, node=len(tokens))
            tokens.append(token)
            parents.append(parent)
            laws.append(law)

        prefix, row = self._row(job, ())
        first = job.sampler.laws(row, [prefix])[0]
        for _ in range(self._width):
            law = first
            if not self._replacement:
                law = first.clone()
                law[tokens] = 0.0
            if law.sum() > 0:
                draw(law, ROOT, 0)
        paths: list[tuple[int, ...]] = [(token,) for token in tokens]
        above = list(range(len(tokens)))
        for depth in range(1, job.draft_len):
            found = [self._row(job, path) for path in paths]
            rows = job.sampler.laws(torch.cat([row for _, row in found]), [prefix for prefix, _ in found])
            for law, parent in zip(rows, list(above), strict=True):
                draw(law, parent, depth)
            above = list(range(len(tokens) - len(above), len(tokens)))
            paths = [(*path, tokens[node]) for path, node in zip(paths, above, strict=True)]
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
