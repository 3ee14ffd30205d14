"""Which draft, and how much of it: the choice that makes speculation never slower than plain decoding.

Owns the choice among several drafters and the length of what is verified, plain decoding included. It is a drafter
itself: it lets others propose, estimates from their records what each token is worth (`survival.py`), and keeps as much
as brings the most delivered tokens per second at the measured time of a pass. Knows no target and no logits.

A point-mass draft (n-gram, suffix, or coupled to the target's noise) is judged after it was made and may be cut
anywhere: the verdict is the target's own choice whatever was dropped. A draft drawn from its own law for a ratio rule
is taken whole and its length decided before, because dropping a token for what it turned out to be changes the law of
the output (https://arxiv.org/abs/2607.05147, appendix A, has the counter-example).
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.engine.pass_time import PassTime
from pilotfish.engine.survival import DISSENT, Survival, claims
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft, PartialPass

LONGEST = 16
"""Most tokens asked of a drafter at a time, branches included."""

WORTH = 1.01
"""A draft must promise this much more than plain decoding: an estimate's noise must not cost speed."""

HOPE = 0.9
"""Where even drafts of which so many tokens were accepted would not pay, nobody is asked for one."""

FREE = 0.02
"""A drafter whose longest draft takes less than this share of a plain pass is asked in every round of a text that
is not quiet."""

QUIET = 32
QUIET_EVERY = 4
"""A text is quiet once so many rounds in a row had no draft worth sending: then such a drafter is asked in one round of
so many, until one is. Text that gives nothing does so for long, and asking takes time too."""

OUTLIER = 3.0
"""Beyond so many times what a drafter usually takes, something else has kept it."""

EXPLORE_SHARE = 0.01
EXPLORE_EVERY = 64
EXPLORE_LENGTH = 2
"""A dearer drafter that is not expected to pay is asked for a short draft now and then, to see whether it does: as
often as takes this share of the time, and at least every so many rounds."""


@dataclass(slots=True, eq=False)
class _Member:
    """A drafter, its record, and how long each request let it rest.

    Attributes:
        unit_seconds: smoothed; per drafted token, or per draft where its length makes no difference.
    """

    drafter: Drafter
    survival: Survival = field(default_factory=Survival)
    unit_seconds: float | None = None
    rested: dict[int, int] = field(default_factory=dict)

    def propose(self, jobs: Sequence[DraftJob], clock: Callable[[], float]) -> list[Draft]:
        started = clock()
        drafts = self.drafter.propose(jobs)
        # By what was asked, not by what came: a drafter without an idea costs time too.
        rate = (clock() - started) / sum(job.draft_len if self.drafter.sequential else 1 for job in jobs)
        if any(len(job.tokens) == job.prompt_length for job in jobs):
            return drafts  # a first draft takes in the prompt: it says nothing about the next ones
        if not self.unit_seconds:
            self.unit_seconds = rate
        else:  # a moment in which the machine did something else must not make a quick drafter look dear
            self.unit_seconds = 0.9 * self.unit_seconds + 0.1 * min(rate, OUTLIER * self.unit_seconds)
        return drafts

    def seconds(self, draft_len: int) -> float:
        """Of a draft of this length for one request; nothing before the first was timed."""
        return (self.unit_seconds or 0.0) * (draft_len if self.drafter.sequential else 1)


@dataclass(slots=True, eq=False)
class _Proposal:
    """What one drafter proposed, each node's level in its record, and the nodes beside another drafter's choice."""

    member: _Member
    draft: Draft
    levels: list[int]
    dissenters: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Candidate:
    """Nodes that may be verified, with their estimated survival; `draft` holds the same where one was proposed so."""

    tokens: Sequence[int]
    parents: Sequence[int]
    survival: list[float]
    draft: Draft | None
    partial: PartialPass | None = None

    @property
    def whole(self) -> Draft | None:
        """The draft, where it is taken whole or not at all."""
        return self.draft if self.draft is not None and self.draft.probs is not None else None


class DraftPolicy(Drafter):
    """Takes, per request and round, the draft and the length with the best expected delivered tokens per second.

    Args:
        drafters: at least one.
        pass_time: what a pass of so many rows takes.
        clock: seconds; for tests.
    """

    def __init__(
        self, drafters: Sequence[Drafter], pass_time: PassTime, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._members = [_Member(drafter) for drafter in drafters]
        self._pass_time = pass_time
        self._clock = clock
        self._proposed: dict[int, list[_Proposal]] = {}
        self._known: dict[int, int] = {}
        self._fruitless: dict[int, int] = {}
        self._sent: tuple[int, float] | None = None
        self.hidden_boundaries = tuple(sorted({b for drafter in drafters for b in drafter.hidden_boundaries}))
        self.nodes_per_depth = sum(drafter.nodes_per_depth for drafter in drafters)
        self.executors = tuple(executor for drafter in drafters for executor in drafter.executors)
        self.bytes_per_token = sum(drafter.bytes_per_token for drafter in drafters)
        self._most_successors = max(drafter.top_successors for drafter in drafters)
        self.top_successors = self._most_successors

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """What it chooses from."""
        return tuple(member.drafter for member in self._members)

    def begin(self, request: int, capacity: int) -> None:
        with ExitStack() as begun:  # a member without room for the request must not leave it with the others
            for member in self._members:
                member.drafter.begin(request, capacity)
                begun.callback(member.drafter.end, request)
            begun.pop_all()
        self._fruitless[request] = 0
        for member in self._members:
            member.survival.begin(request)
            member.rested[request] = 0

    def end(self, request: int) -> None:
        self._sent = None  # without this request's observation the time of its last pass is not known
        self._proposed.pop(request, None)
        self._known.pop(request, None)
        self._fruitless.pop(request, None)
        with ExitStack() as ends:
            for member in self._members:
                ends.callback(member.drafter.end, request)
                member.survival.end(request)
                del member.rested[request]

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        rows = len(jobs)
        for job in jobs:
            self._known[job.request] = len(job.tokens)
            self._proposed[job.request] = []
        chosen, room = [EMPTY_DRAFT] * rows, True
        hopeful = [job for job in jobs if not self._quiet(job.request)]
        if hopeful or any(self._dear(member, rows) for member in self._members):
            room = self._may_pay(rows, sum(job.draft_len for job in jobs))
            # Where no draft could pay, drafters are not told either what takes time to find out.
            self.top_successors = self._most_successors if room else 0
            if room:
                chosen = self._chosen(jobs, hopeful)
        if room:  # that a batch leaves none says nothing of its texts
            for job, draft in zip(jobs, chosen, strict=True):
                self._fruitless[job.request] = 0 if draft.tokens else self._fruitless[job.request] + 1
        # A request's first pass may hold rows of its prompt as well, which are not known here.
        starting = any(job.other_rows or len(job.tokens) == job.prompt_length for job in jobs)
        self._sent = None if starting else (rows + sum(map(len, chosen)), self._clock())
        return chosen

    def _may_pay(self, rows: int, most: int) -> bool:
        """Whether any draft could: in a large batch, or where rows are dear, asking for drafts only takes time."""
        return self._best_count([HOPE] * min(most, rows + LONGEST), rows, float(rows))[0] > 0

    def _chosen(self, jobs: Sequence[DraftJob], hopeful: Sequence[DraftJob]) -> list[Draft]:
        rows = len(jobs)
        # Drafters that cost next to nothing all get the same orders, for every request whose text is not quiet.
        free = [_longest(job) for job in hopeful]
        plain = self._pass_time(rows)
        for member in self._members:
            asked: Sequence[DraftJob] = free
            if self._dear(member, rows):
                orders = (self._order(member, _longest(job), rows, plain) for job in jobs)
                asked = [order for order in orders if order is not None]
            if asked:
                for order, draft in zip(asked, member.propose(asked, self._clock), strict=True):
                    if draft.tokens:
                        node_levels = member.survival.levels(order.request, draft)
                        self._proposed[order.request].append(_Proposal(member, draft, node_levels))
        return self._admit([self._best(job, rows) for job in jobs])

    def _dear(self, member: _Member, rows: int) -> bool:
        return member.seconds(LONGEST) >= FREE * self._pass_time(rows)

    def _quiet(self, request: int) -> bool:
        fruitless = self._fruitless[request]
        return fruitless >= QUIET and fruitless % QUIET_EVERY > 0

    def _order(self, member: _Member, job: DraftJob, rows: int, plain: float) -> DraftJob | None:
        """What to ask a dear drafter for on behalf of a request, if anything; decided from the past alone."""
        times = self._pass_time.table(rows + job.draft_len)
        typical = member.survival.typical(job.request)
        best, length, reach, expected = WORTH * rows / plain, 0, 1.0, float(rows)
        for draft_len in range(1, job.draft_len + 1):
            reach *= typical
            expected += reach
            rate = expected / (times[rows + draft_len] + member.seconds(draft_len))
            if rate > best:
                best, length = rate, draft_len
        if length == 0:
            member.rested[job.request] += 1
            rest = min(member.seconds(EXPLORE_LENGTH) / (EXPLORE_SHARE * plain), EXPLORE_EVERY)
            if member.rested[job.request] < rest:
                return None
            length = min(EXPLORE_LENGTH, job.draft_len)
        member.rested[job.request] = 0
        return replace(job, draft_len=length) if member.drafter.sequential else job

    def _best(self, job: DraftJob, rows: int) -> _Candidate | None:
        """The proposal that promises most, were its nodes the only ones added to the pass, with the others beside it.

        Under `match` what other drafters say differently joins as further branches. A ratio rule gets one proposal.
        """
        proposals = self._proposed[job.request]
        if not proposals:
            return None
        ranked: list[tuple[float, int, list[float]]] = []
        for place, proposal in enumerate(proposals):
            survival = proposal.member.survival.of_nodes(job.request, proposal.draft, proposal.levels)
            if proposal.draft.probs is not None:
                return _candidate(proposal.draft, survival)
            rate = 0.0
            if len(proposals) > 1:
                _, rate = self._best_count(sorted(survival, reverse=True), rows, float(rows))
            ranked.append((-rate, place, survival))
        _, first, survival = min(ranked)
        if len(ranked) == 1 or not job.coupled:
            return _candidate(proposals[first].draft, survival)
        return _merged(
            job.request, proposals[first], survival, [proposals[place] for _, place, _ in sorted(ranked)[1:]]
        )

    def _best_count(self, worth: Sequence[float], rows: int, expected: float) -> tuple[int, float]:
        """How many of the nodes, best first, to add to a pass of `rows` rows that is to deliver `expected` tokens.

        Returns:
            the number, and the tokens per second that gives.
        """
        times = self._pass_time.table(rows + len(worth))
        best, count, added = WORTH * expected / times[rows], 0, rows
        for survival in worth:
            added += 1
            expected += survival
            rate = expected / times[added]
            if rate > best:
                best, count = rate, added - rows
        return count, best

    def _admit(self, candidates: Sequence[_Candidate | None]) -> list[Draft]:
        """Fills one pass for all requests: nodes in the order of their survival, as long as the rate rises.

        A node never survives more often than its parent, so the best nodes of a draft are a draft.
        """
        rows, expected = len(candidates), float(len(candidates))
        worth: list[float] = []
        for candidate in candidates:
            if candidate is None:
                continue
            if candidate.whole is None:
                worth.extend(candidate.survival)
            else:
                rows += len(candidate.survival)
                expected += sum(candidate.survival)
        worth.sort(reverse=True)
        count, _ = self._best_count(worth, rows, expected)
        least = worth[count - 1] if count else math.inf
        return [EMPTY_DRAFT if candidate is None else _cut(candidate, least) for candidate in candidates]

    def observe(self, observation: Observation) -> None:
        if self._sent is not None:
            rows, sent = self._sent
            self._pass_time.observe(rows, self._clock() - sent)
            self._sent = None
        known = self._known.get(observation.request)
        if known is not None:
            committed = observation.tokens[known:]
            for proposal in self._proposed[observation.request]:
                proposal.member.survival.record(
                    observation.request, proposal.draft, proposal.levels, committed, proposal.dissenters
                )
            self._proposed[observation.request].clear()
        for member in self._members:
            member.drafter.observe(observation)


def _longest(job: DraftJob) -> DraftJob:
    return replace(job, draft_len=min(job.draft_len, LONGEST), max_nodes=LONGEST)


def _candidate(draft: Draft, survival: list[float]) -> _Candidate:
    return _Candidate(draft.tokens, draft.parents, survival, draft, draft.partial)


def _merged(request: int, lead: _Proposal, survival: Sequence[float], others: Sequence[_Proposal]) -> _Candidate:
    """One tree of several drafts: the lead's nodes first, then what the others say that is not there yet.

    A node beside another drafter's choice is judged as a dissenter, and noted as one for the record.
    """
    tokens, parents, worth = list(lead.draft.tokens), list(lead.draft.parents), list(survival)
    places = {key: node for node, key in enumerate(zip(parents, tokens, strict=True))}
    branched = set(parents)
    for proposal in others:
        place, claimed = [0] * len(proposal.draft), claims(proposal.draft, proposal.levels)
        for node, (token, above) in enumerate(zip(proposal.draft.tokens, proposal.draft.parents, strict=True)):
            parent = ROOT if above == ROOT else place[above]
            known = places.get((parent, token))
            if known is not None:
                place[node] = known
                continue
            level = proposal.levels[node]
            if parent in branched:
                proposal.dissenters.add(node)
                level += DISSENT
            acceptance = proposal.member.survival.acceptance(request, level, claimed[node])
            place[node] = places[parent, token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            worth.append(acceptance if parent == ROOT else acceptance * worth[parent])
        branched = set(parents)
    own = lead.draft if len(tokens) == len(lead.draft) else None
    return _Candidate(tokens, parents, worth, own, lead.draft.partial)


def _cut(candidate: _Candidate, least: float) -> Draft:
    """The nodes whose survival is at least `least`."""
    if candidate.whole is not None:
        return candidate.whole
    tokens, parents = candidate.tokens, candidate.parents
    kept = [node for node, survival in enumerate(candidate.survival) if survival >= least]
    if not kept:
        return EMPTY_DRAFT
    beginning = kept[-1] == len(kept) - 1
    if beginning:
        if len(kept) == len(tokens) and candidate.draft is not None:
            return candidate.draft
        # Rows that were run ahead stand in the draft's order: they serve a beginning of it, not a selection.
        return Draft(tuple(tokens[: len(kept)]), tuple(parents[: len(kept)]), partial=candidate.partial)
    place = {node: new for new, node in enumerate(kept)}
    place[ROOT] = ROOT
    return Draft(tuple(tokens[node] for node in kept), tuple(place[parents[node]] for node in kept))
