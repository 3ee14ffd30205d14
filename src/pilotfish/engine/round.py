"""One round: propose, one target forward, choices or laws, verdict, cut, commit. READ FIRST.

Everything Pilotfish promises happens in this file; batching, draft length, streaming and stop conditions live around
it. Each request of the batch goes through a round on its own terms: its draft may be empty, short, or a tree, and what
the others do never shows in its result. A request that is still reading its prompt shares the pass.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pilotfish.drafters.base import Drafter, Observation, Successors
from pilotfish.drafters.successors import successors
from pilotfish.engine.proposal import propose
from pilotfish.engine.request import Request
from pilotfish.engine.resume import run_pass
from pilotfish.models.base import Executor, Segment
from pilotfish.sampling.highest import HighestTokens, highest_tokens
from pilotfish.sampling.rows import Rows, rows_of
from pilotfish.terms import EMPTY_DRAFT, Draft, Verdict
from pilotfish.verify import Rule, match


@dataclass(frozen=True, slots=True)
class Plan:
    """One request's part of the pass: unread committed tokens, then its draft."""

    request: Request
    read: int
    """Committed tokens that the target has in its cache."""
    unread: Sequence[int]
    draft: Draft

    @property
    def size(self) -> int:
        """Rows in the pass."""
        return len(self.unread) + len(self.draft)

    @property
    def verifies(self) -> bool:
        """False while more of the prompt remains to be read after this pass."""
        return self.read + len(self.unread) == len(self.request.tokens)

    @property
    def logits_from(self) -> int:
        """The first row with logits: that of the pending token, but where the prompt's are wanted too."""
        if self.request.scores_prompt:
            return 0
        return len(self.unread) - 1 if self.verifies else len(self.unread)

    def segment(self) -> Segment:
        pending = len(self.unread) - 1  # the node that drafted tokens without a parent in the draft hang from
        chain = range(-1, pending)
        tree = [pending + 1 + parent for parent in self.draft.parents]
        return Segment(
            self.request.sequence, [*self.unread, *self.draft.tokens], [*chain, *tree], logits_from=self.logits_from
        )


def run_round(requests: Sequence[Request], target: Executor, drafter: Drafter | None, rule: Rule) -> list[Request]:
    """Runs one round for all requests, none of which has ended.

    Returns:
        the requests that were delivered tokens; those not among them are still reading their prompt.
    """
    plans = _plan(requests, target, drafter, coupled=not rule.needs_laws)
    boundaries = drafter.hidden_boundaries if drafter is not None else ()
    output = run_pass(target, [plan.segment() for plan in plans], [plan.draft.partial for plan in plans], boundaries)

    all_logits = rows_of(output.logits)
    all_maxima = None if output.maxima is None else rows_of(output.maxima)
    rows = 0
    nodes = 0
    delivered_to = []
    for plan in plans:
        hidden = {boundary: states[nodes : nodes + plan.size] for boundary, states in output.hidden.items()}
        nodes += plan.size
        logits = all_logits[rows : rows + plan.size - plan.logits_from]
        rows += len(logits)
        if plan.request.scores_prompt:
            plan.request.score_prompt(plan.read, logits)
        if not plan.verifies:
            target.keep(plan.request.sequence, range(plan.size))
            if drafter is not None:
                cached = plan.read + plan.size
                drafter.observe(Observation(plan.request.key, plan.request.tokens, hidden, cached))
            continue
        own = logits[len(plan.unread) - 1 - plan.logits_from :]
        highest = _highest(plan, own, None if all_maxima is None else all_maxima[rows - len(own) : rows], drafter, rule)
        verdict = _verify(plan, own, rule, highest)
        _commit(plan, verdict, own, hidden, target, drafter, highest)
        delivered_to.append(plan.request)
    return delivered_to


def _plan(requests: Sequence[Request], target: Executor, drafter: Drafter | None, coupled: bool) -> list[Plan]:
    """Decides what each request runs, and asks for drafts on behalf of those that reach their pending token."""
    plans = []
    for request in requests:
        read = target.length(request.sequence)
        plans.append(Plan(request, read, request.tokens[read : read + request.read_limit], EMPTY_DRAFT))
    ready = [plan.request for plan in plans if plan.verifies]
    drafts = propose(ready, drafter, coupled, sum(len(plan.unread) for plan in plans) - len(ready))
    return [replace(plan, draft=drafts.get(plan.request.key, EMPTY_DRAFT)) for plan in plans]


def _highest(
    plan: Plan, logits: Rows, maxima: Rows | None, drafter: Drafter | None, rule: Rule
) -> HighestTokens | None:
    """The highest tokens of each verified row, if the drafter learns from them or the choice is the first of them."""
    sampler = plan.request.sampler
    count = drafter.top_successors if drafter is not None else 0
    if rule.verify is None and sampler.takes_highest:
        count = max(count, 1)
    return highest_tokens(logits, sampler.vocab_size, count, maxima) if count else None


def _verify(plan: Plan, logits: Rows, rule: Rule, highest: HighestTokens | None) -> Verdict:
    """The rule's verdict on one request's draft; logits are of the pending token's row, then of the draft's nodes."""
    draft, sampler = plan.draft, plan.request.sampler
    if rule.verify is None and sampler.takes_highest and highest is not None and highest.regular:
        return match(draft, [ids[0] for ids in highest.ids])
    prefixes = plan.request.prefixes(draft)
    if rule.verify is None:
        return match(draft, sampler.choices(logits, prefixes))
    start = len(plan.request.tokens)
    return rule.verify(
        draft,
        sampler.laws(torch.from_numpy(logits), prefixes),
        sampler.accept_uniforms([prefix.position - 1 for prefix in prefixes[1:]], start),
        sampler.resample_uniform(start, start),
    )


def _commit(
    plan: Plan,
    verdict: Verdict,
    logits: Rows,
    hidden: dict[int, Tensor],
    target: Executor,
    drafter: Drafter | None,
    highest: HighestTokens | None,
) -> None:
    """Cuts the block at the request's end, if it has one, and only then lets any state advance."""
    request, draft = plan.request, plan.draft
    logprobs = request.score(draft, verdict, logits)
    favourites: tuple[Successors, ...] = ()
    if drafter is not None and drafter.top_successors and highest is not None:
        favourites = successors(request.tokens, draft, highest)
    delivered = request.deliver(verdict.tokens(draft), len(verdict.path), len(draft), time.monotonic(), logprobs)
    path = verdict.path[: delivered - 1]  # the last delivered token is the new pending one: its row is not kept
    kept = [*range(len(plan.unread)), *(len(plan.unread) + node for node in path)]
    target.keep(request.sequence, kept)
    assert target.length(request.sequence) == len(request.tokens) - 1, "all but the pending token are cached"
    if drafter is not None and (request.finish_reason is None or drafter.observes_end):
        states = {boundary: rows[kept] for boundary, rows in hidden.items()}
        drafter.observe(Observation(request.key, request.tokens, states, successors=favourites))
