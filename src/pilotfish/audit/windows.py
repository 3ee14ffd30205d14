"""What came out, sorted into outcomes whose law is known: contexts, classes of tokens, steps of windows.

Owns the coding of outcomes and the walk from context to context. Knows no plan and no verdict.

A window is a few tokens from the beginning of a round. Each of its tokens is one observation, under the law of its own
context, in a block of its own for every way in which the window has begun; together the blocks of a window make up its
joint law. Only contexts that were really met are ever looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pilotfish.audit.options import History, Setting
from pilotfish.audit.statistics import Floats, Tally
from pilotfish.audit.subject import Generated, Job
from pilotfish.audit.worlds import World

WINDOWS = ((1, 5), (2, 5), (3, 3))
"""(tokens looked at together, classes per token)."""


def blocks_of(length: int, classes: int) -> int:
    """How many ways a window has to begin, that of not having begun included."""
    return sum(classes**begun for begun in range(length))


class Context:
    """One context: its law, and each token's class in it by number of classes.

    Attributes:
        number: in the order of meeting.
        law: the oracle's.
        classes: by number of classes, the class of each token.
    """

    __slots__ = ("classes", "history", "law", "next", "number", "tail")

    def __init__(self, number: int, tail: tuple[int, ...], history: History, law: Floats, order: Floats) -> None:
        self.number = number
        self.tail = tail
        self.history = history
        self.law = law
        self.classes = {count: _classes(law, order, count) for count in {classes for _, classes in WINDOWS}}
        self.next: dict[int, Context] = {}


def _classes(law: Floats, order: Floats, count: int) -> list[int]:
    """Tokens in ascending `order`, cut into `count` groups of about equal mass; each token alone where that fits."""
    ranked = np.argsort(order, kind="stable").tolist()
    classes = [0] * len(ranked)
    if len(ranked) <= count:
        for rank, token in enumerate(ranked):
            classes[token] = rank
        return classes
    masses = law.tolist()
    mass = 0.0
    for token in ranked:
        classes[token] = min(count - 1, int((mass + masses[token] / 2) * count))
        mass += masses[token]
    return classes


class Contexts:
    """All contexts met in a world, and the law of what may follow each.

    Attributes:
        impossible: tokens that came out though their probability is 0, in words.
    """

    def __init__(self, setting: Setting, world: World) -> None:
        self._setting = setting
        self._world = world
        self._known: dict[tuple[tuple[int, ...], History], Context] = {}
        self.met: list[Context] = []
        self.impossible: list[str] = []

    def root(self, job: Job) -> Context:
        return self._find(self._tail(tuple(job.prompt)), self._setting.history(job.prompt, ()))

    def after(self, context: Context, token: int) -> Context:
        found = context.next.get(token)
        if found is None:
            longer = self._setting.history(context.history.prompt, (*context.history.output, token))
            found = context.next[token] = self._find(self._tail((*context.tail, token)), longer)
        return found

    def walk(self, job: Job, output: Sequence[int]) -> list[Context]:
        """The context before each token of an output, up to the first that is impossible."""
        contexts = [self.root(job)]
        for place, token in enumerate(output):
            if not contexts[-1].law[token] > 0:
                self.impossible.append(f"emitted token {token}, whose probability is 0, at place {place}")
                break
            if place + 1 < len(output):
                contexts.append(self.after(contexts[-1], token))
        return contexts

    def _tail(self, text: tuple[int, ...]) -> tuple[int, ...]:
        return text[-self._world.order :] if self._world.order else text

    def _find(self, tail: tuple[int, ...], history: History) -> Context:
        key = (tail, history)
        if key not in self._known:
            law = self._setting.law(self._world.target_logits(tail), history)
            order = -law
            draft_logits = self._world.draft_logits(tail)
            if draft_logits is not None:
                likelihood = self._setting.law(draft_logits, history)
                order = np.where(law > 0, law / np.maximum(likelihood, 1e-12), math.inf)
            self._known[key] = Context(len(self.met), tail, history, law, order)
            self.met.append(self._known[key])
        return self._known[key]

    def class_laws(self, classes: int) -> Floats:
        """`[context, class]` the law of the next token's class in every context met."""
        laws = np.stack([context.law for context in self.met])
        placed = np.array([context.classes[classes] for context in self.met])
        rows = np.broadcast_to(np.arange(len(laws))[:, None], laws.shape)
        masses = np.zeros((len(laws), classes))
        np.add.at(masses, (rows, placed), laws)
        return masses


@dataclass(slots=True)
class Windows:
    """Steps of windows of one length: from every token for length 1, from the starts of rounds otherwise."""

    contexts: Contexts
    length: int
    classes: int
    complete: int = 0
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(block, class, number of the context)."""

    def count(self, made: Generated, walked: Sequence[Context]) -> None:
        output, classes, length = made.output, self.classes, self.length
        codes = [context.classes[classes][token] for context, token in zip(walked, output, strict=False)]
        free = 0
        for start in range(len(codes)) if length == 1 else made.starts:
            # Windows must not overlap, and whether one is counted must not depend on what is in it.
            if start < free:
                continue
            free = start + length
            block, begun, width = 0, 0, 1
            for place in range(start, min(free, len(codes))):
                self.steps.append((block + begun, codes[place], walked[place].number))
                block, width = block + width, width * classes
                begun = begun * classes + codes[place]
            self.complete += free <= len(codes)

    def add_to(self, tally: Tally) -> None:
        if self.steps:
            blocks, outcomes, numbers = np.array(self.steps).T
            tally.add_steps(blocks, outcomes, self.contexts.class_laws(self.classes)[numbers], self.complete)
