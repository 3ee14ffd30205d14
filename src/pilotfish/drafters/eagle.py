"""EAGLE: a small head drafts from the target's own hidden states.

Owns the head's caches: how far each has read the committed text with the target's features, and the drafts it grows
beyond on its own. After Li et al., EAGLE-2 (https://arxiv.org/abs/2406.16858) for trees and EAGLE-3
(https://arxiv.org/abs/2503.01840); the head itself is `models/eagle.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.drafters.vocabulary import in_target_ids
from pilotfish.models.base import Segment
from pilotfish.models.eagle import EagleHead
from pilotfish.models.sequence import SequenceState
from pilotfish.models.torch_cache import RowMasks, TorchCache
from pilotfish.models.torch_executor import CachedAttention, Span
from pilotfish.sampling.prefix import Prefix
from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft

CATCH_UP_ROWS = 256
"""Rows of committed text read in one pass of the head; so many may wait before they are read unasked."""
SPARE_NODES = 256
"""Room in a head's cache for branches."""


@dataclass(slots=True, eq=False)
class _Text:
    """One request's text as the head has read it.

    Attributes:
        cache: keys and values; its row j stands at position `first + j`.
        first: position of the first feature that was seen.
        waiting: the target's states not read yet, side by side.
        normed, feature: the head's outputs at its last row.
    """

    cache: TorchCache
    first: int = 0
    waiting: list[Float[Tensor, "row fused"]] = field(default_factory=list)
    normed: Float[Tensor, "1 hidden"] | None = None
    feature: Float[Tensor, "1 hidden"] | None = None

    @property
    def unread(self) -> int:
        return sum(len(states) for states in self.waiting)

    @property
    def end(self) -> int:
        """One past the last position whose feature is known."""
        return self.first + self.cache.state.length + self.unread


@dataclass(slots=True, eq=False)
class _Node:
    """A drafted token that may become part of the draft."""

    token: int
    parent: "_Node | None"
    share: float
    survival: float
    path: tuple[int, ...]
    law: Tensor | None = None
    row: int = ROOT
    """Its number in the head's cache, once the head has read it."""


@dataclass(slots=True, eq=False)
class _Growth:
    """One job's draft as it grows: all its nodes in order, and those the head is to read next."""

    job: DraftJob
    text: _Text
    nodes: list[_Node] = field(default_factory=list)
    frontier: list[_Node] = field(default_factory=list)


class EagleDrafter(Drafter):
    """Drafts a chain, or a tree of the likeliest paths, one pass of the head per depth, all requests in one pass.

    A chain's token is the head's own choice under the target's noise (`match`), or a draw from its law, which it
    reports (ratio rules). A tree, under `match` only, adds the likeliest other tokens as siblings; the head reads on
    from the best `nodes_per_depth` nodes of a depth, and the best of all nodes are the draft. Ratio rules get a chain.

    Confidence is the head's highest probability at a node's parent for the choice, and a part of the rest for its
    siblings. It does not look at the token that was drawn.

    Until the target has shown its states it drafts nothing; a prefix that it never showed is not looked at.

    Args:
        head: on any device; its linear layers may be native ones.
        boundaries: of the target, whose states the head fuses.
        nodes_per_depth: 1 for chains.
    """

    def __init__(self, head: EagleHead, boundaries: Sequence[int], nodes_per_depth: int = 1) -> None:
        self._head = head.eval()
        self._config = head.config.layer
        self._device = head.norm.weight.device
        self.hidden_boundaries = tuple(boundaries)
        self.nodes_per_depth = nodes_per_depth
        # The head's own keys and values, and the target's states, which stay with a text's pages.
        own = 2 * self._config.num_kv_heads * self._config.head_dim
        self.bytes_per_token = 4 * (own + len(boundaries) * self._config.hidden_size)
        self._texts: dict[int, _Text] = {}

    def begin(self, request: int, capacity: int) -> None:
        self._texts[request] = _Text(self._new_cache(request, capacity + SPARE_NODES))

    def _new_cache(self, request: int, capacity: int) -> TorchCache:
        return TorchCache(SequenceState(request, capacity), self._config, self._device, torch.float32)

    @torch.inference_mode()
    def observe(self, observation: Observation) -> None:
        """Takes the target's states at what was committed; nodes that ran ahead are dropped already."""
        states = torch.cat([observation.hidden[boundary] for boundary in self.hidden_boundaries], dim=-1)
        if not len(states):
            return
        text = self._texts[observation.request]
        start = observation.cached_length - len(states)
        if start != text.end:
            text = _Text(self._new_cache(observation.request, text.cache.state.capacity), first=start)
            self._texts[observation.request] = text
        text.waiting.append(states.to(self._device, torch.float32))
        if text.unread >= CATCH_UP_ROWS:
            self._read(text, observation.tokens)

    @torch.inference_mode()
    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        growths: dict[int, _Growth] = {}
        for job in jobs:
            text = self._texts[job.request]
            if text.end == len(job.tokens) - 1 > text.first:
                self._read(text, job.tokens)
                growths[job.request] = _Growth(job, text)
        growing = list(growths.values())
        if growing:
            first = torch.cat([growth.text.normed for growth in growing if growth.text.normed is not None])
            self._branch([(growth, None) for growth in growing], first)
            self._grow(growing)
        return [self._finish(growths[job.request]) if job.request in growths else EMPTY_DRAFT for job in jobs]

    def _read(self, text: _Text, tokens: Sequence[int]) -> None:
        """Reads the waiting states, each with the token after it."""
        if not text.waiting:
            return
        states = torch.cat(text.waiting)
        text.waiting.clear()
        for part in (states[place : place + CATCH_UP_ROWS] for place in range(0, len(states), CATCH_UP_ROWS)):
            start = text.first + text.cache.state.length
            following = tokens[start + 1 : start + 1 + len(part)]
            normed, feature = self._run([(text, Segment(0, following))], self._head.fuse(part))
            text.cache.keep(range(len(part)))
            text.normed, text.feature = normed[-1:], feature[-1:]

    def _run(
        self, rows: Sequence[tuple[_Text, Segment]], features: Float[Tensor, "row hidden"]
    ) -> tuple[Float[Tensor, "row hidden"], Float[Tensor, "row hidden"]]:
        """One pass of the head over rows of several texts."""
        spans, positions, start = [], [], 0
        for text, segment in rows:
            state = text.cache.state
            nodes = state.check_rows(segment, (0, 1))
            state.place(segment.first_node, nodes)
            masks = RowMasks(state, segment.first_node, self._device)
            spans.append(Span(text.cache, segment.first_node, slice(start, start + len(nodes)), masks))
            positions.append(masks.row_positions + text.first)
            start += len(nodes)
        tokens = torch.tensor([token for _, segment in rows for token in segment.tokens], device=self._device)
        return self._head.run(tokens, features, torch.cat(positions), CachedAttention(self._config, spans))

    def _grow(self, growing: Sequence[_Growth]) -> None:
        """Depth by depth: the head reads the best new nodes, then these branch."""
        features = {growth: growth.text.feature for growth in growing}
        active = list(growing)
        while active := [growth for growth in active if self._has_next(growth)]:
            rows: list[tuple[_Text, Segment]] = []
            parents: list[tuple[_Growth, _Node | None]] = []
            inputs: list[Tensor] = []
            for growth in active:
                state = growth.text.cache.state
                first = len(state.nodes)
                segment = Segment(
                    0,
                    [node.token for node in growth.frontier],
                    [ROOT if node.parent is None else node.parent.row for node in growth.frontier],
                    first_node=first,
                )
                known = features[growth]
                assert known is not None, "the head has read the text"
                inputs.append(known[[0 if node.parent is None else node.parent.row + 1 for node in growth.frontier]])
                for place, node in enumerate(growth.frontier):
                    node.row = first + place
                rows.append((growth.text, segment))
                parents.extend((growth, node) for node in growth.frontier)
            normed, outputs = self._run(rows, torch.cat(inputs))
            start = 0
            for growth, (_, segment) in zip(active, rows, strict=True):
                stop = start + len(segment.tokens)
                known = features[growth]
                assert known is not None, "as above"
                features[growth] = torch.cat((known, outputs[start:stop]))
                growth.frontier = []
                start = stop
            self._branch(parents, normed)
        for growth in growing:
            growth.text.cache.state.truncate(growth.text.cache.state.length)

    def _has_next(self, growth: _Growth) -> bool:
        """Chooses whom the head reads next: the best of the deepest nodes, as long as depth and cache allow."""
        if not growth.frontier or len(growth.frontier[0].path) >= growth.job.draft_len:
            return False
        state = growth.text.cache.state
        room = state.capacity - state.length - len(state.nodes)
        width = min(self._width(growth.job), room)
        growth.frontier = sorted(growth.frontier, key=lambda node: -node.survival)[:width]
        return width > 0

    def _width(self, job: DraftJob) -> int:
        return self.nodes_per_depth if job.coupled else 1

    def _branch(self, parents: Sequence[tuple[_Growth, _Node | None]], normed: Float[Tensor, "row hidden"]) -> None:
        """Gives each node, `None` being the pending token, its children."""
        logits = self._head.logits(normed)
        laws = logits.softmax(-1)
        highest = laws.amax(-1).tolist()
        widened = in_target_ids(logits, self._head.target_ids, self._config.vocab_size)
        for row, (growth, parent) in enumerate(parents):
            job = growth.job
            path = () if parent is None else parent.path
            above = 1.0 if parent is None else parent.survival
            prefix = Prefix(job.tokens, job.prompt_length, path)
            own, law = widened[row : row + 1], None
            if job.coupled:
                token = job.sampler.choices(own, [prefix])[0]
            else:
                law = job.sampler.laws(own, [prefix])
                token = job.sampler.draw(law[0], prefix.position, start=len(job.tokens))
            children = [_Node(token, parent, highest[row], above * highest[row], (*path, token), law)]
            for sibling, share in self._siblings(laws[row], token, highest[row], self._width(job) - 1):
                if sibling < job.sampler.vocab_size:
                    children.append(_Node(sibling, parent, share, above * share, (*path, sibling)))
            growth.nodes.extend(children)
            growth.frontier.extend(children)

    def _siblings(
        self, law: Float[Tensor, " draft_vocab"], choice: int, taken: float, count: int
    ) -> list[tuple[int, float]]:
        """The likeliest tokens besides the choice, and their shares of what it leaves."""
        if count == 0:
            return []
        best = law.topk(min(count + 1, len(law)))
        ids = self._head.target_ids[best.indices].tolist()
        others = [(token, prob) for token, prob in zip(ids, best.values.tolist(), strict=True) if token != choice][
            :count
        ]
        chosen = float(law[self._head.target_ids == choice].sum())
        rest = max(1.0 - chosen, 1e-9)
        return [(token, (1.0 - taken) * min(prob / rest, 1.0)) for token, prob in others]

    def _finish(self, growth: _Growth) -> Draft:
        """The best nodes. A child never survives more often than its parent, which was made before it."""
        budget = growth.job.node_budget(self._width(growth.job))
        order = sorted(range(len(growth.nodes)), key=lambda place: -growth.nodes[place].survival)[:budget]
        nodes = [growth.nodes[place] for place in order]
        places = {id(node): place for place, node in enumerate(nodes)}
        parents = tuple(ROOT if node.parent is None else places[id(node.parent)] for node in nodes)
        laws = [node.law for node in nodes if node.law is not None]
        return Draft(
            tuple(node.token for node in nodes),
            parents,
            torch.cat(laws) if laws else None,
            tuple(node.share for node in nodes),
        )

    def end(self, request: int) -> None:
        del self._texts[request]
