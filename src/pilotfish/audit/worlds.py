"""A world of the law level: a target whose every law is known, and the drafter that drafts in it.

Owns the making of toy models, tables or a tiny real decoder, and of the production drafters over them. Knows no rule,
no option and no statistics.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from pilotfish.audit.drafters import TreeDrafter
from pilotfish.audit.oracle import Floats
from pilotfish.audit.table_model import Table, TableExecutor, nearby, random_table
from pilotfish.audit.tiny_model import BOUNDARIES, tiny_executor, tiny_head
from pilotfish.drafters.base import Drafter
from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.eagle import EagleDrafter
from pilotfish.drafters.early_exit import EarlyExitDrafter
from pilotfish.drafters.lookup import LookupDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.recycle import RecycleDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.draft_policy import DraftPolicy
from pilotfish.engine.pass_time import PassTime
from pilotfish.models.base import Executor, Segment

MODEL_FREE = ("ngram", "suffix", "recycle", "lookup", "suffix tree", "recycle tree", "lookup tree")
OF_THE_MODEL = ("early_exit", "eagle", "eagle tree")
"""Drafters that need a real decoder."""
EXIT_LAYER = 1


class World(ABC):
    """A target and a drafter.

    Attributes:
        executor: the target.
        order: how many of the last tokens decide a law; 0 for all.
    """

    executor: Executor
    order: int

    @abstractmethod
    def drafter(self) -> Drafter:
        """The drafter, to be asked for once."""

    @abstractmethod
    def target_logits(self, context: Sequence[int]) -> Floats:
        """The target's logits after a context, as plain decoding has them."""

    @abstractmethod
    def draft_logits(self, context: Sequence[int]) -> Floats | None:
        """The drafter's, where it has a law of its own that is known from outside."""


class TableWorld(World):
    """Tables with context; the drafter's is the target's with noise."""

    def __init__(self, kind: str, entropy: int, vocab_size: int, order: int) -> None:
        rows = None if order == 1 else 7
        self._target = random_table((entropy, 0), vocab_size, order=order, rows=rows)
        self._draft = nearby(self._target, (entropy, 1), 0.8)
        self._kind = kind
        self.executor = TableExecutor(self._target)
        self.order = order

    def target_logits(self, context: Sequence[int]) -> Floats:
        return self._logits(self._target, context)

    def draft_logits(self, context: Sequence[int]) -> Floats | None:
        return None if self._kind in MODEL_FREE else self._logits(self._draft, context)

    @staticmethod
    def _logits(table: Table, context: Sequence[int]) -> Floats:
        return np.asarray(table.logits[table.row(context)], dtype=np.float64)

    def drafter(self) -> Drafter:
        kind, draft = self._kind, self._draft
        if kind == "ngram":
            return NgramDrafter(1, 2)
        if kind == "draft_model":
            return DraftModelDrafter(TableExecutor(draft))
        if kind.startswith("suffix"):
            return SuffixDrafter(2 if kind.endswith("tree") else 1)
        if kind.startswith("recycle"):
            return RecycleDrafter(2 if kind.endswith("tree") else 1)
        if kind.startswith("lookup"):
            return LookupDrafter(None, 2 if kind.endswith("tree") else 1)
        if kind == "policy":
            members = [NgramDrafter(1, 2), SuffixDrafter(), LookupDrafter(), DraftModelDrafter(TableExecutor(draft))]
            ticks = itertools.count()  # a clock of its own: the same seed makes the same choices
            return DraftPolicy(members, PassTime({1: 10.0, 20: 20.0}), lambda: float(next(ticks)))
        width = 1 if kind == "chain" else 2
        return TreeDrafter(draft, width=width, replacement=kind == "tree with replacement")


class ModelWorld(World):
    """A tiny decoder. Its logits are taken as given, from plain passes over the whole context; its law is not."""

    def __init__(self, kind: str, entropy: int, vocab_size: int) -> None:
        self._kind = kind
        self._entropy = entropy
        self.executor = tiny_executor(entropy, vocab_size)
        self.order = 0

    def target_logits(self, context: Sequence[int]) -> Floats:
        return self._pass(context, None)

    def draft_logits(self, context: Sequence[int]) -> Floats | None:
        return self._pass(context, (0, EXIT_LAYER)) if self._kind == "early_exit" else None

    def _pass(self, context: Sequence[int], layers: tuple[int, int] | None) -> Floats:
        sequence = self.executor.open(len(context))
        segment = Segment(sequence, context, logits_from=len(context) - 1)
        row = self.executor.forward([segment], layers=layers).logits[0].to(torch.float64).numpy()
        self.executor.close(sequence)
        return np.asarray(row)

    def drafter(self) -> Drafter:
        if self._kind == "early_exit":
            return EarlyExitDrafter(self.executor, EXIT_LAYER)
        head = tiny_head(self._entropy + 1, self.executor.config)
        return EagleDrafter(head, BOUNDARIES, 2 if self._kind.endswith("tree") else 1)


def make_world(kind: str, entropy: int, vocab_size: int, order: int) -> World:
    """The world in which a drafter of this kind drafts."""
    if kind in OF_THE_MODEL:
        return ModelWorld(kind, entropy, vocab_size)
    return TableWorld(kind, entropy, vocab_size, order)
