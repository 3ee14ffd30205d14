"""Everything that costs no model, in one tree: the text itself, the target's earlier favourites, and a table.

Owns one index per request. Where prompt lookup, suffix decoding and token recycling each follow one source, here every
possible next token is judged by all of them, at every node of the tree. Needs no model and no training; a table of the
target's own texts (`pilotfish train pool`) makes it better by far.
"""

from collections.abc import Sequence

from pilotfish.drafters.backoff import BackoffTable
from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.drafters.lookup_index import CONTEXT, LookupIndex, PositionNoise, index_factory
from pilotfish.terms import EMPTY_DRAFT, Draft

FAVOURITES = 8
"""Of the target's favourites after each row that are remembered."""
BYTES_PER_TOKEN = 1200
"""Of memory per token of a text: 410 were measured for what is counted in it, and about 400 go to each row whose
favourites are remembered, two or so per token; these are bounded, so a long text takes less."""
LEAST = 0.01
"""Estimated survival of a token that nobody could want to verify."""


class LookupDrafter(Drafter):
    """Drafts the likeliest continuations: a tree, but a chain for a ratio rule unless more nodes are asked for.

    Whatever it knows is a function of the request's committed tokens and of rounds that are over (and of the table,
    which never changes), so a draft is a point mass given the past and every rule takes it. Under `match` the request's
    noise at the coming positions speaks as well: of two tokens about equally likely the target will choose the one with
    more of it. Requests share nothing but the table: what one user is answered cannot show in how fast another is.

    Confidence is the estimated probability of being accepted.

    Args:
        table: of the target's own texts.
        nodes_per_depth: nodes per position of a path; a tree of `draft_len` nodes by default. More needs a rule that
            takes trees.
        own_text: learn from the request; without, the table alone drafts.
    """

    sequential = False

    def __init__(self, table: BackoffTable | None = None, nodes_per_depth: int = 1, *, own_text: bool = True) -> None:
        self.nodes_per_depth = nodes_per_depth
        self.top_successors = FAVOURITES if own_text else 0
        self.bytes_per_token = BYTES_PER_TOKEN if own_text else 0
        self._new_index = index_factory(table)
        self._own_text = own_text
        self._indexes: dict[int, LookupIndex] = {}

    def begin(self, request: int, capacity: int) -> None:
        self._indexes[request] = self._new_index()

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._propose(self._indexes[job.request], job) for job in jobs]

    def _propose(self, index: LookupIndex, job: DraftJob) -> Draft:
        if self._own_text:
            index.extend(job.tokens[len(index) :])
        nodes = job.node_budget(self.nodes_per_depth)
        # `match` takes branches whatever they are: its verdict is the target's own choice. Of the other rules only one
        # does, and more nodes than a chain has are not asked for under another.
        branching = job.coupled or self.nodes_per_depth > 1
        noise = None
        if job.coupled and not job.sampler.params.greedy:
            noise = PositionNoise(job.sampler.seed, len(job.tokens), job.sampler.params.temperature)
        tokens, parents, confidence = index.propose(
            job.tokens[-CONTEXT:], job.draft_len, nodes, job.sampler.vocab_size, LEAST, branching, noise
        )
        return Draft(tuple(tokens), tuple(parents), None, tuple(confidence)) if tokens else EMPTY_DRAFT

    def observe(self, observation: Observation) -> None:
        if not self._own_text:
            return  # another drafter of the same request may have asked for the target's favourites
        index = self._indexes[observation.request]
        for row in observation.successors:
            index.learn(-1 if row.previous is None else row.previous, row.token, row.ids, row.shares)

    def end(self, request: int) -> None:
        del self._indexes[request]
