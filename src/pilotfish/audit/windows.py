"""What came out, coded for the law level: contexts with their laws, and counts of windows of tokens.

Owns the classes of tokens and the walk from context to context. Knows no plan and no verdict.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from pilotfish.audit.options import History, Setting
from pilotfish.audit.statistics import Floats, Tally
from pilotfish.audit.subject import Generated, Job
from pilotfish.audit.table_model import Table

WINDOWS = ((1, 5), (2, 5), (3, 3))
"""(tokens looked at together, classes per token)."""


class _Node:
    """One context: its law, and each token's class in it by number of classes."""

    __slots__ = ("classes", "key", "law", "next", "windows")

    def __init__(self, key: tuple[tuple[int, ...], History], law: Floats, order: Floats) -> None:
        self.key = key
        self.law = law
        self.classes = {count: _classes(law, order, count) for count in {classes for _, classes in WINDOWS}}
        self.next: dict[int, _Node] = {}
        self.windows: dict[tuple[int, int], Floats] = {}


def _classes(law: Floats, order: Floats, count: int) -> list[int]:
    """Tokens in ascending `order`, cut into `count` groups of about equal mass; each token alone where that fits."""
    ranked = np.argsort(order, kind="stable")
    classes = [0] * len(law)
    if len(law) <= count:
        for rank, token in enumerate(ranked):
            classes[int(token)] = rank
        return classes
    mass = 0.0
    for token in ranked:
        classes[int(token)] = min(count - 1, int((mass + law[token] / 2) * count))
        mass += law[token]
    return classes


class Contexts:
    """All contexts met in a world, and the law of what may follow each."""

    def __init__(self, setting: Setting, target: Table, draft: Table | None) -> None:
        self._setting = setting
        self._target = target
        self._draft = draft
        self._nodes: dict[tuple[tuple[int, ...], History], _Node] = {}
        self.impossible: list[str] = []

    def root(self, job: Job) -> _Node:
        return self._node(tuple(job.prompt[-self._target.order :]), self._setting.history(job.prompt, ()))

    def after(self, node: _Node, token: int) -> _Node:
        found = node.next.get(token)
        if found is None:
            tail, history = node.key
            longer = self._setting.history(history.prompt, (*history.output, token))
            found = node.next[token] = self._node((*tail, token)[-self._target.order :], longer)
        return found

    def _node(self, tail: tuple[int, ...], history: History) -> _Node:
        key = (tail, history)
        if key not in self._nodes:
            row = self._target.row(tail)
            law = self._setting.law(self._target.logits[row].astype(np.float64), history)
            order = -law
            if self._draft is not None:
                likelihood = self._setting.law(self._draft.logits[row].astype(np.float64), history)
                order = np.where(law > 0, law / np.maximum(likelihood, 1e-12), math.inf)
            self._nodes[key] = _Node(key, law, order)
        return self._nodes[key]

    def window(self, node: _Node, length: int, classes: int) -> Floats:
        """The law of the next `length` tokens' classes."""
        known = node.windows.get((length, classes))
        if known is None:
            width = classes ** (length - 1)
            known = np.zeros(classes**length)
            for token in np.flatnonzero(node.law > 0):
                place = node.classes[classes][token] * width
                rest = self.window(self.after(node, int(token)), length - 1, classes) if length > 1 else np.ones(1)
                known[place : place + width] += node.law[token] * rest
            node.windows[length, classes] = known
        return known


@dataclass(slots=True)
class Windows:
    """Counts of windows of one length: at every token for length 1, from the starts of rounds otherwise."""

    contexts: Contexts
    length: int
    classes: int
    counts: dict[_Node, Floats] = field(default_factory=dict)

    def count(self, job: Job, made: Generated) -> None:
        nodes = [self.contexts.root(job)]
        for place, token in enumerate(made.output):
            if not nodes[-1].law[token] > 0:
                self.contexts.impossible.append(f"emitted token {token}, whose probability is 0, at place {place}")
                return
            nodes.append(self.contexts.after(nodes[-1], token))
        free = 0
        for start in range(len(made.output)) if self.length == 1 else made.starts:
            # Windows must not overlap, and whether one is counted must not depend on what is in it.
            if start < free or start + self.length > len(made.output):
                continue
            free = start + self.length
            cell = 0
            for place in range(start, free):
                cell = cell * self.classes + nodes[place].classes[self.classes][made.output[place]]
            counts = self.counts.get(nodes[start])
            if counts is None:
                counts = self.counts[nodes[start]] = np.zeros(self.classes**self.length)
            counts[cell] += 1

    def add_to(self, tally: Tally) -> None:
        for node, counts in self.counts.items():
            tally.add(counts, self.contexts.window(node, self.length, self.classes))
