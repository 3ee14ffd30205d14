"""A drafter that knows what is to come and errs on purpose: cheap drafts that are accepted and rejected in turn."""

from collections.abc import Mapping, Sequence

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft


class EchoDrafter(Drafter):
    """Drafts the known output of a prompt, one token in three replaced by a wrong one; `width` chains side by side.

    Args:
        known: output by prompt.
        seed: which tokens are wrong.
        width: chains below the root; only the last of them may be right from the beginning.
    """

    def __init__(self, known: Mapping[tuple[int, ...], Sequence[int]], seed: int, width: int) -> None:
        self._known = known
        self._seed = seed
        self._width = width
        self.nodes_per_depth = width

    def begin(self, request: int, capacity: int) -> None:
        """Nothing to prepare."""

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._propose(job) for job in jobs]

    def observe(self, observation: Observation) -> None:
        """Nothing to remember."""

    def end(self, request: int) -> None:
        """Nothing to drop."""

    def _propose(self, job: DraftJob) -> Draft:
        output = self._known.get(tuple(job.tokens[: job.prompt_length]), ())
        place = len(job.tokens) - job.prompt_length
        right = output[place : place + job.draft_len]
        if not right:
            return EMPTY_DRAFT
        tokens: list[int] = []
        parents: list[int] = []
        for chain in range(self._width):
            for depth, token in enumerate(right):
                parents.append(len(tokens) - 1 if depth else ROOT)
                wrong = hash((self._seed, job.request, place + depth, chain)) % 3 == 0
                # The wrong token is one that the output has elsewhere: an id that surely exists.
                spoilt = wrong or (depth == 0 and chain < self._width - 1)
                tokens.append(self._other(output, place + depth, chain) if spoilt else token)
        return Draft(tuple(tokens), tuple(parents))

    def _other(self, output: Sequence[int], place: int, chain: int) -> int:
        for step in range(1, len(output)):
            token = output[(place + step + chain) % len(output)]
            if token != output[place]:
                return token
        return (output[place] + 1) if output[place] == 0 else output[place] - 1
