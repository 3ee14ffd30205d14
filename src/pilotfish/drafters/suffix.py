"""SuffixDecoding: what followed the longest and most telling context, in this text or in past outputs, follows again.

Owns one suffix index per request and, if there is one, the pool's. After Oliaro et al.
(https://arxiv.org/abs/2411.04975). Needs no model; pays where text repeats, and knows by how much.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.drafters.suffix_index import LONGEST_MATCH, Proposal, SuffixIndex, suffix_index
from pilotfish.drafters.suffix_pool import SuffixPool
from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import EMPTY_DRAFT, Draft


@dataclass(slots=True)
class _Text:
    """A request's text as far as it is indexed; `tokens` is the request's own list, known once it is asked for."""

    index: SuffixIndex
    tokens: Sequence[int] = ()
    prompt_length: int = 0


class SuffixDrafter(Drafter):
    """Drafts the continuation with the highest expected number of accepted tokens, with its estimate for each token.

    Every suffix of the text that occurred before is tried, up to 64 tokens: see `SuffixIndex.propose`. The draft is a
    function of the committed tokens (and the pool), so every rule takes it as a point mass.

    Args:
        nodes_per_depth: 1 drafts a chain; more a tree of so many nodes per drafted position, the likeliest first.
        max_spec_factor: a context of n tokens is continued by at most this many times n.
        min_token_prob: estimated survival below which drafting ends.
        pool: past outputs to copy from too; the higher score wins, of equals the request's own text.

    Raises:
        SpeculativeConfigError: a number is out of range.
    """

    sequential = False

    def __init__(
        self,
        nodes_per_depth: int = 1,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        pool: SuffixPool | None = None,
    ) -> None:
        if not max_spec_factor > 0:
            raise SpeculativeConfigError(f"suffix_decoding_max_spec_factor={max_spec_factor}: expected more than 0")
        if not 0 < min_token_prob <= 1:
            raise SpeculativeConfigError(
                f"suffix_decoding_min_token_prob={min_token_prob}: expected more than 0 and at most 1"
            )
        self.nodes_per_depth = nodes_per_depth
        self._factor = max_spec_factor
        self._min_prob = min_token_prob
        self._pool = pool
        self._texts: dict[int, _Text] = {}

    def begin(self, request: int, capacity: int) -> None:
        self._texts[request] = _Text(suffix_index())

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._propose(job) for job in jobs]

    def _propose(self, job: DraftJob) -> Draft:
        text = self._texts[job.request]
        text.tokens, text.prompt_length = job.tokens, job.prompt_length
        text.index.extend(job.tokens[len(text.index) :])
        found = self._search(text.index, job)
        if self._pool is not None:
            pooled = self._search(self._pool.index, job)
            found = pooled if pooled[3] > found[3] else found
        tokens, parents, confidence, _ = found
        return Draft(tuple(tokens), tuple(parents), None, tuple(confidence)) if tokens else EMPTY_DRAFT

    def _search(self, index: SuffixIndex, job: DraftJob) -> Proposal:
        # Contexts and continuations are counted up to 128 tokens together: beyond 64 there are no estimates.
        draft_len = min(job.draft_len, LONGEST_MATCH)
        nodes = job.node_budget(self.nodes_per_depth)
        context = job.tokens[-LONGEST_MATCH:]
        return index.propose(context, draft_len, nodes, self._factor, self._min_prob, self.nodes_per_depth > 1)

    def observe(self, observation: Observation) -> None:
        """Nothing to do: the index catches up with the committed tokens when it is next asked."""

    def end(self, request: int) -> None:
        text = self._texts.pop(request)
        if self._pool is not None:
            self._pool.add(text.tokens[text.prompt_length :])
