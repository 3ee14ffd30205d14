"""What a round verifies for each request: the drafter's proposal, made fit for the request's grammar.

Owns the place around the drafter. Drafters do not know grammars: what they propose is cut where the grammar forbids
it, and goes on with the tokens that the grammar forces. Knows no target and no rule.
"""

from collections.abc import Mapping, Sequence

from pilotfish.drafters.base import Drafter, DraftJob
from pilotfish.engine.request import Request
from pilotfish.sampling.grammar import GrammarConstraint
from pilotfish.sampling.prefix import Prefix
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft

LONGEST_FORCED = 128
"""Most forced tokens in one pass; what is certain now is certain in the next round too."""


def propose(
    requests: Sequence[Request], drafter: Drafter | None, coupled: bool, other_rows: int
) -> Mapping[int, Draft]:
    """One draft per request, by key; all of them at their pending token.

    Args:
        other_rows: rows of the pass that read text.
        coupled: the rule is `match`, so drafters may draw with the target's noise.
    """
    willing = [request for request in requests if drafter is not None and request.draft_budget > 0]
    # Where the grammar leaves no choice for a whole draft, the drafter has nothing to add.
    asking = [request for request in willing if len(_forced(request, ())) < request.draft_budget]
    jobs = [
        DraftJob(
            request.key,
            request.tokens,
            request.prompt_length,
            request.draft_budget,
            request.sampler,
            coupled,
            sequence=request.sequence,
            other_rows=other_rows + len(requests) - len(asking),
        )
        for request in asking
    ]
    drafts = {request.key: EMPTY_DRAFT for request in willing}
    if drafter is not None and jobs:
        drafts.update(zip((job.request for job in jobs), drafter.propose(jobs), strict=True))
    return {request.key: _fitted(request, drafts[request.key]) for request in willing}


def _fitted(request: Request, draft: Draft) -> Draft:
    constraint = request.sampler.constraint
    # A sampled draft stays as it was drawn: to cut it by what was drawn would change the law of the output (a ratio
    # rule rejects an impossible token by itself, and draws the residual). Its drafter drew under the grammar anyway.
    if constraint is None or draft.probs is not None:
        return draft
    fitted = _legal(request, draft, constraint)
    return _extended(request, fitted) if fitted.is_chain else fitted


def _legal(request: Request, draft: Draft, constraint: GrammarConstraint) -> Draft:
    """The draft without what the grammar forbids, and without what hangs from that."""
    prefixes = request.prefixes(draft)[1:]
    if all(constraint.allows(prefix) for prefix in prefixes):
        return draft
    numbers = {ROOT: ROOT}
    tokens: list[int] = []
    parents: list[int] = []
    for node, (prefix, parent) in enumerate(zip(prefixes, draft.parents, strict=True)):
        if parent in numbers and constraint.allows(prefix):
            numbers[node] = len(tokens)
            tokens.append(draft.tokens[node])
            parents.append(numbers[parent])
    # Rows that were run ahead may be others now: they are run again.
    return Draft(tuple(tokens), tuple(parents))


def _extended(request: Request, draft: Draft) -> Draft:
    """A chain and what the grammar forces after it: certain tokens, for which the draft length is no limit."""
    tokens = draft.tokens
    room = min(request.ending.budget - 1 - len(tokens), LONGEST_FORCED)
    if request.row_limit is not None:
        room = min(room, request.row_limit - len(tokens))
    forced = _forced(request, tokens)[: max(0, room)]
    if not forced:
        return draft
    return Draft.chain((*tokens, *forced), partial=draft.partial)


def _forced(request: Request, path: tuple[int, ...]) -> list[int]:
    constraint = request.sampler.constraint
    return [] if constraint is None else constraint.forced(Prefix(request.tokens, request.prompt_length, path))
