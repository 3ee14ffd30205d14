"""One round: propose, one target forward, choices or laws, verdict, cut, commit. READ FIRST.

Everything Pilotfish promises happens in this file; batching, draft length, streaming and stop conditions live around
it. Each request of the batch goes through a round on its own terms: its draft may be empty, short, or a tree, and what
the others do never shows in its result. A request that is still reading its prompt shares the pass.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.engine.request import Request
from pilotfish.models.base import Executor, Segment
from pilotfish.terms import EMPTY_DRAFT, Draft, Verdict
from pilotfish.verify import Rule, match

PROMPT_ROWS = 256
"""Prompt tokens read in one pass, all requests together."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One request's part of the pass: unread committed tokens, then its draft."""

    request: Request
    unread: Sequence[int]
    draft: Draft
    verifies: bool
    """False while more of the prompt remains to be read after this pass."""

    def segment(self) -> Segment:
        pending = len(self.unread) - 1  # the node that drafted tokens without a parent in the draft hang from
        chain = range(-1, pending)
        tree = [pending + 1 + parent for parent in self.draft.parents]
        first_logits = pending if self.verifies else len(self.unread)
        return Segment(
            self.request.sequence, [*self.unread, *self.draft.tokens], [*chain, *tree], logits_from=first_logits
        )


def run_round(requests: Sequence[Request], target: Executor, drafter: Drafter | None, rule: Rule) -> list[Request]:
    """Runs one round for all requests, none of which has ended.

    Returns:
        the requests that were delivered tokens; those not among them are still reading their prompt.
    """
    plans = _plan(requests, target, drafter, coupled=not rule.needs_laws)
    boundaries = drafter.hidden_boundaries if drafter is not None else ()
    output = target.forward([plan.segment() for plan in plans], capture=boundaries)

    rows = 0
    nodes = 0
    delivered_to = []
    for plan in plans:
        size = len(plan.unread) + len(plan.draft)
        hidden = {boundary: states[nodes : nodes + size] for boundary, states in output.hidden.items()}
        nodes += size
        if not plan.verifies:
            target.keep(plan.request.sequence, range(size))
            continue
        verdict = _verify(plan, output.logits[rows : rows + 1 + len(plan.draft)], rule)
        _commit(plan, verdict, hidden, target, drafter, time.monotonic())
        delivered_to.append(plan.request)
        rows += 1 + len(plan.draft)
    return delivered_to


def _plan(requests: Sequence[Request], target: Executor, drafter: Drafter | None, coupled: bool) -> list[Plan]:
    """Decides what each request runs, and asks the drafter on behalf of those that reach their pending token."""
    prompt_rows = PROMPT_ROWS
    unread: dict[int, Sequence[int]] = {}
    jobs: list[DraftJob] = []
    for request in requests:
        read = target.length(request.sequence)
        waiting = request.tokens[read : read + 1 + prompt_rows]
        prompt_rows -= len(waiting) - 1
        unread[request.key] = waiting
        if drafter is not None and read + len(waiting) == len(request.tokens) and request.draft_budget > 0:
            jobs.append(
                DraftJob(
                    request.key, request.tokens, request.prompt_length, request.draft_budget, request.sampler, coupled
                )
            )
    drafts = dict.fromkeys(unread, EMPTY_DRAFT)
    if drafter is not None and jobs:
        drafts.update(zip((job.request for job in jobs), drafter.propose(jobs), strict=True))
    return [
        Plan(
            request, waiting, drafts[request.key], target.length(request.sequence) + len(waiting) == len(request.tokens)
        )
        for request, waiting in ((request, unread[request.key]) for request in requests)
    ]


def _verify(plan: Plan, logits: Tensor, rule: Rule) -> Verdict:
    """The rule's verdict on one request's draft; logits are of the pending token's row, then of the draft's nodes."""
    draft, sampler = plan.draft, plan.request.sampler
    prefixes = plan.request.prefixes(draft)
    if rule.verify is None:
        return match(draft, sampler.choices(logits, prefixes))
    start = len(plan.request.tokens)
    return rule.verify(
        draft,
        sampler.laws(logits, prefixes),
        sampler.accept_uniforms([prefix.position - 1 for prefix in prefixes[1:]], start),
        sampler.resample_uniform(start, start),
    )


def _commit(
    plan: Plan, verdict: Verdict, hidden: dict[int, Tensor], target: Executor, drafter: Drafter | None, now: float
) -> None:
    """Cuts the block at the request's end, if it has one, and only then lets any state advance."""
    request, draft = plan.request, plan.draft
    delivered = request.deliver(verdict.tokens(draft), len(verdict.path), len(draft), now)
    path = verdict.path[: delivered - 1]  # the last delivered token is the new pending one: its row is not kept
    kept = [*range(len(plan.unread)), *(len(plan.unread) + node for node in path)]
    target.keep(request.sequence, kept)
    assert target.length(request.sequence) == len(request.tokens) - 1, "all but the pending token are cached"
    if drafter is not None and request.finish_reason is None:
        states = {boundary: rows[kept] for boundary, rows in hidden.items()}
        drafter.observe(Observation(request.key, request.tokens, path, states))
